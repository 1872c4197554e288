"""Copies of a path's KV in parts, out of the trie and into it, each part between two steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from runtime.aio import ignore
from runtime.backends.stored import Stored, concatenated, nbytes
from runtime.errors import MemoryBudgetError
from runtime.kv.packing import as_arrays, taken_out
from runtime.kv.snapshot import SnapshotPart
from runtime.kv.trie import Lease, Span
from runtime.records import Scores
from runtime.scheduler.jobs import Job
from runtime.scheduler.kv.prefix_cache import PrefixCache

PART_BYTES = 12 << 20  # of one part, which has at least one token


@dataclass(slots=True)
class Exported:
    """Copies of consecutive tokens of a path, one part per edge."""

    arrays: list[Stored] = field(default_factory=list)
    scores: list[tuple[int, Scores | None]] = field(default_factory=list)  # each with its number of tokens

    def joined(self) -> Stored:
        """All arrays by name, concatenated."""
        kv = concatenated(self.arrays) if len(self.arrays) > 1 else self.arrays[0]
        return {**kv, **as_arrays(self.scores)}


def export(cache: PrefixCache, spans: Sequence[Span], start: int, stop: int) -> Exported | None:
    """Copies tokens `start` to `stop` of a path; None if they are not in the trie.

    Raises:
        MemoryBudgetError: The device is full.
    """
    found, at = Exported(), 0
    nodes = cache.trie.walk(spans)
    with cache.trie.hold(nodes):  # a full device evicts unleased nodes during a copy
        for node, count in nodes:
            first, last = max(start - at, 0), min(stop - at, count)
            if first < last:
                found.arrays.append(cache.kv_budget.payloads.export(node.payload, first, last))
                found.scores.append((last - first, None if node.scores is None else node.scores[first:last]))
            at += count
            if at >= stop:
                return found
    return None


class Copying:
    """The copying of one path; a lease pins the tokens copied so far. Owner thread only.

    Args:
        cache: Source or target.
        job: The path.
        lease: A lease on the path's part in the trie; released by `close`.
        tokens: Number of tokens of that part.
        restored: Called with the number of tokens that a part has added.
    """

    def __init__(
        self, cache: PrefixCache, job: Job, lease: Lease, tokens: int = 0, restored: Callable[[int], None] = ignore
    ) -> None:
        self._cache, self._job, self._lease, self.tokens, self._restored = cache, job, lease, tokens, restored
        self._at = 0

    @classmethod
    def of(cls, cache: PrefixCache, job: Job) -> Self:
        """Copies the cached part of a path."""
        nodes = cache.trie.walk(job.spans(job.ids))
        return cls(cache, job, cache.trie.hold(nodes), sum(count for _, count in nodes))

    def next_part(self) -> SnapshotPart | None:
        """The next tokens under one namespace; None at the end.

        Raises:
            MemoryBudgetError: No room for the copy, or the path was dropped.
        """
        if self._at >= self.tokens:
            return None
        backend, job = self._cache.backend, self._job
        at, namespace = self._at, job.namespace_at(self._at)
        ends = [end for end, _ in job.before if end > at]
        stop = min(self.tokens, at + max(PART_BYTES // max(backend.info.kv_bytes_per_token, 1), 1), *ends[:1])
        if not self._cache.kv_budget.make_room((stop - at) * backend.info.kv_bytes_per_token + backend.state_bytes):
            raise MemoryBudgetError("no room to copy KV: raise kv_cache_bytes (`set_kv_budget`) or end another request")
        exported = export(self._cache, job.spans(job.ids), at, stop)
        if exported is None:
            raise MemoryBudgetError("the cache was cleared while a snapshot was written; try again")
        self._at = stop
        return SnapshotPart(at, stop, namespace, exported.joined())

    def add(self, part: SnapshotPart) -> bool:
        """Inserts a part into the trie; False without room for it, or after the cache was cleared."""
        lease, backend, kv_budget = self._lease, self._cache.backend, self._cache.kv_budget
        if not self._cache.enabled or lease.length != part.start or not kv_budget.make_room(nbytes(part.arrays)):
            return False
        kv, scores = taken_out(part.arrays, part.stop - part.start)
        payload = backend.restore(kv)
        ids = self._job.ids[part.start : part.stop]
        found = self._cache.trie.insert(lease, part.namespace, ids, payload, scores)
        self._restored(found.stored)
        return not found.refused

    def close(self) -> None:
        self._lease.release()
