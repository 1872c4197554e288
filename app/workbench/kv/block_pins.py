"""Keeps the KV of pinned sessions in the block file, however much other sessions save."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from app.supervisor import Supervisor
from app.workbench.background import BackgroundTasks
from runtime import EngineDiedError, LanguageModel, RuntimeFault, block_keys
from storage import SessionStore, StoreError

log = logging.getLogger(__name__)
Uses = Sequence[str | tuple[str, float]] | None  # adapters as a request names them
PIN: Final = "sessions"  # one pin for all sessions: replacing it also drops those unpinned or deleted


@dataclass(eq=False, repr=False)
class BlockPins:
    """Pins the blocks of pinned sessions in the engine, which owns the block file. The window's loop only."""

    _store: SessionStore  # pinned sessions and their tokens
    _supervisor: Supervisor
    _tasks: BackgroundTasks
    _keys: dict[int, dict[bytes, None]] = field(default_factory=dict, init=False)  # keys of blocks, by pinned session
    _refreshing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _pinned_in: LanguageModel | None = field(default=None, init=False)  # the last model that got the pins

    def __post_init__(self) -> None:
        self._supervisor.subscribe(self._started)

    def changed(self) -> None:
        """Updates the pins in the background, after a session was pinned or unpinned."""
        self._tasks.start(self.refresh(), "pin KV")

    def _started(self) -> None:
        model = self._supervisor.running
        if model is not None and model is not self._pinned_in:
            self._pinned_in = model
            self.changed()

    async def refresh(self) -> None:
        """Pins exactly the blocks of the sessions that are pinned now."""
        from app.portable_kv import keys_of  # the window opens without it

        async with self._refreshing:  # one at a time, so that the last refresh has the newest list
            model = self._supervisor.running
            if model is None or not model.info.options.get("blocks"):
                return
            try:
                pinned = [row.id for row in await self._store.sessions() if row.pinned]
                known = {number: keys for number, keys in self._keys.items() if number in pinned}
                for number in pinned:
                    if number not in known:
                        known[number] = dict.fromkeys(await keys_of(self._store, number))
            except StoreError as fault:
                log.info("the KV of pinned sessions is not held: %s", fault)
                return
            self._keys = known
            await self._pin(model)

    @property
    def any(self) -> bool:
        """Whether the KV of any session is pinned."""
        return any(self._keys.values())

    async def saved(self, model: LanguageModel, session_id: int, adapters: Uses, ids: Sequence[int]) -> None:
        """Pins a path that was just saved, if its session is pinned; `adapters` are those that it was computed under."""
        async with self._refreshing:
            keys, ends = self._keys.get(session_id), (len(ids), len(ids) - 1)
            if keys is None:
                return
            try:
                uses = model.info.uses_under(adapters)
            except RuntimeFault as fault:  # an adapter was unloaded meanwhile
                log.info("the KV of a pinned session is not held: %s", fault)
                return
            keys |= dict.fromkeys(block_keys(model.info.kv_fingerprint, ids, ends, uses))
            await self._pin(model)

    async def _pin(self, model: LanguageModel) -> None:
        try:
            await model.pin_blocks_async(PIN, [key for keys in self._keys.values() for key in keys])
        except EngineDiedError:
            await self._supervisor.died(model)
        except RuntimeFault as fault:
            log.info("the KV of pinned sessions is not held: %s", fault)
