"""The KV of pinned sessions stays in the block file, however much others save."""

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
PIN: Final = "sessions"  # one pin for all: it is replaced, so unpinned and deleted sessions leave it


@dataclass(eq=False, repr=False)
class BlockPins:
    """Names the blocks of pinned sessions to the engine, which alone has the block file; on the window's loop."""

    _store: SessionStore  # knows which sessions are pinned, and their tokens
    _supervisor: Supervisor  # gives the model, if it runs
    _tasks: BackgroundTasks  # tell the engine in the background
    _keys: dict[int, dict[bytes, None]] = field(default_factory=dict, init=False)  # of pinned sessions
    _telling: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _told: LanguageModel | None = field(default=None, init=False)  # the last model that heard of them

    def __post_init__(self) -> None:
        self._supervisor.subscribe(self._started)

    def changed(self) -> None:
        """Other sessions are pinned than before, some time soon the engine hears of it."""
        self._tasks.start(self.refresh(), "pin KV")

    def _started(self) -> None:
        model = self._supervisor.running
        if model is not None and model is not self._told:
            self._told = model
            self.changed()

    async def refresh(self) -> None:
        """The blocks of the sessions that are pinned now stay, and no others."""
        async with self._telling:  # one after the other: the last one read the list last
            await self._refresh()

    async def _refresh(self) -> None:
        from app.portable_kv import keys_of  # the window opens without it

        model = self._supervisor.running
        if not _has_blocks(model):
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
        await self._tell(model)

    @property
    def any(self) -> bool:
        """Whether the KV of any session is pinned."""
        return any(self._keys.values())

    async def saved(self, model: LanguageModel, session_id: int, adapters: Uses, ids: Sequence[int]) -> None:
        """A path of a session was saved that was computed under adapters; where that session is pinned, it stays."""
        async with self._telling:
            keys, ends = self._keys.get(session_id), (len(ids), len(ids) - 1)
            if keys is None:
                return
            try:
                uses = model.info.uses_under(adapters)
            except RuntimeFault as fault:  # one was unloaded meanwhile
                log.info("the KV of a pinned session is not held: %s", fault)
                return
            keys |= dict.fromkeys(block_keys(model.info.kv_fingerprint, ids, ends, uses))
            await self._tell(model)

    async def _tell(self, model: LanguageModel | None) -> None:
        assert model is not None  # it has blocks
        try:
            await model.pin_blocks_async(PIN, [key for keys in self._keys.values() for key in keys])
        except EngineDiedError:
            await self._supervisor.died(model)
        except RuntimeFault as fault:
            log.info("the KV of pinned sessions is not held: %s", fault)


def _has_blocks(model: LanguageModel | None) -> bool:
    return model is not None and bool(model.info.options.get("blocks"))
