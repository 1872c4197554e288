"""The one thing that a first look is told: what the colours mean, and that every word can be asked about."""

from __future__ import annotations

from PySide6.QtCore import QObject

from ui.desk import Desk
from ui.frame import Frame
from ui.transcript import Mode


class Coach(QObject):
    """Speaks over the sample in Tokens mode until it was understood: dismissed, tried out, or a token was clicked.

    Args:
        desk: Knows what is shown.
        parts: Have the place where it speaks.
        parent: Owns it.
        understood: It was told before.
    """

    def __init__(self, desk: Desk, parts: Frame, parent: QObject, *, understood: bool) -> None:
        super().__init__(parent)
        self._desk, self._parts = desk, parts
        self.understood = understood
        desk.session_shown.connect(lambda _view: self.look())
        parts.transcript.token_pinned.connect(self._pinned)
        parts.coach.dismissed.connect(self._understand)
        parts.coach.acted.connect(self._show_one)

    def look(self) -> None:
        """Speaks where there is something to say now."""
        shown = self._desk.shown
        if self.understood or shown is None or not shown.view.is_sample or self._parts.transcript.mode is not Mode.TOKENS:
            self._parts.coach.clear()
            return
        words = self.tr("The warmer a word, the less the model expected it. Click one to see what else it might have said.")
        self._parts.coach.say(words, self.tr("Show me one"))

    def _show_one(self) -> None:
        self._understand()
        self._parts.show_inspector(True)
        self._parts.transcript.next_uncertain()

    def _pinned(self, place: object) -> None:
        if place is not None:
            self._understand()

    def _understand(self) -> None:
        self.understood = True
        self._parts.coach.clear()
