"""Saving KV to the block file: copied by the owner thread in short slices; joined, hashed and written by the block thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from runtime.backends.stored import nbytes
from runtime.errors import BlockFileError, MemoryBudgetError
from runtime.info import BlocksSaved
from runtime.kv.chain import BLOCK_TOKENS, BlockCell, Link, cells
from runtime.kv.packing import pack
from runtime.kv.store import Block, BlockStore
from runtime.kv.thread import Urgency
from runtime.kv.trie import Node, Span
from runtime.scheduler.faults import typed
from runtime.scheduler.jobs import Job, settle
from runtime.scheduler.kv.copying import Exported, export
from runtime.scheduler.kv.prefix_cache import PrefixCache
from runtime.scheduler.metrics import EngineCounters

BATCH_BYTES = 12 << 20  # per transaction; at least one block
MAX_UNWRITTEN = 2  # batches that are copied and not written yet

Written = tuple[int, int, int]  # blocks written, bytes written, leading tokens of the path in the file


@dataclass(slots=True, eq=False)
class Saving:
    """One path that is being saved."""

    spans: list[Span]
    future: Future[BlocksSaved]
    links: list[Link]
    superseded: list[bytes]
    todo: deque[Link] = field(default_factory=deque)
    unwritten: deque[Link] = field(default_factory=deque)  # the first of each batch copied and not written yet
    blocked: bool = False  # no room for the next copy before a batch is written
    checked: bool = False
    written: int = 0
    bytes: int = 0
    no_room: bool = False
    lost: int | None = None  # tokens in the block file, if the path could not be written to its end
    started: float = field(default_factory=time.monotonic)
    engine_seconds: float = 0.0

    @property
    def due(self) -> bool:
        """Whether a block can be copied now."""
        return bool(self.todo) and not self.blocked and len(self.unwritten) < MAX_UNWRITTEN

    def lose(self, at: int) -> None:
        """Stops saving: at most the first `at` tokens are in the block file."""
        self.todo.clear()
        self.lost = at if self.lost is None else min(at, self.lost)


class Savings:
    """The running saves. Owner thread only.

    Args:
        cache: The source.
        counters: Counts the work done.
        ask: See `Blocks.ask`.
        failed: See `Blocks.failed`.
    """

    def __init__(
        self, cache: PrefixCache, counters: EngineCounters, ask: Callable[..., None], failed: Callable[[BaseException], None]
    ) -> None:
        self._cache, self._counters, self._ask, self._failed = cache, counters, ask, failed
        self._running: list[Saving] = []

    @property
    def due(self) -> bool:
        """Whether any block can be copied now."""
        return any(saving.due for saving in self._running)

    def begin(self, job: Job, future: Future[BlocksSaved], replaces: int | None = None) -> None:
        """Saves the cached part of a path; removes the short last block of its first `replaces` tokens, saved before."""
        started = time.monotonic()
        nodes = self._cache.trie.walk(job.spans(job.ids))
        held = sum(count for _, count in nodes)
        spans = job.spans(job.ids[:held])
        grid = cells(spans)
        saving = Saving(spans, future, self._links(grid, nodes), [], started=started)
        if not saving.links:
            settle(future, BlocksSaved(0, 0, 0, 0, 0.0, 0.0))
            return
        if replaces is not None and not self._cache.recurrent:
            ended = (cell for cell in grid if cell.start < replaces < cell.start + len(cell.ids))
            saving.superseded = [cell.link(replaces - cell.start).key for cell in ended]
        self._running.append(saving)
        saving.engine_seconds += time.monotonic() - started
        links = saving.links

        def missing(store: BlockStore) -> list[Link]:
            plain = [link for link in links if not link.state]
            there = {link.key for link in plain[: store.leading([link.key for link in plain])]}
            return [link for link in links if link.key not in there and not (link.state and store.leading([link.key]))]

        self._ask(Urgency.WRITE, missing, lambda done: self._guard(saving, partial(self._on_checked, saving, done)))

    def step(self, until: float) -> None:
        """Copies blocks until the time `until`; at least one batch."""
        for saving in list(self._running):
            while saving.due:
                started = time.monotonic()
                self._guard(saving, partial(self._cut_batch, saving, until))
                now = time.monotonic()
                saving.engine_seconds += now - started
                if now >= until:
                    return

    def fail_all(self) -> None:
        """Ends all saves because the model is being closed; copied batches are still written."""
        for saving in list(self._running):
            if not saving.checked:
                saving.lose(0)
            elif left := [*saving.unwritten, *saving.todo]:
                saving.lose(left[0].start)
            self._finish(saving)

    def _links(self, grid: Sequence[BlockCell], nodes: Sequence[tuple[Node, int]]) -> list[Link]:
        """All blocks of a path, parents before children."""
        if not self._cache.recurrent or not grid:
            return [cell.link() for cell in grid]
        links = [cell.link() for cell in grid if len(cell.ids) == BLOCK_TOKENS or cell is not grid[-1]]
        ends, at = set[int](), 0
        for node, count in nodes:
            at += count
            if count == len(node.tokens) and node.resumable:
                ends.add(at)
        for cell in grid:
            links += [cell.link(end - cell.start, state=True) for end in sorted(ends) if 0 < end - cell.start <= len(cell.ids)]
        return sorted(links, key=lambda link: (link.start, link.state, link.stop))

    def _on_checked(self, saving: Saving, done: Future[list[Link]]) -> None:
        saving.checked = True
        if error := done.exception():
            self._failed(error)
            saving.lose(0)
            if isinstance(error, BlockFileError):
                settle(saving.future, error=error)
        else:
            saving.todo.extend(done.result())
        self._end(saving)

    def _cut_batch(self, saving: Saving, until: float) -> None:
        """Gives the block thread the next batch, as far as there is time to copy it."""
        if saving.future.cancelled():
            saving.lose(saving.todo[0].start)
            self._end(saving)
            return
        batch: list[tuple[Link, Exported]] = []
        size = 0
        while saving.todo and (not batch or (size < BATCH_BYTES and time.monotonic() < until)):
            link = saving.todo[0]
            cut = self._cut(saving, link, size)
            if cut is None:  # not in memory any more, or no room for its copy
                saving.blocked = bool(batch or saving.unwritten)  # tried again after a batch is written
                if not saving.blocked:
                    saving.lose(link.start)
                break
            batch.append((link, cut))
            size += sum(map(nbytes, cut.arrays))
            saving.todo.popleft()
        if batch:
            self._cache.kv_budget.in_transfer += size
            saving.unwritten.append(batch[0][0])
            superseded = [] if saving.todo or saving.lost is not None else saving.superseded
            wrote = partial(self._wrote, saving, size, batch[-1][0])
            write = partial(_write, batch, superseded, saving.links)
            self._ask(Urgency.WRITE, write, lambda done: self._guard(saving, partial(wrote, done)))
        else:
            self._end(saving)

    def _cut(self, saving: Saving, link: Link, pending: int) -> Exported | None:
        """A copy of a block; None if it is not in memory, or without room for it and `pending` other bytes."""
        backend = self._cache.backend
        needed = link.tokens * backend.info.kv_bytes_per_token + link.state * backend.state_bytes
        if not self._cache.kv_budget.make_room(pending + needed):
            return None
        try:
            exported = export(self._cache, saving.spans, link.start, link.stop)
        except MemoryBudgetError:  # the device is full
            return None
        if exported is None or (link.state and not any(name.startswith("state") for name in exported.arrays[-1])):
            return None
        if not link.state:
            exported.arrays = [
                {name: a for name, a in part.items() if not name.startswith("state")} for part in exported.arrays
            ]
        return exported

    def _wrote(self, saving: Saving, size: int, last: Link, done: Future[Written]) -> None:
        self._cache.kv_budget.in_transfer -= size
        first = saving.unwritten.popleft()
        saving.blocked = False
        if error := done.exception():
            self._failed(error)
            saving.lose(first.start)
        else:
            written, nbytes_written, held = done.result()
            if held < last.stop:
                saving.lose(held)
                saving.no_room = True
            saving.written += written
            saving.bytes += nbytes_written
            self._counters.blocks_saved += written
            self._counters.block_bytes_saved += nbytes_written
        self._end(saving)

    def _guard(self, saving: Saving, act: Callable[[], None]) -> None:
        """Runs `act`; an error ends this save only, and its copied batches are still written."""
        at = saving.todo[0].start if saving.todo else 0
        try:
            act()
        except BaseException as error:  # noqa: BLE001  # the border to a model's library (a native panic is no Exception)
            saving.lose(at)
            self._failed(typed(error))
            self._end(saving)

    def _end(self, saving: Saving) -> None:
        if saving.checked and not saving.todo and not saving.unwritten and saving in self._running:
            self._counters.publish(self._cache)
            self._finish(saving)

    def _finish(self, saving: Saving) -> None:
        self._running.remove(saving)
        tokens = saving.links[-1].stop if saving.lost is None and saving.links else saving.lost or 0
        seconds = time.monotonic() - saving.started
        settle(
            saving.future,
            BlocksSaved(
                len(saving.links), saving.written, tokens, saving.bytes, seconds, saving.engine_seconds, saving.no_room
            ),
        )


def _write(
    batch: Sequence[tuple[Link, Exported]], superseded: Sequence[bytes], links: Sequence[Link], store: BlockStore
) -> Written:
    """Writes a batch; block thread only."""
    blocks: list[Block] = []
    for link, exported in batch:
        blocks.append(Block(link.key, link.parent, link.tokens, pack(exported.joined(), {"key": link.key.hex()})))
    written = store.put(blocks, superseded=superseded)
    total = sum(len(part) for block in blocks for part in block.data)
    held = batch[-1][0].stop if written == len(blocks) else _held(links, store)
    return written, total * written // max(len(blocks), 1), held


def _held(links: Sequence[Link], store: BlockStore) -> int:
    """The number of leading tokens of a path in the file, after a block was not kept; block thread only."""
    plain = [link for link in links if not link.state]
    there = store.leading([link.key for link in plain])
    held = plain[there - 1].stop if there else 0
    ends = (link.stop for link in links if link.state and link.start <= held < link.stop and store.leading([link.key]))
    return max(ends, default=held)
