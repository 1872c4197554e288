"""The answers in work, one for each session: claimed, stopped, and their ends made known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from app.workbench.answers.answer import Answer
from app.workbench.refusals import BUSY
from app.workbench.setup.adapters import Adapters
from app.workbench.tree.session import OpenSession, WholeSession
from runtime import GenerationOptions
from storage import SessionStore, StoreError
from ui import AdapterChoice, Refusal, translate

OnNote = Callable[[str], None]  # takes a note for all answers that were made side by side
OnEnd = Callable[[Sequence[Answer], OnNote | None], None]


class RunningAnswers:
    """Locks each session while an answer is made in it, until everything about the answer is written.

    Args:
        store: Where answers are written.
        adapters: An answer keeps those on its stack to its end.

    Attributes:
        on_end: Listeners, each called with answers that have ended and are written: one, or those of one place.
    """

    def __init__(self, store: SessionStore, adapters: Adapters) -> None:
        self._store = store
        self._adapters = adapters
        self._by_session: dict[int, Answer] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.on_end: list[OnEnd] = []

    def __len__(self) -> int:
        """How many there are."""
        return len(self._by_session)

    def __iter__(self) -> Iterator[Answer]:
        """Those of now."""
        return iter(tuple(self._by_session.values()))

    def __contains__(self, session_id: int) -> bool:
        """Whether an answer is made in that session."""
        return session_id in self._by_session

    @contextmanager
    def claim(self, session: WholeSession) -> Iterator[Answer]:
        """Locks a session for one answer.

        Raises:
            Refusal: It is locked for another one.
        """
        self.check_idle(session.id)
        answer = self._by_session[session.id] = Answer(session)
        self._idle.clear()
        try:
            yield answer
        finally:
            del self._by_session[session.id]
            if not self._by_session:
                self._idle.set()
            self._adapters.drop(("answer", session.id))
            self._adapters.free(answer.stack or ())

    def take_stack(self, answer: Answer, stack: tuple[AdapterChoice, ...] | None) -> None:
        """The adapters of an answer, which stay loaded to its end."""
        answer.stack = stack
        self._adapters.use(("answer", answer.session.id), stack or ())

    def report_end(self, answers: Sequence[Answer], note_all: OnNote | None = None) -> None:
        """Tells the listeners."""
        for listener in self.on_end:
            listener(answers, note_all)

    def check_idle(self, session_id: int) -> None:
        """Refuses where an answer is in work."""
        if session_id in self._by_session:
            raise Refusal(translate("Workbench", BUSY))

    def options_of(self, node_id: int) -> GenerationOptions | None:
        """How the answer is drawn that is being written into a node; None where none is."""
        at_work = (one for answer in self for one in (answer, *answer.strands))
        return next((one.options for one in at_work if one.node_id == node_id), None)

    async def ended(self) -> None:
        """Returns when no answer is in work."""
        await self._idle.wait()

    def stop(self, session_id: int) -> None:
        """Ends a stream; what arrived is kept."""
        answer = self._by_session.get(session_id)
        if answer is not None:
            answer.stopping = True
            if answer.task is not None:
                answer.task.cancel()

    async def settle(self, session: OpenSession) -> None:
        """Writes what could not be written at the end of an answer.

        Raises:
            Refusal: It still cannot be written.
        """
        ending = session.unsaved
        if ending is None:
            return
        try:
            await ending.save(self._store)
        except StoreError as fault:
            raise Refusal(
                translate("Workbench", "{0}. The answer on the screen is not saved yet; make room, then try again").format(
                    fault
                )
            ) from fault
        session.unsaved = None
        session.states.pop(ending.node_id, None)
        session.notes.pop(ending.node_id, None)
