"""Messages and answers of the session shown: what a message costs before it is sent, sending, what follows an answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from PySide6.QtCore import QObject, Signal

from ui.controller.showing import Showing, ignore_refusal
from ui.core.tasks import tell
from ui.port import Made

SCORING = "score draft"


class DraftsController(QObject):
    """Part of `Controller`.

    Args:
        showing: The session that is shown.
    """

    composed = Signal(object)  # Composition of the draft
    # a draft may have megabytes: as `str` Qt would copy it
    scored = Signal(object, object)  # the draft, its tokens with their numbers (TokenRun) or None
    unscored = Signal(object, str)  # the draft, and why it has no numbers
    file_refused = Signal(str)  # why
    file_read = Signal(int, object)  # the session it was chosen in, TextFile
    left_out = Signal(int)  # turns, to make room

    def __init__(self, showing: Showing) -> None:
        super().__init__(showing)
        self._showing = showing
        self._workbench = showing.workbench

    def compose(self, text: str, replaces: int | None = None, files: Sequence[str] = ()) -> None:
        """Asks what the draft will cost, as a new message or as another version of the user's turn `replaces`."""
        ask = partial(self._workbench.drafts.compose, text=text, replaces=replaces, files=files)
        self._showing.ask_latest("compose", lambda session: tell(self.composed.emit, ask, session), ignore_refusal)

    def score(self, text: str, replaces: int | None = None) -> None:
        """Asks how surprising the draft is, unless an answer is under way."""
        if not self._showing.running and text.strip():
            scored, refused, drafts = partial(self.scored.emit, text), partial(self.unscored.emit, text), self._workbench.drafts
            self._showing.ask_latest(SCORING, lambda session: tell(scored, drafts.score, session, text, replaces), refused)

    def drop_score(self) -> None:
        self._showing.tasks.drop(SCORING)

    def read_file(self, path: str) -> None:
        """Reads a text file that goes with the message."""
        shown = self._showing.shown
        if shown is not None:
            read = tell(partial(self.file_read.emit, shown.session_id), self._workbench.drafts.read_file, path)
            self._showing.tasks.run(read, self.file_refused.emit)

    def leave_out(self, text: str) -> None:
        self._showing.ask(lambda session: tell(self.left_out.emit, self._workbench.drafts.leave_out, session, text))

    def grow_context(self) -> None:
        """All the context that the model has."""
        self._showing.tasks.run(self._workbench.models.grow_context())


@dataclass(eq=False, slots=True)
class Sending:
    """A message on its way into the store."""

    session_id: int
    text: str
    stopped: bool = False  # its answer is to end as soon as it has begun


class AnswersController(QObject):
    """Part of `Controller`.

    Args:
        showing: The session that is shown.
        drafts: What is asked about a message ends when it is sent.
    """

    copied = Signal(int, int)  # what was asked of the first session goes on in the second, which is shown next
    did_not_fit = Signal(int, object)  # session and message: it is in the tree, and what can be done is a choice
    draft_saved = Signal(int, object)  # session and message: it is in the store, the draft has done its work

    def __init__(self, showing: Showing, drafts: DraftsController) -> None:
        super().__init__(showing)
        self._showing = showing
        self._drafts = drafts
        self._workbench = showing.workbench
        self._sending: list[Sending] = []  # until the store has them
        self.sent: set[int] = set()  # sessions in which something was said from here
        showing.watch(lambda session_id: any(each.session_id == session_id for each in self._sending))

    def send(self, text: str, replaces: int | None = None) -> None:
        """Sends a message, or another version of the user's turn `replaces`; the draft stays until `draft_saved`."""
        shown = self._showing.shown
        if shown is not None and not self._showing.running:
            self._drafts.drop_score()
            sending = Sending(shown.session_id, text)
            self._sending.append(sending)
            self.sent.add(shown.session_id)
            self._showing.activity_changed.emit()
            self._showing.tasks.run(self._send(sending, replaces))

    def stop(self) -> None:
        shown = self._showing.shown
        if shown is not None:
            for sending in self._sending:
                sending.stopped |= sending.session_id == shown.session_id
            self._workbench.answers.stop(shown.session_id)

    def branch(self, node_id: int, index: int, token_id: int, refused: Callable[[str], None] | None = None) -> None:
        shown = self._showing.shown
        if shown is not None:
            branch = self._workbench.answers.branch
            self._showing.tasks.run(branch(shown.session_id, node_id, index, token_id), refused)

    def write(self, node_id: int, index: int, text: str, refused: Callable[[str], None]) -> None:
        """A branch that has these words from a token on; why there is none is told to `refused`."""
        shown = self._showing.shown
        if shown is not None:
            self._showing.tasks.run(self._workbench.answers.write(shown.session_id, node_id, index, text), refused)

    def tokenise(self, text: str) -> None:
        """Prepares `write` for words that are being typed."""
        self._showing.ask_latest("tokenise", lambda _session: self._workbench.answers.tokenise(text), ignore_refusal)

    def answer_call(self, node_id: int, results: Sequence[str]) -> None:
        self._showing.ask(lambda session: self._workbench.answers.answer_call(session, node_id, results))

    def regenerate(self, node_id: int | None = None) -> None:
        """Another answer beside that one, or beside the last."""
        self._of_answer(self._workbench.answers.regenerate, node_id)

    def regenerate_exactly(self, node_id: int | None = None) -> None:
        """The same answer once more, beside that one or the last."""
        self._of_answer(self._workbench.answers.regenerate_exactly, node_id)

    def continue_turn(self, node_id: int | None = None) -> None:
        """Goes on with an answer that was stopped, or with the last."""
        self._of_answer(self._workbench.answers.continue_turn, node_id)

    def _of_answer(self, command: Callable[[int, int], Coroutine[Any, Any, None]], node_id: int | None) -> None:
        shown = self._showing.shown
        last = shown.last_answer if shown is not None else None
        if node_id is None and last is not None:
            node_id = last.node_id
        if node_id is not None:
            answer = node_id
            self._showing.ask(lambda session: command(session, answer))

    def open_as_text(self, node_id: int) -> None:
        self._showing.ask(lambda session: self._workbench.answers.open_as_text(session, node_id))

    def how_made(self, node_id: int) -> Made | None:
        shown = self._showing.shown
        return None if shown is None else self._workbench.answers.how_made(shown.session_id, node_id)

    def saved(self, session_id: int) -> None:
        """The message is stored: a refusal from here on is about the answer."""
        for sending in [each for each in self._sending if each.session_id == session_id]:
            self._sending.remove(sending)
            self.draft_saved.emit(session_id, sending.text)
            if sending.stopped:
                self._workbench.answers.stop(session_id)

    def go_on_in_copy(self, source_id: int, copy_id: int) -> None:
        """Moves what is under way for a session to its copy."""
        for sending in self._sending:
            if sending.session_id == source_id:
                sending.session_id = copy_id
        self.copied.emit(source_id, copy_id)

    async def _send(self, sending: Sending, replaces: int | None) -> None:
        try:
            await self._workbench.answers.send(sending.session_id, sending.text, replaces)
            session_id = sending.session_id  # that of the copy by now, where it was sent to the sample
            self.saved(session_id)
            self._showing.events.flush()
            shown = self._showing.shown
            if shown is not None and shown.session_id == session_id and shown.view.turns and shown.view.turns[-1].overflowed:
                self.did_not_fit.emit(session_id, sending.text)
        finally:
            if sending in self._sending:
                self._sending.remove(sending)
            self._showing.activity_changed.emit()
