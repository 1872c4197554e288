"""Faces for scripts that the shipped ones lack, looked for before there is text in them."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QObject, QTimer
from PySide6.QtGui import QFont, QTextLayout

SCRIPTS = "ܐހकকਕકକகకಕകකกកשم한好"  # a letter of each
FIRST_MS, REST_MS = 150, 5  # over before any engine can answer


class FallbackFaces(QObject):
    """Looks for one script after another, each in a turn of the loop of its own, and is done with it.

    Qt goes through all installed faces when a font first meets a complex script that it lacks: some 15 ms, and 60 ms the first
    time. A frame of a streamed answer would have to wait for it, and for several scripts at once.

    Args:
        fonts: Those that text is going to be in.
        parent: Its end is the end of this.
    """

    def __init__(self, fonts: Iterable[QFont], parent: QObject) -> None:
        super().__init__(parent)
        self.left = [(font, letter) for font in fonts for letter in SCRIPTS]
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._look)
        self._timer.start(FIRST_MS)

    def _look(self) -> None:
        font, letter = self.left.pop(0)
        layout = QTextLayout(letter, font)
        layout.beginLayout()
        layout.createLine()
        layout.endLayout()
        if self.left:
            self._timer.start(REST_MS)
