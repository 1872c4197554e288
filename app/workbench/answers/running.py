"""Which sessions are kept by an answer in work: one each, until everything about it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.workbench.answers.answer import Answer
from app.workbench.refusals import BUSY
from app.workbench.tree.session import OpenSession
from runtime import GenerationOptions
from storage import SessionStore, StoreError
from ui import Refusal, translate


class Claims:
    """The answers in work, and the ends of answers that could not be written.

    Args:
        store: Where they are written.
        on_end: Hears of an answer that needs nothing more.
    """

    def __init__(self, store: SessionStore, on_end: Callable[[Answer], None]) -> None:
        self._store = store
        self._on_end = on_end
        self.running: dict[int, Answer] = {}  # by session
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def claim(self, session: OpenSession) -> Iterator[Answer]:
        """Keeps a session for one answer, until everything about it is written.

        Raises:
            Refusal: It is kept for another one.
        """
        self.check_idle(session.id)
        answer = self.running[session.id] = Answer(session)
        self._idle.clear()
        try:
            yield answer
        finally:
            del self.running[session.id]
            if not self.running:
                self._idle.set()
            self._on_end(answer)

    def use_adapter(self, folder: str) -> bool:
        """Whether one of them has it on its stack."""
        return any(choice.folder == folder for answer in self.running.values() for choice in answer.stack or ())

    def check_idle(self, session_id: int) -> None:
        """Refuses where an answer is in work."""
        if session_id in self.running:
            raise Refusal(translate("Workbench", BUSY))

    def options_of(self, node_id: int) -> GenerationOptions | None:
        """How the answer is drawn that is being written into a node; None where none is."""
        at_work = (one for answer in self.running.values() for one in (answer, *answer.strands))
        return next((one.options for one in at_work if one.node_id == node_id), None)

    async def ended(self) -> None:
        """Returns when no answer is in work."""
        await self._idle.wait()

    def stop(self, session_id: int) -> None:
        """Ends a stream; what arrived is kept."""
        answer = self.running.get(session_id)
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
