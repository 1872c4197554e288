"""The message before it is sent: what it will cost, what goes with it, how room is made for it."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from ui.controller.showing import Showing, in_silence

SCORING = "score draft"


class DraftsController(QObject):
    """Part of `Controller`.

    Args:
        showing: The session that is shown.
    """

    composed = Signal(object)  # Composition of the draft
    scored = Signal(str, object)  # the draft, its bits or None
    file_read = Signal(int, object)  # the session it was chosen in, TextFile
    left_out = Signal(int)  # turns, to make room

    def __init__(self, showing: Showing) -> None:
        super().__init__(showing)
        self._showing = showing
        self._workbench = showing.workbench

    def compose(self, text: str, replaces: int | None = None) -> None:
        """Asks what the draft will cost, as a new message or as another version of the user's turn `replaces`."""
        self._showing.ask_latest("compose", lambda session: self._compose(session, text, replaces), in_silence)

    def score(self, text: str, replaces: int | None = None) -> None:
        """Asks how surprising the draft is, unless an answer is under way."""
        if not self._showing.running and text.strip():
            self._showing.ask_latest(SCORING, lambda session: self._score(session, text, replaces), in_silence)

    def drop_score(self) -> None:
        self._showing.tasks.drop(SCORING)

    def read_file(self, path: str) -> None:
        """Reads a text file that goes with the message."""
        self._showing.ask(lambda session: self._read_file(session, path))

    def leave_out(self, text: str) -> None:
        self._showing.ask(lambda session: self._leave_out(session, text))

    def grow_context(self) -> None:
        """All the context that the model has."""
        self._showing.tasks.run(self._workbench.grow_context())

    async def _compose(self, session_id: int, text: str, replaces: int | None) -> None:
        self.composed.emit(await self._workbench.compose(session_id, text, replaces))

    async def _score(self, session_id: int, text: str, replaces: int | None) -> None:
        self.scored.emit(text, await self._workbench.score_draft(session_id, text, replaces))

    async def _read_file(self, session_id: int, path: str) -> None:
        self.file_read.emit(session_id, await self._workbench.read_file(path))

    async def _leave_out(self, session_id: int, text: str) -> None:
        self.left_out.emit(await self._workbench.leave_out(session_id, text))
