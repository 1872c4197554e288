"""The cache: the trie, the workspaces and the distributions, under one byte budget."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.adapters.stacks import Tags, stack_of
from runtime.backends.base import ROOT, Payload
from runtime.backends.packs.packed import Backend
from runtime.errors import MemoryBudgetError
from runtime.info import CacheReport, EdgeReport
from runtime.kv.eviction_log import Lost
from runtime.kv.trie import Lease, Namespace, Node, Trie
from runtime.numerics.scoring import empty_scores
from runtime.records import Int32, Scores
from runtime.scheduler.decode.rows import narrow
from runtime.scheduler.jobs import Job, ScoreJob
from runtime.scheduler.kv.kv_budget import KvBudget
from runtime.scheduler.kv.workspace import NOTHING, NoRoomError, SlotRun, Workspace
from runtime.scheduler.prefill.prefill import Prefill

log = logging.getLogger(__name__)
LARGEST_EDGES = 20  # listed in a report
TAIL_TOKENS = 8  # last tokens of an edge that a report shows
SHORT_TAIL = 64  # tokens
INTERRUPTED_BYTES = 64 << 20


class PrefixCache:
    """KV, scores and distributions of one backend; owner thread only.

    Args:
        backend: Splits, loads and weighs KV.
        budget: Bytes for everything together.
        enabled: False: nothing is reused.

    Attributes:
        recurrent: Whether generation resumes only from a checkpoint.
        kv_budget: The budget's accounting.
        departures: Jobs that have left.
        hits, misses: Placed paths with and without a prefix in the trie.
    """

    def __init__(self, backend: Backend, budget: int, *, enabled: bool) -> None:
        self.backend = backend
        self.enabled = enabled
        self.recurrent = "recurrent" in backend.info.attention_kinds
        self.kv_budget = KvBudget(backend, budget, enabled=enabled)
        self.trie = self.kv_budget.trie
        self.vectors = self.kv_budget.vectors
        self.workspaces = self.kv_budget.workspaces
        self.copied_tails: dict[tuple[Workspace, int, int], Payload] = {}  # not published yet, by last slot and token count
        self.pins = self.kv_budget.pins
        self.interrupted = Interrupted(INTERRUPTED_BYTES if enabled else 0)  # outside the budget
        self._last: LastRequest | None = None
        self._largest: tuple[EdgeReport, ...] = ()
        self.departures = 0
        self.hits = self.misses = 0
        self.before = backend.forwards, backend.pushed  # counts of the self-test

    def check_room(self, tokens: int) -> None:
        """Raises `MemoryBudgetError` for a path that exceeds the budget."""
        needed = tokens * self.backend.slot_bytes + self.backend.state_bytes
        if needed > self.kv_budget.budget:
            raise MemoryBudgetError(
                f"{tokens:,} tokens need {needed:,} bytes of KV, the budget is {self.kv_budget.budget:,}; "
                "raise kv_cache_bytes (`set_kv_budget`) or shorten the text"
            )

    def place(self, job: Job, first_wanted: int) -> Prefill:
        """Places a job in a workspace and loads the cached part of its path, up to token `first_wanted`."""
        ids = job.ids[:first_wanted]
        tags = self.workspaces.tags
        if tags.several:
            tags.shrink(self._numbers)
        tag = 0 if job.namespace == tags.base else tags.tag(job.namespace)
        tagged = self.tagged(job, job.ids) if tag or job.before else job.ids
        lease = self.trie.lookup(job.spans(ids))
        if not job.counted:  # a job may be placed again, after a restore or after it was parked
            job.counted = True
            self.hits, self.misses = self.hits + (lease.length > 0), self.misses + (lease.length == 0)
        clock, node = self.trie.eviction_log.clock, lease.node
        workspace: Workspace | None = None
        try:
            alone, reach, live = not self.enabled, lease.length, self.kv_budget.live
            workspace, trail = self.workspaces.place(tagged, alone=alone, reach=reach, live=live, node=node)
            slot, depth = self._load_prefix(workspace, trail, first_wanted, lease)
        except BaseException:  # no memory: nothing stays pinned
            lease.release()
            if workspace is not None:
                self.workspaces.leave(workspace, drop=not self.enabled)
            raise
        matched = max(lease.matched, depth)
        path = Job(job.ids, job.namespace, before=job.before)
        self._last = LastRequest(path, first_wanted, depth, matched, clock, self.enabled, node)
        prefill = Prefill(
            job,
            workspace,
            lease,
            slot,
            depth,
            first_wanted,
            last_only=not isinstance(job, ScoreJob),
            total=len(job.ids),
            reused=depth,
            tagged=tagged,
            tag=tag,
        )
        self.kv_budget.live.add(prefill)
        count = len(job.ids) - depth
        if workspace.held + count > workspace.capacity:
            try:
                self.kv_budget.hint(workspace, count)
            except BaseException:  # the library failed: nothing stays pinned
                self.leave(prefill)
                raise
        return prefill

    def join(self, prefill: Prefill, job: Job) -> Prefill:
        """Places a job at the same slot of the same workspace as `prefill`, without a copy."""
        lease = self.trie.lookup(job.spans(job.ids))
        job.order = prefill.job.order
        prefill.workspace.users += 1
        joined = replace(
            prefill,
            job=job,
            lease=lease,
            first_wanted=prefill.at,
            last_only=True,
            reused=prefill.at,
            computed=0,
            chunk=None,
            rows=[],
            refused=0,
        )
        self.kv_budget.live.add(joined)
        return joined

    def place_apart(self, job: Job) -> Prefill:
        """Places a job in an empty pack that no other job joins and that `leave` frees."""
        workspace, _ = self.workspaces.place(NOTHING, alone=True)
        workspace.retired = True
        lease = Lease(self.trie, self.trie.root)
        prefill = Prefill(job, workspace, lease, ROOT, 0, first_wanted=0, last_only=True, total=len(job.ids))
        self.retag(prefill)
        self.kv_budget.live.add(prefill)
        return prefill

    def answered(self, job: Job) -> None:
        """Notes for the report that a job was answered only from the cache."""
        path, n = Job(job.ids, job.namespace, before=job.before), len(job.ids)
        self._last = LastRequest(path, n, n, n, 0, self.enabled, self.trie.root)

    def regain(self, prefill: Prefill, ids: Int32) -> tuple[int, int]:
        """Loads what is cached of `ids` for a job that lost its place: the slot and the tokens up to it.

        Recurrent state moves on with the job that appends, so that a second job at the same slot loses its place.
        """
        prefill.lease.release()
        prefill.lease = self.trie.lookup(prefill.job.spans(ids))
        trail = prefill.workspace.trail(self.tagged(prefill.job, ids))
        return self._load_prefix(prefill.workspace, trail, len(ids), prefill.lease)

    def retag(self, prefill: Prefill) -> None:
        """Tags the path again after the job's adapters have changed."""
        prefill.tagged = self.tagged(prefill.job, prefill.job.ids)
        prefill.tag = self.workspaces.tags.tag(prefill.job.namespace)

    def _numbers(self) -> set[int]:
        """The numbers of the namespaces with tokens in packs, or in paths of running jobs."""
        tagged = [np.append(prefill.tagged, np.int64(prefill.tag)) >> Tags.SHIFT for prefill in self.kv_budget.live]
        return set[int]().union(*map(np.ndarray.tolist, tagged), *(each.paths.numbers() for each in self.workspaces.open))

    def tagged(self, job: Job, ids: Int32) -> npt.NDArray[Any]:
        """The tokens `ids` of a job's path, each with the number of its adapter stack, as workspaces identify them."""
        tags = [(self.workspaces.tags.tag(namespace), part) for namespace, part in job.spans(ids)]
        if not any(tag for tag, _ in tags):
            return ids
        return np.concatenate([part.astype(np.int64) + tag for tag, part in tags])

    def _load_prefix(self, workspace: Workspace, trail: Sequence[int], limit: int, lease: Lease) -> tuple[int, int]:
        """Loads the leased KV beyond the workspace's trail: the deepest resumable slot within `limit` tokens, and its depth.

        Without room for a second copy, in the pack, the leased KV is computed again. Keys in the pack that lack only a
        recurrent state are not copied again, except for the last token, which carries the state.
        """
        depth = min(len(trail), limit) if self.enabled else 0
        if workspace.recurrent:
            depth = workspace.resumable_depth(trail, depth)
        slot = trail[depth - 1] if depth else ROOT
        if lease.length <= depth:
            return slot, depth
        start = max(min(len(trail), lease.length - 1), depth) if self.enabled else depth
        parent = trail[start - 1] if start else ROOT
        try:
            workspace.reserve(lease.length - start, parent)
            return workspace.load(lease, parent, start)
        except NoRoomError:
            lease.move(self.trie.root, 0)
            return slot, depth

    def leave(self, prefill: Prefill) -> None:
        """Releases the lease of a job that is done or parked, and its place in the workspace."""
        self.kv_budget.live.discard(prefill)
        self.departures += 1
        prefill.lease.release()
        self.workspaces.leave(prefill.workspace, drop=not self.enabled)

    def known_scores(self, job: ScoreJob) -> Scores:
        """The cached scores of the path: n rows of ``job.k`` alternatives, with rank 0 where unknown."""
        known = empty_scores(len(job.ids), job.k)
        with self.trie.lookup(job.spans(job.ids), exact=True) as lease:
            at = 0
            for node in lease.node.path():
                if node.scores is not None and node.scores.top_ids.shape[1] >= job.k:
                    fill_gaps(known, narrow(node.scores, job.k), at)
                at += len(node.tokens)
        return known

    def keep_scores(self, lease: Lease, scores: Scores) -> None:
        """Stores scores of the path's first tokens in the leased nodes."""
        at = 0
        for node in lease.node.path():
            start, at = at, at + len(node.tokens)
            if at > len(scores):
                return
            self.trie.set_scores(node, scores[start:at])

    def clear(self, *, vectors: bool = True) -> None:
        """Drops everything that is not in use, pinned paths too; leased paths are dropped when released."""
        self.pins.release_all()
        self.trie.clear()
        self.interrupted.clear()
        if vectors:
            self.vectors.clear()
        self.workspaces.drop_idle()
        for workspace in self.workspaces.open:
            workspace.retired = True

    def report(self, *, look: bool = False) -> CacheReport:
        """The present contents; the largest edges are those of the last call with `look`."""
        if look:
            edges = []
            for node in self.trie.largest(LARGEST_EDGES):
                age, tail = self.trie.clock - node.stamp, tuple(node.tokens[-TAIL_TOKENS:].tolist())
                stack = stack_of(node.namespace) if self.workspaces.tags.several else ()
                edges.append(EdgeReport(len(node.tokens), node.nbytes, age, node.pins, tail, node.hits, stack))
            self._largest = tuple(edges)
        cause, reason = ("none", "nothing was asked yet") if self._last is None else self._last.cause(self.trie)
        return CacheReport(
            edges=self.trie.edges,
            tokens=self.trie.tokens,
            bytes=self.trie.bytes,
            leases=self.trie.leases,
            leased_bytes=self.trie.leased_bytes,
            budget=self.kv_budget.budget,
            hits=self.hits,
            misses=self.misses,
            largest=self._largest,
            last_prefix=0 if self._last is None else self._last.depth,
            last_reason=reason,
            last_cause=cause,
            working_bytes=self.workspaces.nbytes - self.kv_budget.payloads.tokens * self.backend.slot_bytes,
            vector_bytes=self.vectors.bytes + self.pins.nbytes,
            pins=len(self.pins.leases),
        )

    def reusable(self, job: Job, limit: int | None = None) -> int:
        """How many of the path's first `limit` tokens need no forward: with recurrent layers up to the last checkpoint.

        Touches nothing.
        """
        found = at = 0
        for node, count in self.trie.walk(job.spans(job.ids[:limit])):
            at += count
            if not self.recurrent or (node.resumable and count == len(node.tokens)):
                found = at
        return found

    # ---- publishing computed KV to the trie -----------------------------------------------------------------------

    def copy_new_tails(self, prefills: Sequence[Prefill]) -> None:
        """Copies the short new tails of several jobs of one workspace in one call of the backend, for `publish`.

        Does nothing where edges refer to slots: `publish` copies nothing then.
        """
        if not self.enabled or self.kv_budget.in_place:
            return
        self.drop_copied_tails()
        by_workspace: dict[Workspace, dict[tuple[int, int], None]] = {}
        for prefill in prefills:
            if not prefill.workspace.recurrent and _has_new_tail(prefill):
                by_workspace.setdefault(prefill.workspace, {})[prefill.slot, prefill.at - prefill.lease.length] = None
        for workspace, tails in by_workspace.items():
            if len(tails) > 1:
                self._copy_tails(workspace, list(tails))

    def _copy_tails(self, workspace: Workspace, tails: Sequence[tuple[int, int]]) -> None:
        chains = [workspace.chain(slot, count) for slot, count in tails]
        needed = self.backend.take_cost(workspace.pack, np.concatenate(chains)).held  # no recurrent states
        if not self.kv_budget.make_room(3 * needed):
            return
        try:
            payloads = workspace.take_many(chains)
        except BaseException:  # noqa: BLE001  # `publish` copies one by one: only the faulty job fails
            return
        self.copied_tails |= {(workspace, slot, count): payload for (slot, count), payload in zip(tails, payloads, strict=True)}
        self.kv_budget.pending += sum(self.backend.payload_bytes(payload) for payload in payloads)

    def drop_copied_tails(self) -> None:
        """Drops the copies of jobs that failed before they were published."""
        self.copied_tails.clear()
        self.kv_budget.pending = 0

    def publish(self, prefill: Prefill, tokens: Int32, slot: int, scores: Scores | None) -> None:
        """Inserts the tokens from the lease's end to `slot` into the trie; `scores` has one row for each."""
        lease, job, start, at = prefill.lease, prefill.job, prefill.lease.length, 0
        ends = [end - start for end, _ in job.before if start < end < start + len(tokens)] if job.before else []
        for end in (*ends, len(tokens)):  # one namespace each
            if not self.enabled or at == end or not lease.node.attached or lease.length < start + at:
                return  # nothing is kept under a cleared path, or after a refusal
            namespace = job.namespace_at(start + at) if job.before else job.namespace
            place = prefill.workspace.paths.above(slot, len(tokens) - end) if end < len(tokens) else slot
            part, known = tokens[at:end], None if scores is None else scores[at:end]
            if self.kv_budget.in_place:
                self.trie.insert(lease, namespace, part, SlotRun(prefill.workspace, place, end - at), known)
            else:
                self._publish_copy(prefill, namespace, part, place, known)
            at = end

    def _publish_copy(self, prefill: Prefill, namespace: Namespace, tokens: Int32, slot: int, scores: Scores | None) -> None:
        """`publish` for tokens of one namespace where the trie holds copies; copies only missing tokens."""
        lease, workspace = prefill.lease, prefill.workspace
        if self.copied_tails and (copy := self.copied_tails.pop((workspace, slot, len(tokens)), None)) is not None:
            self.kv_budget.pending -= self.backend.payload_bytes(copy)
            self.trie.insert(lease, namespace, tokens, copy, scores)  # tokens that other jobs have inserted since stay
            return
        found = self.trie.follow(lease, namespace, tokens, scores)
        if found.already == len(tokens):
            self._complete(prefill, slot)
            return
        tokens = tokens[found.already :]
        scores = None if scores is None else scores[found.already :]
        payload = None if found.refused else self._copy_of(workspace, slot, len(tokens), 0 if scores is None else scores.nbytes)
        if payload is None:
            self._note_refusal(prefill, namespace, tokens)
        else:
            self.trie.insert(lease, namespace, tokens, payload, scores)

    def _complete(self, prefill: Prefill, slot: int) -> None:
        """Adds the recurrent state to a path whose tokens are all in the trie."""
        node, workspace = prefill.lease.node, prefill.workspace
        if not node.resumable and workspace.resumable(slot):
            payload = self._copy_of(workspace, slot, len(node.tokens), 0)
            if payload is not None:
                self.trie.complete(node, payload)

    def _copy_of(self, workspace: Workspace, slot: int, count: int, extra: int) -> Payload | None:
        """A copy of the last `count` tokens of a path; None without room for it and `extra` bytes of scores."""
        slots = workspace.chain(slot, count)
        if not self.kv_budget.make_room(self.backend.take_cost(workspace.pack, slots).moment + extra):
            return None
        try:
            return workspace.take(slots)
        except MemoryBudgetError:  # of the device; a failed copy must not end the request
            log.exception("computed KV could not be kept")
            return None

    def _note_refusal(self, prefill: Prefill, namespace: Namespace, tokens: Int32) -> None:
        """Logs, once for each token, that there was no room to keep its KV."""
        prefill.workspace.holds_refused = True
        end = prefill.lease.length + len(tokens)
        if end > prefill.refused:
            prefill.refused = end
            self.trie.eviction_log.note(prefill.lease.node, namespace, tokens, Lost.REFUSED)


def fill_gaps(known: Scores, fresh: Scores, first: int) -> None:
    """Copies rows of `fresh` into the unknown rows of `known`, from row `first` on."""
    missing = np.flatnonzero(known.rank[first : first + len(fresh)] == 0)
    known.write(first + missing, fresh, missing)


def _has_new_tail(prefill: Prefill) -> bool:
    """Whether the computed tokens beyond the lease are few, of one namespace, and not in the trie."""
    lease, job = prefill.lease, prefill.job
    if not lease.node.attached or not 0 < prefill.at - lease.length <= SHORT_TAIL:
        return False
    if any(lease.length < end < prefill.at for end, _ in job.before):  # two namespaces
        return False
    return (job.namespace_at(lease.length), int(job.ids[lease.length])) not in lease.node.children


@dataclass(frozen=True, slots=True)
class LastRequest:
    """The state in which a request was placed, from which a report derives the reason of a cache miss.

    Args:
        job: Only its path, without its caller.
        wanted: Tokens that could have come from the cache; rows are needed beyond them.
        depth: Tokens that came from the cache.
        matched: Tokens with KV in the cache, resumable or not.
        clock: The clock of `EvictionLog` at that time.
        enabled: Whether the cache is on.
        node: The last node of the path in the trie.
    """

    job: Job
    wanted: int
    depth: int
    matched: int
    clock: int
    enabled: bool
    node: Node

    def cause(self, trie: Trie) -> tuple[str, str]:
        """The reason as one word (see `CacheReport.last_cause`) and as a sentence."""
        at, total = self.depth, len(self.job.ids)
        if not self.enabled:
            return "off", "the cache is off (cache=False)"
        if at >= total - 1:
            return "whole", "the whole prompt was held"
        if at >= self.wanted:
            return "scores", f"its KV was held further; the scores after token {at:,} of {total:,} were never computed"
        if self.matched > at:
            return "checkpoint", (
                f"{self.matched:,} of {total:,} tokens are held, but the recurrent state only after token {at:,}: "
                "it is kept at checkpoints"
            )
        lost = trie.eviction_log.why(self.job.spans(self.job.ids[: at + 1]), self.clock)
        if lost is not Lost.NO:
            return _LOST[lost][0], f"token {at + 1:,} of {total:,} {_LOST[lost][1]}"
        namespace, token = self.job.namespace_at(at), int(self.job.ids[at])
        for other, first in self.node.children:
            if first == token and other != namespace:
                return "other", (
                    f"token {at + 1:,} of {total:,} is held for another model, adapter or salt: KV is never shared between them"
                )
        return "new", f"token {at + 1:,} of {total:,} is new: nothing after token {at:,} was computed before"


_LOST = {
    Lost.EVICTED: ("evicted", "was held and gave way to other text: raise kv_cache_bytes (`set_kv_budget`) to keep more"),
    Lost.CLEARED: ("cleared", "was held until the cache was cleared"),
    Lost.REFUSED: ("refused", "was computed before, but there was no room to keep it: raise kv_cache_bytes (`set_kv_budget`)"),
}


class Interrupted:
    """Partial answers of cancelled jobs by their request; the oldest are dropped first. Owner thread only.

    Args:
        most: Bytes; 0 keeps nothing.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def keep(self, key: Hashable, part: Any, nbytes: int) -> None:
        """Keeps a part in place of an earlier one with its key; drops a part that is too large."""
        self.take(key)
        if nbytes > self._most:
            return
        self._parts[key] = part, nbytes
        self._bytes += nbytes
        while self._bytes > self._most:
            self.take(next(iter(self._parts)))

    def take(self, key: Hashable) -> Any:
        """Removes and returns a part; None if there is none."""
        part, nbytes = self._parts.pop(key, (None, 0))
        self._bytes -= nbytes
        return part

    def clear(self) -> None:
        self._parts.clear()
        self._bytes = 0
