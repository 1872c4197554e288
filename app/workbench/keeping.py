"""What the engine has computed goes into its block file after each turn, in the background."""

from __future__ import annotations

import asyncio
import logging

from app.supervisor import Supervisor
from app.workbench.answer import Answer
from app.workbench.pinning import BlockPins
from runtime import EngineDiedError, LanguageModel, RuntimeFault
from ui import Refusal

log = logging.getLogger(__name__)


class Keeper:
    """Asks the engine to save the paths of answers that have ended. All members belong to the window's loop.

    Args:
        supervisor: Gives the model, if it runs.
        pins: Hears of what was saved.
    """

    def __init__(self, supervisor: Supervisor, pins: BlockPins) -> None:
        self._supervisor = supervisor
        self._pins = pins
        self._saving: dict[int, asyncio.Task[None]] = {}  # by session
        self._next: dict[int, list[Answer]] = {}  # that ended while an earlier one of their session was saved
        self._ends: dict[int, dict[int, int]] = {}  # tokens of the paths that were saved, by session and last node

    def keep(self, answer: Answer) -> None:
        """Saves the path of an answer that has ended; never waits."""
        model = answer.model
        if model is None or model is not self._supervisor.running or not model.info.options.get("blocks"):
            return
        session_id = answer.session.id
        if session_id in self._saving:
            self._next.setdefault(session_id, []).append(answer)
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
        for answer in self._next.pop(session_id, []):  # one is saved, the others wait again
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
            replaces = self._replaced(answer)
            saved = await model.save_blocks_async(ids, adapters=answer.options.adapters, replaces=replaces)
        except EngineDiedError:
            await self._supervisor.died(model)
        except RuntimeFault as fault:
            log.info("session %d was not kept: %s", session.id, fault)
        else:
            self._ends.setdefault(session.id, {})[answer.node_id] = len(ids)
            log.debug("session %d: %s", session.id, saved)
            await self._pins.saved(model, session.id, ids)

    def _replaced(self, answer: Answer) -> int | None:
        """Where an earlier save of this session ended on the answer's path: nobody goes on from there but through it.

        What other sessions have saved stays: they may end there.
        """
        ends, session = self._ends.get(answer.session.id, {}), answer.session
        path = session.tree.path(answer.node_id)
        for at in range(len(path) - 1, 0, -1):
            end = ends.get(path[at - 1].node.id)
            if end is not None and end == len(session.path_ids(path[:at])):
                return end
        return None
