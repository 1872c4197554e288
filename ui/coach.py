"""One hint, shown once: what the colours are. It hangs under the switch that turns them off, and takes no keyboard."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QPoint, Qt, Signal
from PySide6.QtGui import QFont, QKeyEvent
from PySide6.QtWidgets import QFrame, QVBoxLayout, QWidget

from ui.parts import button, row, words
from ui.theme.fonts import interface_font
from ui.theme.text_size import panel_width
from ui.widgets import Label

WIDTH = 300  # pixels at 100 % text
GAP, EDGE = 14, 12


class CoachMark(QFrame):
    """About Tokens mode.

    Args:
        anchor: It hangs under the right end of this.
        parent: The window's content.
    """

    dismissed = Signal()

    def __init__(self, anchor: QWidget, parent: QWidget) -> None:
        super().__init__(parent)
        self.setObjectName("popover")
        self._anchor, self._parent = anchor, parent
        title = Label(self.tr("Warm where it was not sure"), "", interface_font(13, QFont.Weight.DemiBold))
        said = self.tr(
            "Every token is coloured by how surprising it was to the model. Click one to see what else was likely, "
            "and choose it: the answer goes on from there. Read shows plain text."
        )
        self.done_button = button(self.tr("Got it"), "link")
        self.done_button.clicked.connect(self.dismiss)
        self.setAccessibleName(f"{title.text()}. {said}")
        column = QVBoxLayout(self)
        column.setContentsMargins(14, 12, 14, 10)
        column.setSpacing(6)
        column.addWidget(title)
        column.addWidget(words(said))
        column.addLayout(row(1, self.done_button))
        self.hide()

    def open(self) -> None:
        """Shows it."""
        for watched in (self._parent, self._anchor):
            watched.installEventFilter(self)
        self.show()
        self._place()
        self.raise_()

    def dismiss(self) -> None:
        """For good."""
        if not self.isHidden():
            for watched in (self._parent, self._anchor):
                watched.removeEventFilter(self)
            self.hide()
            self.dismissed.emit()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched in (self._parent, self._anchor) and event.type() in (QEvent.Type.Resize, QEvent.Type.Move):
            self._place()
        return False

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.dismiss()
        else:
            super().keyPressEvent(event)

    def _place(self) -> None:
        room = self._parent.rect().adjusted(EDGE, 0, -EDGE, 0)
        corner = QPoint(self._anchor.width(), self._anchor.height() + GAP)
        under = self._parent.mapFromGlobal(self._anchor.mapToGlobal(corner))  # the bar is not in the parent
        width = min(panel_width(WIDTH), room.width())
        layout = self.layout()
        assert layout is not None
        left = max(min(under.x() - width, room.right() - width), room.left())
        self.setGeometry(left, under.y(), width, layout.totalHeightForWidth(width))
