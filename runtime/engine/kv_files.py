"""Operations on KV in files: the block file, and snapshots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Final

from runtime.adapters.uses import Adapters
from runtime.aio import off_loop, settled
from runtime.api.checks import RequestChecks
from runtime.engine.operations import Operations
from runtime.engine.owner import Engine
from runtime.errors import MemoryBudgetError, UnsupportedFeatureError
from runtime.info import BlocksSaved
from runtime.kv.snapshot import SnapshotWriter, open_snapshot
from runtime.kv.store import BlockStore
from runtime.options.load import LoadOptions
from runtime.records import Int32
from runtime.scheduler.jobs import Job
from runtime.scheduler.kv.blocks import Blocks
from runtime.scheduler.kv.copying import Copying

COPIED_AT_ONCE: Final = 32  # blocks; a waiting restore goes first between two batches


class KvFiles:
    """Moves KV between memory and files."""

    def __init__(self, engine: Engine, operations: Operations, options: LoadOptions) -> None:
        self._engine, self._operations, self._options = engine, operations, options

    def save_blocks(self, ids: Int32, adapters: Adapters, replaces: int | None) -> Future[BlocksSaved]:
        """Writes a path's blocks."""
        job = self._operations.path(ids, adapters)
        blocks = self._blocks()
        answer: Future[BlocksSaved] = Future()
        return self._operations.settling(answer, lambda: blocks.save(job, answer, replaces))

    async def copy_blocks(self, keys: Sequence[bytes], path: str) -> int:
        """Copies blocks into another file; returns their number."""
        return await self._in_parts(keys, lambda part, store: store.copy_to(Path(path), part))

    async def take_blocks(self, keys: Sequence[bytes], path: str) -> int:
        """Copies blocks from another file; returns their number."""
        return await self._in_parts(keys, lambda part, store: store.take_from(Path(path), part))

    def pin_blocks(self, name: str, keys: Sequence[bytes]) -> Future[int]:
        """Keeps blocks in the file under a name."""

        def hold(store: BlockStore) -> int:
            store.pin(name, keys)
            return len(keys)

        return self._blocks().write(hold)

    async def kv_snapshot(self, ids: Int32, path: str, adapters: Adapters) -> int:
        """Writes a snapshot; returns its bytes."""
        await self._operations.cache_kv(ids, adapters)
        return await off_loop(self._write, self._operations.path(ids, adapters), Path(path))

    async def kv_restore(self, path: str, upto: int | None) -> int:
        """Reads a snapshot; returns the number of its tokens that are in memory now."""
        return await off_loop(self._read, Path(path), upto)

    def _write(self, job: Job, target: Path) -> int:
        copying: Copying = self._engine.call(lambda: Copying.of(self._engine.scheduler.cache, job)).result()
        try:
            if copying.tokens < len(job.ids):
                raise MemoryBudgetError(
                    f"{len(job.ids):,} tokens do not stay in the KV budget, {copying.tokens:,} do; raise kv_cache_bytes "
                    "(`set_kv_budget`)"
                )
            info = self._operations.info
            with SnapshotWriter(target, job.ids, job.spans(job.ids), info) as file:
                while (part := self._engine.call(copying.next_part).result()) is not None:
                    file.add(part)
            return file.nbytes
        finally:
            self._engine.call(copying.close).result()

    def _read(self, source: Path, upto: int | None) -> int:
        info = self._operations.info
        with open_snapshot(source, info) as snapshot:
            ids = RequestChecks(info.vocab_size, info.context_length).ids(snapshot.ids)
            job = Job(ids, snapshot.spans[-1][0], before=snapshot.before)
            limit = len(ids) if upto is None else min(upto, len(ids))
            cache, counters = self._engine.scheduler.cache, self._engine.scheduler.counters

            def restored(tokens: int) -> None:
                counters.tokens_restored += tokens

            copying: Copying = self._engine.call(lambda: Copying(cache, job, cache.trie.lookup([]), restored=restored)).result()
            try:
                for part in snapshot.parts(limit):
                    if not self._engine.call(partial(copying.add, part)).result():
                        break
            finally:
                self._engine.call(copying.close).result()
            return self._engine.call(lambda: cache.reusable(job, limit)).result()

    async def _in_parts(self, keys: Sequence[bytes], act: Callable[[Sequence[bytes], BlockStore], int]) -> int:
        """Runs `act` on the block thread for a few blocks at a time; returns the sum."""
        blocks = self._blocks()
        parts = [keys[at : at + COPIED_AT_ONCE] for at in range(0, len(keys), COPIED_AT_ONCE)]
        return sum([await settled(blocks.write(partial(act, part))) for part in parts])

    def _blocks(self) -> Blocks:
        if self._options.blocks is None or not self._options.cache:
            what = "blocks" if self._options.blocks is None else "a cache"
            raise UnsupportedFeatureError(f"the model was loaded without {what}: there is no block file")
        return self._engine.scheduler.blocks
