"""Escape closes the open parts of the window one by one, wherever the focus is."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum, auto

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QWidget


class Closes(IntEnum):
    """The order in which Escape closes parts."""

    CARD = auto()
    POPOVER = auto()
    EDIT = auto()
    SEARCH = auto()
    TREE = auto()


class EscapeKey(QObject):
    """Takes the key only while a registered part is open; otherwise the focused widget gets it.

    Args:
        window: The window of the shortcut.
    """

    def __init__(self, window: QWidget) -> None:
        super().__init__(window)
        self._parts: list[tuple[Closes, QWidget, Callable[[], None]]] = []
        self._key = QShortcut(QKeySequence(Qt.Key.Key_Escape), window)
        self._key.activated.connect(self._close_first)
        self._key.setEnabled(False)

    def add(self, rank: Closes, part: QWidget, close: Callable[[], None]) -> None:
        """Registers a part: Escape closes it by `close`, after the parts of lower rank."""
        self._parts.append((rank, part, close))
        self._parts.sort(key=lambda each: each[0])
        part.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: ARG002  # the signature is Qt's
        if event.type() in (QEvent.Type.Show, QEvent.Type.Hide):
            self._key.setEnabled(any(not part.isHidden() for _rank, part, _close in self._parts))
        return False

    def _close_first(self) -> None:
        close = next((close for _rank, part, close in self._parts if part.isVisible()), None)
        if close is not None:
            close()
