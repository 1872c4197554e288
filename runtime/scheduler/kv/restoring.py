"""Restoring KV from the block file: read and verified by the block thread, inserted by the owner thread.

A restore is a prefill whose cursor moves by blocks read. Blocks come in batches: while one is inserted, the next is read.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from runtime.backends.stored import Stored, concatenated, count
from runtime.errors import MemoryBudgetError, SnapshotFormatError
from runtime.kv.chain import BlockCell, Link, cells
from runtime.kv.packing import joined, taken_out, unpack
from runtime.kv.store import BlockStore
from runtime.kv.thread import Urgency
from runtime.kv.trie import Namespace, Span, common_prefix
from runtime.records import Scores
from runtime.scheduler.faults import typed
from runtime.scheduler.jobs import Job
from runtime.scheduler.kv.prefix_cache import PrefixCache
from runtime.scheduler.metrics import EngineCounters
from runtime.scheduler.prefill.prefill import Prefill

log = logging.getLogger(__name__)
LEAST = 16  # tokens; fewer are computed as fast
BATCH_BYTES = 12 << 20  # at least one block
AHEAD = 2  # batches read or requested, and not inserted yet

Read = tuple[Link, Stored, Scores | None]


@dataclass(slots=True, eq=False)
class Restore:
    """One path that is being restored."""

    prefill: Prefill  # its cursor
    limit: int  # wanted tokens of the path
    links: deque[Link] = field(default_factory=deque)  # blocks not requested yet
    asked: int = 0  # batches requested
    ended: bool = False  # no more are requested


class Restores:
    """The running restores. Owner thread only.

    Args:
        cache: The target.
        counters: Counts the work done.
        ask: See `Blocks.ask`.
        failed: See `Blocks.failed`.

    Attributes:
        due: Whether `step` has anything to do: a restore was dropped, and others may wait for it.
        complete: Cursors of jobs after their restore, which the caller takes and leaves.
    """

    def __init__(
        self,
        cache: PrefixCache,
        counters: EngineCounters,
        ask: Callable[..., None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._cache, self._counters, self._ask, self._failed = cache, counters, ask, failed
        self._running: list[Restore] = []
        self._followers: list[Prefill] = []  # jobs that wait for another job's restore of their path
        self.due = False
        self.complete: deque[Prefill] = deque()

    @property
    def cursors(self) -> list[Prefill]:
        """The cursors of all jobs that wait for a restore."""
        return [*(restore.prefill for restore in self._running), *self._followers, *self.complete]

    def worth_reading(self, job: Job) -> bool:
        """Whether enough reusable KV of a path is missing to look into the block file."""
        last = len(job.ids) - 1
        return not job.blocks_checked and last >= LEAST and last - self._cache.reusable(job, last) >= LEAST

    def begin(self, prefill: Prefill) -> None:
        """Looks up the path's next blocks; the cursor is in `complete` once they are restored.

        The last token is pushed in any case. A block may end with it, but not a recurrent checkpoint, which has no way back.
        """
        recurrent = self._cache.recurrent
        limit = prefill.total - recurrent
        for other in self._running:
            if common_prefix(other.prefill.tagged[: other.limit], prefill.tagged[:limit]) >= prefill.at + LEAST:
                self._followers.append(prefill)
                return
        prefill.job.blocks_checked = True
        restore = Restore(prefill, limit)
        self._running.append(restore)
        spans, beyond = prefill.job.spans(prefill.job.ids[:limit]), prefill.at + LEAST - 1

        def look(store: BlockStore) -> list[Link]:
            return reach(store, spans, recurrent=recurrent, beyond=beyond)

        self._ask(Urgency.READ, look, lambda done: self._guard(restore, partial(self._found, restore, done)))

    def drop(self, prefill: Prefill) -> None:
        """Drops a cancelled job; the caller leaves its cursor."""
        for waiting in (self._followers, self.complete):
            if prefill in waiting:
                waiting.remove(prefill)
                return
        restore = next(one for one in self._running if one.prefill is prefill)
        restore.ended = True
        self._running.remove(restore)
        self.due = True

    def step(self) -> None:
        """Continues the jobs that waited for a dropped restore."""
        if self.due:
            self.due = False
            self._release_followers()

    def _guard(self, restore: Restore, act: Callable[[], None]) -> None:
        """Runs `act`; an error ends the restore, and the job computes the rest."""
        try:
            act()
        except BaseException as error:  # noqa: BLE001  # the border to a model's library (a native panic is no Exception)
            restore.ended = True
            self._failed(typed(error))
            if restore in self._running and not restore.asked:
                self._end(restore)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def _found(self, restore: Restore, done: Future[list[Link]]) -> None:
        if restore not in self._running:
            return
        if error := done.exception():
            self._failed(error)
            self._end(restore)
            return
        links = self._fitting(restore, done.result())
        if not links:
            self._end(restore)
            return
        start = restore.prefill.lease.length
        restore.links.extend(link for link in links if link.stop > start)
        self._read_on(restore)

    def _fitting(self, restore: Restore, links: Sequence[Link]) -> list[Link]:
        """The blocks for which there is room besides the path in its workspace; with recurrent layers, all or none."""
        prefill, backend, kv_budget = restore.prefill, self._cache.backend, self._cache.kv_budget
        growth = kv_budget.growth_cost(prefill.workspace, prefill.workspace.held + prefill.total - prefill.at)
        per_token = max(backend.info.kv_bytes_per_token, 1)
        in_use = kv_budget.bytes - kv_budget.workspaces.idle_bytes - kv_budget.trie.evictable_bytes
        read_ahead = min(AHEAD * BATCH_BYTES, sum(link.tokens for link in links) * per_token)
        spare = kv_budget.budget - in_use - growth - read_ahead
        most = prefill.lease.length + max(spare, 0) // per_token
        fitting = [link for link in links if link.stop <= most]
        if self._cache.recurrent and len(fitting) < len(links):
            return []
        return fitting if fitting and fitting[-1].stop > prefill.at else []

    def _read_on(self, restore: Restore) -> None:
        backend, kv_budget = self._cache.backend, self._cache.kv_budget
        while restore.links and restore.asked < AHEAD and not restore.ended:
            batch: list[Link] = []
            size = 0
            while restore.links and (not batch or size < BATCH_BYTES):
                link = restore.links.popleft()
                batch.append(link)
                size += link.tokens * backend.info.kv_bytes_per_token + link.state * backend.state_bytes
            if not self._cache.kv_budget.make_room(size):
                restore.ended = True
                break
            kv_budget.in_transfer += size
            restore.asked += 1
            arrived = partial(self._arrived, restore, size, len(batch))
            self._ask(Urgency.READ, partial(_read, batch), lambda done, act=arrived: self._guard(restore, partial(act, done)))
        if restore.asked == 0:
            self._end(restore)

    def _arrived(self, restore: Restore, size: int, asked: int, done: Future[list[Read]]) -> None:
        restore.asked -= 1
        try:
            if restore not in self._running:
                return
            error = done.exception()
            blocks = [] if error else done.result()
            if error:
                self._failed(error)
            if not restore.ended:
                restore.ended = not self._place(restore, blocks) or len(blocks) < asked
        except (MemoryBudgetError, SnapshotFormatError, KeyError, ValueError) as fault:  # the job computes the rest
            log.warning("stored KV could not be restored: %s", fault)
            restore.ended = True
        finally:
            self._cache.kv_budget.in_transfer -= size
        self._read_on(restore)

    # ---- placing ----------------------------------------------------------------------------------------------------

    def _place(self, restore: Restore, blocks: Sequence[Read]) -> bool:
        """Inserts blocks into the trie and loads them into the workspace; False without room for more."""
        prefill = restore.prefill
        for namespace, group in groupby(blocks, key=lambda read: read[0].namespace):
            before, length = prefill.lease.node, prefill.lease.length
            if not self._hang(prefill, namespace, list(group)):
                return False
            missing = prefill.lease.length - prefill.at
            if missing > 0:
                prefill.workspace.reserve(missing, prefill.slot)
                if prefill.lease.length <= prefill.at:  # making room released the lease
                    return False
                try:
                    prefill.slot, prefill.at = prefill.workspace.load(prefill.lease, prefill.slot, prefill.at)
                except BaseException:  # drops the node: the next job would fail with it too
                    bad = prefill.lease.node
                    prefill.lease.move(before, length)
                    self._cache.trie.drop(bad)
                    raise
                prefill.reused = prefill.at
                if prefill.job.on_progress is not None:
                    prefill.job.on_progress(prefill.progress)
        return True

    def _hang(self, prefill: Prefill, namespace: Namespace, blocks: Sequence[Read]) -> bool:
        """Inserts blocks of one namespace at the end of the lease."""
        lease, first, last = prefill.lease, blocks[0][0], blocks[-1][0]
        at = lease.length
        if not lease.node.attached or not first.start <= at < last.stop:
            return False
        backend, kv_budget = self._cache.backend, self._cache.kv_budget
        size = sum(link.tokens for link, _, _ in blocks) * backend.info.kv_bytes_per_token + backend.state_bytes
        if not kv_budget.make_room(size if at == first.start else 2 * size) or lease.length != at:
            return False
        payload = backend.restore(concatenated([arrays for _, arrays, _ in blocks]))
        scores = joined([(link.tokens, known) for link, _, known in blocks])
        if at > first.start:
            payload = kv_budget.payloads.split(payload, at - first.start)[1]
            scores = None if scores is None else scores[at - first.start :]
        found = self._cache.trie.insert(lease, namespace, prefill.job.ids[at : last.stop], payload, scores)
        self._counters.tokens_restored += found.stored
        return not found.refused

    def _end(self, restore: Restore) -> None:
        restore.ended = True
        self._running.remove(restore)
        self._counters.publish(self._cache)
        self.complete.append(restore.prefill)
        self._release_followers()

    def _release_followers(self) -> None:
        self.complete.extend(self._followers)
        self._followers.clear()


def _read(links: Sequence[Link], store: BlockStore) -> list[Read]:
    """The blocks up to the first that is missing, damaged or filed under a wrong key; block thread only."""
    found: list[Read] = []
    for link, data in zip(links, store.get([link.key for link in links]), strict=False):
        try:
            arrays, metadata = unpack(data)
            kv, scores = taken_out(arrays, link.tokens)
            if metadata.get("key") != link.key.hex() or count(kv) != link.tokens:
                raise SnapshotFormatError("it stands under another's name")
        except SnapshotFormatError as fault:
            log.warning("a stored block is left out: %s", fault)
            break
        found.append((link, kv, scores))
    return found


def reach(store: BlockStore, spans: Sequence[Span], *, recurrent: bool, beyond: int = 0) -> list[Link]:
    """The blocks of the longest stored prefix of a path; block thread only.

    The last one may be shorter than 64 tokens, where a saved path ended. With recurrent layers the prefix ends at the deepest
    checkpoint.

    Args:
        store: The block file; blocks found are marked as just used.
        spans: The path.
        recurrent: Whether generation resumes only from a checkpoint.
        beyond: The result is empty if the prefix has at most this many tokens, since it is of no use then.
    """
    grid = cells(spans)
    links = [cell.link() for cell in grid]
    held = store.leading([link.key for link in links])
    if not recurrent:
        found = links[:held]
        if held < len(grid):
            tip = _ended(store, grid[held], beyond, state=False, tokens=len(grid[held].ids) - 1)
            found += [] if tip is None else [tip]
        return found if found and found[-1].stop > beyond else []
    for at in range(min(held, len(grid) - 1), -1, -1):
        cell = grid[at]
        if cell.start + len(cell.ids) <= beyond:
            break
        tip = _ended(store, cell, beyond, state=True, tokens=len(cell.ids))
        if tip is not None:
            return [*links[:at], tip]
    return []


def _ended(store: BlockStore, cell: BlockCell, beyond: int, *, state: bool, tokens: int) -> Link | None:
    """The longest stored block of a cell, of at most `tokens`."""
    for held in range(tokens, max(beyond - cell.start, 0), -1):
        link = cell.link(held, state=state)
        if store.leading([link.key]):
            return link
    return None
