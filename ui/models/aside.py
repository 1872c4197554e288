"""What opens in a row under the button that asks for it, and is left again."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QApplication, QFrame, QWidget


class Aside(QFrame):
    """Hidden until it is wanted. Escape leaves it, and the keyboard that was in it goes back to where it came from.

    Args:
        home: What was pressed to get here.
        kind: How the theme draws it.
    """

    def __init__(self, home: QWidget, kind: str) -> None:
        super().__init__()
        self.setProperty("kind", kind)
        self._home = home
        self.hide()

    def open_at(self, part: QWidget) -> None:
        """Shows it, with the keyboard on one of its parts."""
        self.show()
        part.setFocus(Qt.FocusReason.OtherFocusReason)

    def leave(self) -> None:
        """Nothing is done."""
        focused = QApplication.focusWidget()
        inside = focused is not None and self.isAncestorOf(focused)
        self.hide()
        if inside:
            self._home.setFocus(Qt.FocusReason.OtherFocusReason)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.leave()
        else:
            super().keyPressEvent(event)
