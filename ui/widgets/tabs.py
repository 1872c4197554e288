"""Tabs over pages, of which one is shown; a page that does not fit scrolls."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QButtonGroup, QFrame, QPushButton, QScrollArea, QStackedWidget, QWidget

from ui.theme.fonts import interface_font
from ui.widgets.controls import button, row_in


def tab(text: str) -> QPushButton:
    """The tab of a page; checked while the page is shown."""
    made = button(text, "tab")
    made.setFont(interface_font(13, QFont.Weight.Medium))
    made.setCheckable(True)
    return made


class Tabs(QWidget):
    """The row of tabs; the owner adds it and `stack`, which has the pages, to its layout.

    Args:
        margins: Around the row: left, top, right, bottom.
        spacing: Between tabs.
        make: Makes the button of a tab from its words.
        sideways: Whether pages scroll sideways too.
    """

    page_shown = Signal(int)

    def __init__(
        self,
        margins: tuple[int, int, int, int],
        spacing: int,
        *,
        make: Callable[[str], QPushButton] = tab,
        sideways: bool = True,
    ) -> None:
        super().__init__()
        self.setObjectName("tabs")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.stack = QStackedWidget()
        self.stack.currentChanged.connect(self.page_shown)
        self.buttons: list[QPushButton] = []
        self._make, self._sideways = make, sideways
        self._group = QButtonGroup(self)
        self._row = row_in(self, 1, spacing=spacing, margins=margins)

    def add(self, words: str, page: QWidget) -> None:
        """Adds a page after the others; the first one is shown."""
        made = self._make(words)
        place = len(self.buttons)
        made.clicked.connect(lambda _checked: self.show_page(place))
        self._row.insertWidget(place, made)
        self._group.addButton(made)
        self.buttons.append(made)
        area = QScrollArea()
        area.setWidget(page)
        area.setWidgetResizable(True)
        area.setFrameShape(QFrame.Shape.NoFrame)
        area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        if not self._sideways:
            area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.stack.addWidget(area)
        made.setChecked(place == 0)

    def show_page(self, place: int) -> None:
        """Shows a page; if a tab has the focus, the tab of the page gets it."""
        self.buttons[place].setChecked(True)
        self.stack.setCurrentIndex(place)
        if any(one.hasFocus() for one in self.buttons):
            self.buttons[place].setFocus(Qt.FocusReason.OtherFocusReason)
