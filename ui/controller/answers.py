"""Drafts, messages and answers of the session shown."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Signal

from ui.core.tasks import ignore_refusal, tell
from ui.port import Made

if TYPE_CHECKING:
    from ui.controller.controller import Controller

SCORING = "score draft"


class DraftsController(QObject):
    """Part of `Controller`."""

    composed = Signal(object)  # Composition of the draft
    # drafts may have megabytes, and Qt would copy a `str`
    scored = Signal(object, object)  # the draft, its scored tokens (TokenRun) or None
    unscored = Signal(object, str)  # the draft, and why it has no scores
    file_refused = Signal(str)  # why
    file_read = Signal(int, object)  # the session it was chosen in, TextFile
    left_out = Signal(int)  # turns that were left out to make room

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._controller = controller
        self._workbench = controller.workbench

    def compose(self, text: str, replaces: int | None = None, files: Sequence[str] = ()) -> None:
        """Counts the tokens of a draft: a new message, or another version of the user's turn `replaces`."""
        ask = partial(self._workbench.drafts.compose, text=text, replaces=replaces, files=files)
        self._controller.ask_latest("compose", lambda session: tell(self.composed.emit, ask, session), ignore_refusal)

    def score(self, text: str, replaces: int | None = None) -> None:
        """Scores the draft, unless an answer is under way."""
        if not self._controller.running and text.strip():
            scored, refused, drafts = partial(self.scored.emit, text), partial(self.unscored.emit, text), self._workbench.drafts
            self._controller.ask_latest(SCORING, lambda session: tell(scored, drafts.score, session, text, replaces), refused)

    def drop_score(self) -> None:
        self._controller.tasks.drop(SCORING)

    def read_file(self, path: str) -> None:
        """Reads a text file that goes with the message."""
        shown = self._controller.shown
        if shown is not None:
            read = tell(partial(self.file_read.emit, shown.session_id), self._workbench.drafts.read_file, path)
            self._controller.tasks.run(read, self.file_refused.emit)

    def leave_out(self, text: str) -> None:
        self._controller.ask(lambda session: tell(self.left_out.emit, self._workbench.drafts.leave_out, session, text))

    def grow_context(self) -> None:
        """Loads the model with its whole context."""
        self._controller.tasks.run(self._workbench.models.grow_context())


@dataclass(eq=False, slots=True)
class Sending:
    """A message that is not stored yet."""

    session_id: int
    text: str
    stopped: bool = False  # its answer is stopped as soon as it has begun


class AnswersController(QObject):
    """Part of `Controller`."""

    copied = Signal(int, int)  # the sample and its copy, in which the command goes on; the copy is shown next
    did_not_fit = Signal(int, object)  # session and message, which is stored, but too long for the context
    draft_saved = Signal(int, object)  # session and message, which is stored: the draft can be cleared

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._controller = controller
        self._workbench = controller.workbench
        self._sending: list[Sending] = []  # until they are stored
        self.sent: set[int] = set()  # sessions to which this window has sent a message
        controller.watch(lambda session_id: any(each.session_id == session_id for each in self._sending))

    def send(self, text: str, replaces: int | None = None) -> None:
        """Sends a message, or another version of the user's turn `replaces`; the draft stays until `draft_saved`."""
        shown = self._controller.shown
        if shown is not None and not self._controller.running:
            self._controller.drafts.drop_score()
            sending = Sending(shown.session_id, text)
            self._sending.append(sending)
            self.sent.add(shown.session_id)
            self._controller.activity_changed.emit()
            self._controller.tasks.run(self._send(sending, replaces))

    def stop(self) -> None:
        shown = self._controller.shown
        if shown is not None:
            for sending in self._sending:
                sending.stopped |= sending.session_id == shown.session_id
            self._workbench.answers.stop(shown.session_id)

    def branch(self, node_id: int, index: int, token_id: int, refused: Callable[[str], None] | None = None) -> None:
        self._controller.ask(lambda session: self._workbench.answers.branch(session, node_id, index, token_id), refused)

    def write(self, node_id: int, index: int, text: str, refused: Callable[[str], None]) -> None:
        """Starts a branch with these words in place of token `index`; `refused` gets the text of a refusal."""
        self._controller.ask(lambda session: self._workbench.answers.write(session, node_id, index, text), refused)

    def tokenise(self, text: str) -> None:
        """Tokenises words that are being typed, to prepare `write`."""
        self._controller.ask_latest("tokenise", lambda _session: self._workbench.answers.tokenise(text), ignore_refusal)

    def answer_call(self, node_id: int, results: Sequence[str]) -> None:
        self._controller.ask(lambda session: self._workbench.answers.answer_call(session, node_id, results))

    def regenerate(self, node_id: int | None = None) -> None:
        """Generates another answer beside the given or the last one."""
        self._of_answer(self._workbench.answers.regenerate, node_id)

    def regenerate_exactly(self, node_id: int | None = None) -> None:
        """Repeats the given or the last answer with its own seed, model and options."""
        self._of_answer(self._workbench.answers.regenerate_exactly, node_id)

    def continue_turn(self, node_id: int | None = None) -> None:
        """Continues the given or the last answer."""
        self._of_answer(self._workbench.answers.continue_turn, node_id)

    def _of_answer(self, command: Callable[[int, int], Coroutine[Any, Any, None]], node_id: int | None) -> None:
        shown = self._controller.shown
        answer = shown.last_answer if shown is not None else None
        target = node_id if node_id is not None or answer is None else answer.node_id
        if target is not None:
            self._controller.ask(lambda session: command(session, target))

    def open_as_text(self, node_id: int) -> None:
        self._controller.ask(lambda session: self._workbench.answers.open_as_text(session, node_id))

    def how_made(self, node_id: int) -> Made | None:
        shown = self._controller.shown
        return None if shown is None else self._workbench.answers.how_made(shown.session_id, node_id)

    def saved(self, session_id: int) -> None:
        """The message is stored: later refusals concern its answer."""
        for sending in [each for each in self._sending if each.session_id == session_id]:
            self._sending.remove(sending)
            self.draft_saved.emit(session_id, sending.text)
            if sending.stopped:
                self._workbench.answers.stop(session_id)

    def go_on_in_copy(self, source_id: int, copy_id: int) -> None:
        """Moves messages that are not stored yet from the sample to its copy."""
        for sending in self._sending:
            if sending.session_id == source_id:
                sending.session_id = copy_id
        self.copied.emit(source_id, copy_id)

    async def _send(self, sending: Sending, replaces: int | None) -> None:
        try:
            await self._workbench.answers.send(sending.session_id, sending.text, replaces)
            session_id = sending.session_id  # the copy's, if it was sent to the sample
            self.saved(session_id)
            self._controller.events.flush()
            shown = self._controller.shown
            if shown is not None and shown.session_id == session_id and shown.view.turns and shown.view.turns[-1].overflowed:
                self.did_not_fit.emit(session_id, sending.text)
        finally:
            if sending in self._sending:
                self._sending.remove(sending)
            self._controller.activity_changed.emit()
