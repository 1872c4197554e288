"""Everything that is remembered: the trie, the working packs and the full vectors, under one byte budget."""

from __future__ import annotations

from contextlib import ExitStack

from runtime.backends.base import ROOT, Backend
from runtime.errors import MemoryBudgetError
from runtime.info import CacheReport, EdgeReport
from runtime.records import Int32, Scores
from runtime.scheduler.jobs import GenerateJob, Job, ScoreJob
from runtime.scheduler.prefill import Prefill
from runtime.scheduler.rows import narrow
from runtime.scheduler.vectors import VectorCache
from runtime.scheduler.workspace import Workspace, Workspaces
from runtime.scoring import empty_scores
from runtime.trie import Lease, Namespace, Trie

VECTOR_SHARE = 32  # full vectors get this fraction of the budget
LARGEST_EDGES = 20
TAIL_TOKENS = 8
COLUMNS = ("logprob", "rank", "entropy", "top_ids", "top_logprobs", "covered_mass")


class Cache:
    """KV, scores and vectors of one backend; owner thread only.

    Args:
        backend: Splits, loads and weighs KV.
        budget: Bytes for everything together.
        enabled: False computes everything afresh.
    """

    def __init__(self, backend: Backend, budget: int, *, enabled: bool) -> None:
        self._backend = backend
        self.enabled = enabled
        self.budget = budget
        self.peak = 0
        self.trie = Trie(backend, budget if enabled else 0)
        self.vectors = VectorCache(budget // VECTOR_SHARE if enabled else 0)
        self.workspaces = Workspaces(backend, self.give_way)
        self._last_prefix = 0
        self._last_reason = "nothing was asked yet"

    @property
    def bytes(self) -> int:
        """Bytes in use."""
        return self.trie.bytes + self.workspaces.nbytes + self.vectors.bytes

    def check_room(self, tokens: int) -> None:
        """Raises `MemoryBudgetError` for a path that cannot fit whatever is evicted."""
        needed = tokens * max(self._backend.info.kv_bytes_per_token, 1)
        if needed > self.budget:
            raise MemoryBudgetError(
                f"{tokens:,} tokens need {needed:,} bytes of KV, the budget is {self.budget:,}; "
                "raise kv_cache_bytes (set_kv_budget) or shorten the text"
            )

    def place(self, job: Job, first_wanted: int) -> Prefill:
        """Puts what is known of a path into a workspace, up to the first row that must be pushed."""
        workspace = self.workspaces.place(job.namespace, job.ids, alone=not self.enabled)
        with ExitStack() as undo:  # no memory for it: nothing stays pinned
            undo.callback(self.workspaces.leave, workspace, drop=not self.enabled)
            lease = undo.enter_context(self.trie.lookup([(job.namespace, job.ids[:first_wanted])]))
            slot, depth = self._stand(workspace, job.ids[:first_wanted], lease)
            undo.pop_all()
        if isinstance(job, GenerateJob):
            self._explain(job, depth)
        last_only = not isinstance(job, ScoreJob)
        return Prefill(job, workspace, lease, slot, depth, first_wanted, last_only=last_only, reused=depth)

    def regain(self, prefill: Prefill, ids: Int32) -> tuple[int, int]:
        """Where a job whose place was given up can go on along `ids`: the slot, and the tokens in place there.

        Recurrent state moves along with whoever appends: a place that two jobs share is lost to the second.
        """
        prefill.lease.release()
        prefill.lease = self.trie.lookup([(prefill.job.namespace, ids)])
        return self._stand(prefill.workspace, ids, prefill.lease)

    def _stand(self, workspace: Workspace, ids: Int32, lease: Lease) -> tuple[int, int]:
        """The deepest place on a path that the workspace or the lease can give: its slot and depth."""
        slot, depth = workspace.find(ids, len(ids)) if self.enabled else (ROOT, 0)
        return workspace.load(lease, slot, depth) if lease.length > depth else (slot, depth)

    def publish(self, prefill: Prefill, namespace: Namespace, tokens: Int32, slot: int, scores: Scores | None) -> None:
        """Copies the tokens from the lease's end to `slot` into the trie; `scores` has one row for each."""
        if not self.enabled or not len(tokens) or not prefill.lease.node.attached:  # under a cleared path nothing is kept
            return
        payload = self._backend.take(prefill.workspace.pack, prefill.workspace.chain(slot, len(tokens)))
        self.trie.insert(prefill.lease, namespace, tokens, payload, scores)

    def leave(self, prefill: Prefill) -> None:
        """The job is done: its lease and its place in the workspace are free."""
        prefill.lease.release()
        self.workspaces.leave(prefill.workspace, drop=not self.enabled)

    def known_scores(self, job: ScoreJob) -> Scores:
        """What is known of the path's scores: n rows of ``job.k`` alternatives, rank 0 where nothing is."""
        known = empty_scores(len(job.ids), job.k)
        with self.trie.lookup([(job.namespace, job.ids)], exact=True) as lease:
            at = 0
            for node in lease.node.path() if lease.length else ():
                end = at + len(node.tokens)
                if node.scores is not None and node.scores.top_ids.shape[1] >= job.k:
                    part = narrow(node.scores, job.k)
                    for column in COLUMNS:
                        getattr(known, column)[at:end] = getattr(part, column)
                at = end
        return known

    def keep_scores(self, lease: Lease, scores: Scores) -> None:
        """Puts scores of the path's first tokens beside the KV that the lease holds."""
        at = 0
        for node in lease.node.path() if lease.held else ():
            start, at = at, at + len(node.tokens)
            if at > len(scores):
                return
            self.trie.set_scores(node, scores[start:at])

    def give_way(self) -> None:
        """The device is full: idle packs, vectors and whatever no lease holds are freed."""
        self.workspaces.drop_idle()
        self.vectors.clear()
        self.trie.evict(self.trie.evictable_bytes)

    def account(self) -> None:
        """After a step: the trie gives way to the working packs, idle packs to a tight budget."""
        packs = self.workspaces.nbytes
        if packs > self.budget // 2:
            self.workspaces.drop_idle()
            packs = self.workspaces.nbytes
        if self.enabled:
            self.trie.set_budget(max(self.budget - packs - self.vectors.bytes, 0))
        self.peak = max(self.peak, self.bytes)

    def clear(self, *, vectors: bool = True) -> None:
        """Drops everything that nobody is using; leased paths go when they are released."""
        self.trie.clear()
        if vectors:
            self.vectors.clear()
        self.workspaces.drop_idle()
        self.workspaces.retire()

    def report(self) -> CacheReport:
        """The trie at this moment."""
        nodes = list(self.trie.nodes())
        largest = sorted(nodes, key=lambda node: -node.nbytes)[:LARGEST_EDGES]
        clock = self.trie.clock
        return CacheReport(
            edges=len(nodes),
            tokens=sum(len(node.tokens) for node in nodes),
            bytes=self.trie.bytes,
            leases=sum(node.pins - sum(c.pins for c in node.children.values()) for node in nodes),
            leased_bytes=self.trie.leased_bytes,
            budget=self.budget,
            hits=self.trie.hits,
            misses=self.trie.misses,
            largest=tuple(
                EdgeReport(len(n.tokens), n.nbytes, clock - n.stamp, n.pins, tuple(n.tokens[-TAIL_TOKENS:].tolist()))
                for n in largest
            ),
            last_prefix=self._last_prefix,
            last_reason=self._last_reason,
        )

    def set_budget(self, budget: int) -> None:
        """Another budget in bytes; evicts down to it.

        Raises:
            MemoryBudgetError: Running requests hold more.
        """
        held = self.trie.leased_bytes + sum(w.nbytes for w in self.workspaces.open if w.users)
        if budget < held:
            raise MemoryBudgetError(f"running requests hold {held:,} bytes of KV; a budget of {budget:,} must wait for them")
        self.budget = budget
        self.vectors.set_budget(budget // VECTOR_SHARE if self.enabled else 0)
        self.account()

    def match(self, namespace: Namespace, ids: Int32) -> int:
        """Tokens of the path whose KV is held, without touching anything."""
        return self.trie.match([(namespace, ids)])

    def _explain(self, job: Job, depth: int) -> None:
        self._last_prefix, total = depth, len(job.ids)
        if depth >= total - 1:
            self._last_reason = "the whole prompt was held"
        elif depth:
            self._last_reason = f"token {depth + 1:,} of {total:,} is new: nothing after it was computed before"
        else:
            self._last_reason = "nothing of this prompt is held: it is new, or was evicted"


def fill_gaps(known: Scores, fresh: Scores, first: int) -> None:
    """Takes rows of `fresh` into `known`, from row `first` on, where nothing was known."""
    part = slice(first, first + len(fresh))
    missing = known.rank[part] == 0
    for column in COLUMNS:
        getattr(known, column)[part][missing] = getattr(fresh, column)[missing]
