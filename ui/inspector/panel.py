"""The inspector: four tabs about the pinned token, the path and the cache."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QButtonGroup, QFrame, QHBoxLayout, QPushButton, QScrollArea, QStackedWidget, QVBoxLayout, QWidget

from ui.core.shown import Spot
from ui.inspector.cache import CacheTab
from ui.inspector.path import PathTab
from ui.inspector.token import TokenTab, Vocabulary
from ui.inspector.why import WhyTab
from ui.port import Made, StatusView, TurnView
from ui.theme.fonts import interface_font
from ui.theme.text_size import fix_height, fix_width
from ui.widgets.controls import take_focus

WIDTH = 332
HowMade = Callable[[int], Made | None]  # of an answer's node


class Inspector(QWidget):
    """Shows what it is given; asks for a branch with `alternative_chosen`."""

    alternative_chosen = Signal(int, int, int)  # node id, index, token id
    token_chosen = Signal(int, int)  # node id, index
    columns_wanted = Signal(int, int, int, bool)  # node id, index, how many, whether by a beam search
    uncertain_wanted = Signal()  # a token where the model hesitated
    message_wanted = Signal()  # nothing was said yet

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("inspector")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        fix_width(self, WIDTH)
        self.token, self.path, self.cache, self.why = TokenTab(), PathTab(), CacheTab(), WhyTab()
        self.token.alternative_chosen.connect(self.alternative_chosen)
        self.token.columns_wanted.connect(self.columns_wanted)
        self.path.token_chosen.connect(self.token_chosen)
        for tab in (self.token, self.path, self.why):
            tab.empty.token_wanted.connect(self.uncertain_wanted)
            tab.empty.message_wanted.connect(self.message_wanted)
        self._stack = QStackedWidget()
        self._group = QButtonGroup(self)
        self.tabs: list[QPushButton] = []
        column = QVBoxLayout(self)
        column.setContentsMargins(1, 0, 0, 0)  # the hairline at the left is inside
        column.setSpacing(0)
        column.addWidget(self._tab_row())
        column.addWidget(self._stack, 1)
        self._path_turns: tuple[TurnView, ...] | None = None
        self._how_made: HowMade = lambda _node: None
        self._stack.currentChanged.connect(lambda _index: self._refresh_path())

    def show_spot(self, spot: Spot | None, vocabulary: Vocabulary, *, can_choose: bool, can_continue: bool = False) -> None:
        """Shows a token in the tabs Token and Why."""
        self.token.show_spot(spot, vocabulary, can_choose=can_choose, can_continue=can_continue)
        self.why.show_spot(spot, vocabulary)

    def show_path(self, turns: tuple[TurnView, ...], how_made: HowMade = lambda _node: None) -> None:
        """Shows the sums over a path, and how its last answer was made; added up only while they can be seen."""
        self._path_turns, self._how_made = turns, how_made
        for tab in (self.token, self.why):
            tab.empty.set_has_tokens(any((turn.run.rank > 0).any() for turn in turns))
        self._refresh_path()

    def show_status(self, status: StatusView) -> None:
        """Shows the cache's numbers."""
        self.cache.show_status(status)

    def _refresh_path(self) -> None:
        if self._path_turns is not None and self._stack.currentIndex() == 1:
            turns, self._path_turns = self._path_turns, None
            self.path.show_path(turns)
            answer = next((turn.node_id for turn in reversed(turns) if turn.role == "assistant"), None)
            self.path.show_made(None if answer is None else self._how_made(answer))

    def _tab_row(self) -> QWidget:
        row_widget = QWidget()
        row_widget.setObjectName("tabs")
        row_widget.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        fix_height(row_widget, 44)
        row = QHBoxLayout(row_widget)
        row.setContentsMargins(16, 8, 16, 0)
        row.setSpacing(16)
        for words, tab in (
            (self.tr("Token"), self.token),
            (self.tr("Path"), self.path),
            (self.tr("Cache"), self.cache),
            (self.tr("Why"), self.why),
        ):
            place = self._stack.addWidget(_scrolling(tab))
            button = QPushButton(words)
            button.setCheckable(True)
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            button.setChecked(place == 0)
            button.setProperty("kind", "tab")
            button.setFont(interface_font(weight=QFont.Weight.Normal if place else QFont.Weight.DemiBold))
            button.toggled.connect(lambda on, place=place: self._show_tab(place, on=on))
            self._group.addButton(button)
            self.tabs.append(button)
            row.addWidget(button)
        row.addStretch(1)
        return row_widget

    def _show_tab(self, place: int, *, on: bool) -> None:
        self.tabs[place].setFont(interface_font(weight=QFont.Weight.DemiBold if on else QFont.Weight.Normal))
        if on:
            self._stack.setCurrentIndex(place)
            take_focus(self.tabs, self.tabs[place])


def _scrolling(tab: QWidget) -> QScrollArea:
    area = QScrollArea()
    area.setWidget(tab)
    area.setWidgetResizable(True)
    area.setFrameShape(QFrame.Shape.NoFrame)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    return area
