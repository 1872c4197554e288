"""KV into the block file: cut on the owner thread in short slices, joined, hashed and written on the block thread."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from runtime.backends.stored import Stored, concatenated, nbytes
from runtime.blocks.chain import BLOCK_TOKENS, Cell, Link, cells
from runtime.blocks.packing import pack
from runtime.blocks.scores import as_arrays
from runtime.blocks.store import Block, BlockStore
from runtime.blocks.thread import Urgency
from runtime.members.blocks import BlocksSaved
from runtime.records import Scores
from runtime.scheduler.cache import Cache
from runtime.scheduler.counters import Counters
from runtime.scheduler.jobs import Job, settle
from runtime.trie import Node, Span

BATCH_BYTES = 12 << 20  # in one transaction; one block at least
AFLOAT = 2  # batches that were cut and are not written yet
TIPS = 4096  # ends of paths that are remembered

Parts = tuple[Link, list[Stored], list[Scores | None]]


@dataclass(slots=True, eq=False)
class Saving:
    """One path on its way into the block file."""

    spans: list[Span]
    future: Future[BlocksSaved]
    links: list[Link]
    superseded: list[bytes]
    todo: deque[Link] = field(default_factory=deque)
    afloat: int = 0  # batches
    looked: bool = False
    written: int = 0
    bytes: int = 0
    lost: int | None = None  # where the path ends in the block file, if it could not be written to its end
    started: float = field(default_factory=time.monotonic)
    engine_seconds: float = 0.0


class Savings:
    """The saves that run. Owner thread only.

    Args:
        cache: What is saved.
        counters: What was done.
        ask: Has the block thread do something, and tells the owner thread how it went.
        failed: Hears of a store that cannot do it.
        recurrent: Whether state is saved where a payload ends with one.
    """

    def __init__(
        self,
        cache: Cache,
        counters: Counters,
        ask: Callable[..., None],
        failed: Callable[[BaseException], None],
        *,
        recurrent: bool,
    ) -> None:
        self._cache, self._counters, self._ask, self._failed, self._recurrent = cache, counters, ask, failed, recurrent
        self._running: list[Saving] = []
        self._tips: OrderedDict[tuple[bytes | None, object], set[int]] = OrderedDict()  # lengths of short blocks, by cell

    @property
    def due(self) -> bool:
        """Whether anything can be cut now."""
        return any(saving.todo and saving.afloat < AFLOAT for saving in self._running)

    def begin(self, job: Job, future: Future[BlocksSaved]) -> None:
        """Saves what is in memory of a path."""
        started = time.monotonic()
        nodes = self._cache.trie.walk(job.spans(job.ids))
        held = sum(count for _, count in nodes)
        spans = job.spans(job.ids[:held])
        grid = cells(spans)
        saving = Saving(spans, future, self._links(grid, nodes), [], started=started)
        if not saving.links:
            settle(future, BlocksSaved(0, 0, 0, 0, 0.0, 0.0))
            return
        if not self._recurrent:
            saving.superseded = self._outgrown(grid)
        self._running.append(saving)
        saving.engine_seconds += time.monotonic() - started
        links = saving.links

        def missing(store: BlockStore) -> list[Link]:
            plain = [link for link in links if not link.state]
            there = {link.key for link in plain[: store.leading([link.key for link in plain])]}
            return [link for link in links if link.key not in there and not (link.state and store.leading([link.key]))]

        self._ask(Urgency.WRITE, missing, partial(self._looked, saving))

    def step(self, until: float) -> None:
        """Cuts blocks until the clock says `until`; one at least."""
        for saving in list(self._running):
            while saving.todo and saving.afloat < AFLOAT:
                started = time.monotonic()
                self._cut_batch(saving, until)
                now = time.monotonic()
                saving.engine_seconds += now - started
                if now >= until:
                    return

    def fail_all(self) -> None:
        """The model is being closed: what was cut is still written, and nobody waits for more."""
        for saving in list(self._running):
            saving.todo.clear()
            self._finish(saving)

    def _links(self, grid: Sequence[Cell], nodes: Sequence[tuple[Node, int]]) -> list[Link]:
        """All blocks of a path, parents before children."""
        if not self._recurrent or not grid:
            return [cell.link() for cell in grid]
        links = [cell.link() for cell in grid if len(cell.ids) == BLOCK_TOKENS or cell is not grid[-1]]
        ends, at = set[int](), 0
        for node, count in nodes:
            at += count
            if count == len(node.tokens) and self._cache.backend.payload_resumable(node.payload):
                ends.add(at)
        for cell in grid:
            links += [cell.link(end - cell.start, state=True) for end in sorted(ends) if 0 < end - cell.start <= len(cell.ids)]
        return sorted(links, key=lambda link: (link.start, link.state, link.stop))

    def _outgrown(self, grid: Sequence[Cell]) -> list[bytes]:
        """Shorter blocks that this process wrote or read where the path has longer ones now."""
        gone: list[bytes] = []
        for cell in grid:
            place = cell.parent, cell.namespace
            lengths = self._tips.get(place)
            shorter = (length for length in sorted(lengths or ()) if length < len(cell.ids))
            gone.extend(cell.link(length).key for length in shorter)  # of another path through this cell: a key nobody has
        return gone

    def note_tip(self, link: Link) -> None:
        """A path ends here in the block file: when it grows, this block is outgrown."""
        if link.tokens < BLOCK_TOKENS and not link.state:
            self._tips.setdefault((link.parent, link.namespace), set()).add(link.tokens)
            self._tips.move_to_end((link.parent, link.namespace))
            if len(self._tips) > TIPS:
                self._tips.popitem(last=False)

    def _looked(self, saving: Saving, done: Future[list[Link]]) -> None:
        saving.looked = True
        if error := _fault(done):
            self._failed(error)
            saving.lost = 0
        else:
            saving.todo.extend(done.result())
        self._end(saving)

    def _cut_batch(self, saving: Saving, until: float) -> None:
        """Hands the block thread the next blocks, as many as belong into one batch and as there is time for."""
        if saving.future.cancelled():
            saving.lost = saving.todo[0].start
            saving.todo.clear()
            self._end(saving)
            return
        batch: list[Parts] = []
        size = 0
        while saving.todo and (not batch or (size < BATCH_BYTES and time.monotonic() < until)):
            link = saving.todo[0]
            parts = self._cut(saving, link, size)
            if parts is None:  # it is not in memory any more, or there is no room for a copy of it
                if not batch and saving.afloat:
                    return  # perhaps when what is being written is gone
                saving.lost = link.start
                saving.todo.clear()
                break
            batch.append(parts)
            size += sum(nbytes(part) for part in parts[1])
            saving.todo.popleft()
        if batch:
            self._cache.room.afloat += size
            saving.afloat += 1
            superseded = [] if saving.todo or saving.lost is not None else saving.superseded
            self._ask(Urgency.WRITE, partial(_write, batch, superseded), partial(self._wrote, saving, size, batch[0][0]))
        else:
            self._end(saving)

    def _cut(self, saving: Saving, link: Link, beside: int) -> Parts | None:
        """A copy of what a block holds; None where it is not in memory, or no room is left beside `beside` other bytes."""
        backend = self._cache.backend
        needed = link.tokens * backend.info.kv_bytes_per_token + link.state * backend.state_bytes
        if not self._cache.make_room(beside + needed):
            return None
        arrays: list[Stored] = []
        scores: list[Scores | None] = []
        at = 0
        for node, count in self._cache.trie.walk(saving.spans):
            first, last = max(link.start - at, 0), min(link.stop - at, count)
            if first < last:
                arrays.append(backend.export(node.payload, first, last))
                scores.append(None if node.scores is None else node.scores[first:last])
            at += count
            if at >= link.stop:
                break
        if at < link.stop or (link.state and not any(name.startswith("state") for name in arrays[-1])):
            return None
        if not link.state:
            arrays = [{name: array for name, array in part.items() if not name.startswith("state")} for part in arrays]
        return link, arrays, scores

    def _wrote(self, saving: Saving, size: int, first: Link, done: Future[tuple[int, int]]) -> None:
        self._cache.room.afloat -= size
        saving.afloat -= 1
        if error := _fault(done):
            self._failed(error)
            saving.todo.clear()
            saving.lost = first.start if saving.lost is None else min(first.start, saving.lost)
        else:
            written, nbytes_written = done.result()
            saving.written += written
            saving.bytes += nbytes_written
            self._counters.blocks_saved += written
            self._counters.block_bytes_saved += nbytes_written
        self._end(saving)

    def _end(self, saving: Saving) -> None:
        if saving.looked and not saving.todo and not saving.afloat and saving in self._running:
            if saving.lost is None:
                self.note_tip(saving.links[-1])
            self._counters.publish(self._cache)
            self._finish(saving)

    def _finish(self, saving: Saving) -> None:
        self._running.remove(saving)
        tokens = saving.links[-1].stop if saving.lost is None and saving.links else saving.lost or 0
        seconds = time.monotonic() - saving.started
        settle(
            saving.future,
            BlocksSaved(len(saving.links), saving.written, tokens, saving.bytes, seconds, saving.engine_seconds),
        )


def _write(batch: Sequence[Parts], superseded: Sequence[bytes], store: BlockStore) -> tuple[int, int]:
    """On the block thread: how many blocks and bytes were written."""
    blocks: list[Block] = []
    for link, parts, scores in batch:
        arrays = {**(concatenated(parts) if len(parts) > 1 else parts[0]), **as_arrays(scores)}
        blocks.append(Block(link.key, link.parent, link.tokens, pack(arrays, {"key": link.key.hex()})))
    written = store.put(blocks, superseded=superseded)
    total = sum(len(part) for block in blocks for part in block.data)
    return written, total * written // max(len(blocks), 1)


def _fault(done: Future[object] | Future[list[Link]] | Future[tuple[int, int]]) -> BaseException | None:
    if done.cancelled():
        return OSError("the model was closed")
    return done.exception()
