"""What the engine has computed goes into its block file after each turn, in the background."""

from __future__ import annotations

import asyncio
import logging

from app.supervisor import Supervisor
from app.workbench.answer import Answer
from runtime import EngineDiedError, LanguageModel, RuntimeFault
from ui import Refusal

log = logging.getLogger(__name__)


class Keeper:
    """Asks the engine to save the paths of answers that have ended. All members belong to the window's loop.

    Args:
        supervisor: Gives the model, if it runs.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._saving: dict[int, asyncio.Task[None]] = {}  # by session
        self._next: dict[int, Answer] = {}  # that ended while an earlier one of their session was saved

    def keep(self, answer: Answer) -> None:
        """Saves the path of an answer that has ended; never waits."""
        model = answer.model
        if model is None or model is not self._supervisor.running or not model.info.options.get("blocks"):
            return
        session_id = answer.session.id
        if session_id in self._saving:
            self._next[session_id] = answer
            return
        task = asyncio.create_task(self._save(model, answer), name=f"keep session {session_id}")
        self._saving[session_id] = task
        task.add_done_callback(lambda _: self._ended(session_id))

    async def close(self, seconds: float) -> None:
        """Waits for what is being saved, for so long; the rest is dropped: it is a cache."""
        if self._saving:
            await asyncio.wait(list(self._saving.values()), timeout=seconds)
        self._next.clear()
        tasks = list(self._saving.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, session_id: int) -> None:
        del self._saving[session_id]
        answer = self._next.pop(session_id, None)
        if answer is not None:
            self.keep(answer)

    async def _save(self, model: LanguageModel, answer: Answer) -> None:
        session = answer.session
        try:
            ids = session.path_ids(session.tree.path(answer.node_id))
        except Refusal as refusal:  # part of it is not read; it is a cache
            log.info("session %d was not kept: %s", session.id, refusal)
            return
        if not ids or len(ids) > model.info.context_length:
            return
        try:
            saved = await model.save_blocks_async(ids, adapters=answer.options.adapters)
        except EngineDiedError:
            await self._supervisor.died(model)
        except RuntimeFault as fault:
            log.info("session %d was not kept: %s", session.id, fault)
        else:
            log.debug("session %d: %s", session.id, saved)
