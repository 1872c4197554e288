"""Saves the KV of each ended answer into the engine's block file, in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from app.supervisor import Supervisor
from app.workbench.answers.answer import Answer, OnNote, RunningAnswers
from app.workbench.kv.block_pins import BlockPins
from app.workbench.windows import Windows
from runtime import EngineDiedError, LanguageModel, RuntimeFault
from storage import SessionStore, StoreError
from ui import Refusal, translate

log = logging.getLogger(__name__)


class BlockSaver:
    """Asks the engine to save the paths of answers that have ended. All members belong to the window's loop."""

    def __init__(
        self, store: SessionStore, supervisor: Supervisor, running: RunningAnswers, pins: BlockPins, windows: Windows
    ) -> None:
        self._store = store
        self._supervisor = supervisor
        self._pins = pins
        self._windows = windows
        self._saving: dict[int, asyncio.Task[None]] = {}  # by session
        self._next: dict[int, list[Answer]] = {}  # by session: answers that wait for a save under way
        self._ends: dict[int, dict[int, int]] = {}  # tokens of saved paths, by session and last node
        running.on_end.append(self._save_all)

    def _save_all(self, answers: Sequence[Answer], _note_all: OnNote | None) -> None:
        for answer in answers:
            self.save(answer)

    def save(self, answer: Answer) -> None:
        """Begins to save the path of an ended answer; never waits."""
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
        """Waits at most `seconds` for the saves; drops the rest, since the file is a cache."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._saving and (left := deadline - loop.time()) > 0:  # the end of a save may begin the next one
            await asyncio.wait(list(self._saving.values()), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # lets `_ended` run
        self._next.clear()
        tasks = list(self._saving.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, session_id: int) -> None:
        del self._saving[session_id]
        for answer in self._next.pop(session_id, []):  # saves the first; the others wait again
            self.save(answer)

    async def _save(self, model: LanguageModel, answer: Answer) -> None:
        session = answer.session
        try:
            ids = session.path_ids(session.tree.path(answer.node_id))
        except Refusal as refusal:  # the path is unread or damaged: nothing is saved
            log.info("session %d was not kept: %s", session.id, refusal)
            return
        if not ids or len(ids) > model.info.context_length:
            return
        try:
            ends = await self._ends_of(session.id)
            node, replaces = self._replaced(answer, ends)
            saved = await model.save_blocks_async(ids, adapters=answer.options.adapters, replaces=replaces)
        except EngineDiedError:
            await self._supervisor.died(model)
        except RuntimeFault as fault:
            log.info("session %d was not kept: %s", session.id, fault)
        else:
            log.debug("session %d: %s", session.id, saved)
            await self._remember(session.id, ends, answer.node_id, saved.tokens, replaced=node)
            await self._pins.saved(model, session.id, answer.options.adapters, ids)
            self._set_note(model, no_room=saved.no_room)

    def _set_note(self, model: LanguageModel, *, no_room: bool) -> None:
        """Sets or clears the status note about a full block file."""
        blocks = model.info.options.get("blocks")
        budget = blocks.get("budget") if isinstance(blocks, Mapping) else None
        if self._pins.any:
            why = translate("Workbench", "pinned sessions fill it")
        else:
            why = translate("Workbench", "this session alone is larger")
        limit = translate("Workbench", "; it is {0:.1f} GB").format(budget / 1e9) if isinstance(budget, int) else ""
        note = translate(
            "Workbench",
            "not all of this session's KV is kept on disk: {0}. Unpin a session, or raise KV on disk (Settings > Memory{1})",
        ).format(why, limit)
        note = note if no_room else ""
        if self._windows.disk_note != note:
            self._windows.disk_note = note
            log.info("KV on disk: %s", note or "there is room again")
            self._windows.refresh_status()

    async def _ends_of(self, session_id: int) -> dict[int, int]:
        """The token counts of a session's saved paths by last node, read from the store once."""
        ends = self._ends.get(session_id)
        if ends is None:
            try:
                ends = await self._store.saved_ends(session_id)
            except StoreError as fault:  # an obsolete short block stays
                log.info("where session %d was saved is not known: %s", session_id, fault)
                ends = {}
            ends = self._ends.setdefault(session_id, ends)
        return ends

    async def _remember(
        self, session_id: int, ends: dict[int, int], node_id: int, tokens: int, *, replaced: int | None
    ) -> None:
        """Records a saved path, which replaced the short block at the end of the node `replaced`."""
        ends[node_id] = tokens
        if replaced is not None:
            ends.pop(replaced, None)
        try:
            await self._store.set_saved_ends(session_id, ends)
        except StoreError as fault:
            log.info("where session %d was saved is not kept: %s", session_id, fault)

    def _replaced(self, answer: Answer, ends: Mapping[int, int]) -> tuple[int | None, int | None]:
        """The node and the token at which an earlier save of this session ended on the answer's path.

        The new path replaces that save's short last block. Blocks of other sessions stay, which may end there.
        """
        session = answer.session
        path = session.tree.path(answer.node_id)
        for at in range(len(path) - 1, 0, -1):
            segment, end = path[at - 1], ends.get(path[at - 1].node.id)
            if end is None or (segment.stop is not None and segment.stop < session.runs.length(segment.node.id)):
                continue  # nothing was saved there, or for another path
            length = len(session.path_ids(path[:at]))
            if end in (length, length - 1):  # one less: the last drawn token had no KV
                return segment.node.id, end
        return None, None
