"""KV that outlives the process; see `runtime.members.blocks`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Final

from runtime.adapters.uses import Adapters
from runtime.blocks.snapshot import SnapshotWriter, open_snapshot
from runtime.errors import InvalidRequestError, MemoryBudgetError, UnsupportedFeatureError
from runtime.members.blocks import BlocksSaved
from runtime.model.queries import QueryMembers
from runtime.options.checking import check_path, is_whole
from runtime.scheduler.blocks.blocks import Blocks
from runtime.scheduler.blocks.copying import Copying
from runtime.scheduler.jobs import Job, settle

COPIED_AT_ONCE: Final = 32  # blocks: what somebody who reads waits for


class BlockMembers(QueryMembers):
    """`save_blocks`, `kv_snapshot`, `kv_restore` and their twins."""

    def save_blocks(self, ids: Sequence[int], *, adapters: Adapters = None, replaces: int | None = None) -> BlocksSaved:
        """Blocking."""
        return self._save(ids, adapters, replaces).result()

    async def save_blocks_async(
        self, ids: Sequence[int], *, adapters: Adapters = None, replaces: int | None = None
    ) -> BlocksSaved:
        """Awaited."""
        return await asyncio.wrap_future(self._save(ids, adapters, replaces))

    def copy_blocks(self, keys: Sequence[bytes], path: str | Path) -> int:
        """Blocking."""
        blocks, target = self._blocks(), check_path(path)
        return sum(blocks.copy(part, target).result() for part in _parts(keys))

    async def copy_blocks_async(self, keys: Sequence[bytes], path: str | Path) -> int:
        """Awaited."""
        blocks, target, copied = self._blocks(), check_path(path), 0
        for part in _parts(keys):
            copied += await asyncio.wrap_future(blocks.copy(part, target))
        return copied

    def take_blocks(self, keys: Sequence[bytes], path: str | Path) -> int:
        """Blocking."""
        blocks, source = self._blocks(), check_path(path)
        return sum(blocks.take(part, source).result() for part in _parts(keys))

    async def take_blocks_async(self, keys: Sequence[bytes], path: str | Path) -> int:
        """Awaited."""
        blocks, source, taken = self._blocks(), check_path(path), 0
        for part in _parts(keys):
            taken += await asyncio.wrap_future(blocks.take(part, source))
        return taken

    def pin_blocks(self, name: str, keys: Sequence[bytes]) -> None:
        """Blocking."""
        self._blocks().pin(name, keys).result()

    async def pin_blocks_async(self, name: str, keys: Sequence[bytes]) -> None:
        """Awaited."""
        await asyncio.wrap_future(self._blocks().pin(name, keys))

    def kv_snapshot(self, ids: Sequence[int], path: str | Path, *, adapters: Adapters = None) -> int:
        """Blocking."""
        target, job = check_path(path), self._whole_path(ids, adapters)
        self.cache_kv(ids, adapters=adapters)
        copying: Copying = self._engine.call(lambda: Copying.of(self._engine.scheduler.cache, job)).result()
        try:
            if copying.tokens < len(job.ids):
                raise MemoryBudgetError(
                    f"{len(job.ids):,} tokens do not stay in the KV budget, {copying.tokens:,} do; raise kv_cache_bytes "
                    "(set_kv_budget)"
                )
            with SnapshotWriter(target, job.ids, job.spans(job.ids), self.info) as file:
                while (part := self._engine.call(copying.next_part).result()) is not None:
                    file.add(part)
            return file.nbytes
        finally:
            self._engine.call(copying.close).result()

    async def kv_snapshot_async(self, ids: Sequence[int], path: str | Path, *, adapters: Adapters = None) -> int:
        """Off the loop."""
        return await asyncio.to_thread(self.kv_snapshot, ids, path, adapters=adapters)

    def kv_restore(self, path: str | Path, upto: int | None = None) -> int:
        """Blocking."""
        if upto is not None and not is_whole(upto, 1):
            raise InvalidRequestError(f"upto counts tokens, 1 or more, not {upto!r}")
        with open_snapshot(check_path(path), self.info) as snapshot:
            job = Job(self._check(snapshot.ids), snapshot.spans[-1][0], before=snapshot.before)
            limit = len(job.ids) if upto is None else min(upto, len(job.ids))
            cache = self._engine.scheduler.cache
            counters = self._engine.scheduler.counters

            def restored(tokens: int) -> None:
                counters.tokens_restored += tokens

            copying: Copying = self._engine.call(lambda: Copying(cache, job, cache.trie.lookup([]), restored=restored)).result()
            try:
                for part in snapshot.parts(limit):
                    if not self._engine.call(partial(copying.add, part)).result():
                        break
            finally:
                self._engine.call(copying.close).result()
            return self._engine.call(lambda: cache.going_on(job, limit)).result()

    async def kv_restore_async(self, path: str | Path, upto: int | None = None) -> int:
        """Off the loop."""
        return await asyncio.to_thread(self.kv_restore, path, upto)

    def _whole_path(self, ids: Sequence[int], adapters: Adapters) -> Job:
        checked = self._check(ids)
        namespace, before = self._route(checked, adapters)
        return Job(checked, namespace, before=before)

    def _blocks(self) -> Blocks:
        if self._options.blocks is None or not self._options.cache:
            what = "blocks" if self._options.blocks is None else "a cache"
            raise UnsupportedFeatureError(f"the model was loaded without {what}: there is no block file")
        return self._engine.scheduler.blocks

    def _save(self, ids: Sequence[int], adapters: Adapters, replaces: int | None = None) -> Future[BlocksSaved]:
        job = self._whole_path(ids, adapters)
        if replaces is not None and not (is_whole(replaces, 1) and replaces <= len(job.ids)):
            raise InvalidRequestError(f"replaces counts leading tokens of the path, 1 to {len(job.ids):,}, not {replaces!r}")
        self._blocks()
        answer: Future[BlocksSaved] = Future()

        def begin() -> None:
            self._engine.scheduler.blocks.save(job, answer, replaces)

        def told(done: Future[None]) -> None:
            error = None if done.cancelled() else done.exception()
            if error is not None:
                settle(answer, error=error)

        self._engine.call(begin).add_done_callback(told)
        return answer


def _parts(keys: Sequence[bytes]) -> list[Sequence[bytes]]:
    return [keys[at : at + COPIED_AT_ONCE] for at in range(0, len(keys), COPIED_AT_ONCE)]
