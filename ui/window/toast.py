"""A message about what was just done, which disappears by itself."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QTimer, Signal
from PySide6.QtGui import QEnterEvent, QFont, QHideEvent
from PySide6.QtWidgets import QFrame, QWidget

from ui.theme.fonts import interface_font
from ui.widgets.controls import button, row_in
from ui.widgets.labels import ElidedLabel, announce

SHOWN_MS = 5000
_GAP_PX = 10  # to the lower edge of the part below it


class Toast(QFrame):
    """Floats over the lower end of the conversation, so that nothing moves when it appears or disappears.

    Args:
        over: The part that it floats over.
        parent: The parent of `over`.
    """

    acted = Signal()

    def __init__(self, over: QWidget, parent: QWidget) -> None:
        super().__init__(parent)
        self.setProperty("kind", "toast")
        self._over = over
        self._words = ElidedLabel(font=interface_font(12.5))
        self.action = button("", "link")
        self.action.setFont(interface_font(12.5, QFont.Weight.Medium))
        self.action.clicked.connect(self._act)
        row_in(self, self._words, self.action, spacing=14, margins=(14, 7, 14, 7))
        self._time = QTimer(self, singleShot=True)
        self._time.timeout.connect(self.hide)
        self.float_over(over, parent)

    def float_over(self, over: QWidget, parent: QWidget) -> None:
        """Floats over another part from the next message on; `parent` is the parent of that part."""
        for watched in (self.parentWidget(), self._over):
            if watched is not None:
                watched.removeEventFilter(self)
        self._over = over
        if self.parentWidget() is not parent:
            self.setParent(parent)
        for watched in (parent, over):
            watched.installEventFilter(self)
        self.hide()

    @property
    def words(self) -> str:
        """The message; "" while hidden."""
        return "" if self.isHidden() else self._words.text()

    def say(self, words: str, action: str = "") -> None:
        """Shows `words` for a few seconds, with a button if `action` is not ""."""
        self._words.setText(words)
        self.setAccessibleName(words)
        self.action.setText(action)
        self.action.setVisible(bool(action))
        self.show()
        self.raise_()
        self._place()
        self._time.start(SHOWN_MS)
        announce(self, words)

    def enterEvent(self, event: QEnterEvent) -> None:
        super().enterEvent(event)
        self._time.stop()  # it stays while the pointer is over it

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self._time.start(SHOWN_MS)

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._time.stop()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: ARG002  # the signature is Qt's
        if event.type() in (QEvent.Type.Resize, QEvent.Type.Move):
            self._place()
        return False

    def _act(self) -> None:
        self.hide()
        self.acted.emit()

    def _place(self) -> None:
        if self.isHidden():
            return
        parent, room = self.parentWidget(), self._over.geometry()
        assert parent is not None
        size = self.sizeHint().boundedTo(room.size())
        self.setGeometry(
            room.center().x() - size.width() // 2, room.bottom() - size.height() - _GAP_PX, size.width(), size.height()
        )
