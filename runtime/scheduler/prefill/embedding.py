"""Embeddings: texts of similar length in padded batches, one batch per step; no KV is kept. Owner thread only.

The finished vectors of a cancelled job are kept for the next job with the same texts.

Rows are padded on the right. A token of a causal model sees nothing after it: no mask is needed, and recurrent layers are
exact as well. A text longer than a batch is pushed in chunks through a pack of its own, which is freed at its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from runtime.adapters.stacks import TokenStacks, stack_of
from runtime.errors import MemoryBudgetError, NonFiniteLogitsError
from runtime.numerics.pooling import Pooler, Pooling
from runtime.records import Float32, Int32
from runtime.scheduler.faults import typed
from runtime.scheduler.jobs import Job, settle
from runtime.scheduler.kv.workspace import NoRoomError
from runtime.scheduler.workers import BackgroundJob, Work, Worker

PADDING_SHARE = 4  # padding may be this fraction (1/4) of a batch's text tokens
FREE_PADDING = 32  # padding tokens always allowed in a small batch, up to as many as its text tokens


@dataclass(slots=True, eq=False)
class EmbedJob(BackgroundJob):
    """The vectors of several texts. `ids` is empty: each text is a path of its own."""

    kind = "embed"
    paths: list[Int32] = field(default_factory=list)  # distinct texts
    places: list[list[int]] = field(default_factory=list)  # rows of the answer for each path
    pooling: Pooling = "last"

    def name(self, number: int) -> str:
        """The name of a path's text in the caller's numbering."""
        return f"texts[{self.places[number][0]}]"


@dataclass(slots=True, eq=False, kw_only=True)
class _Work(Work):
    """The state of a running job; `prefill` belongs to the last text of `left` while that is pushed in chunks."""

    job: EmbedJob
    left: list[int]  # paths not yet computed, the longest last
    vectors: Float32  # (texts, hidden), filled in as texts are done
    open: int  # number of unfinished paths
    pool: Pooler | None = None  # pooled chunks of a long text
    over: bool = False  # whether the job has ended
    complete: set[int] = field(default_factory=set)  # finished paths


Chosen = list[tuple[_Work, int]]


class EmbedWorker(Worker[_Work]):
    """Works on embedding jobs."""

    def admit(self, job: EmbedJob) -> None:
        lengths = [len(path) for path in job.paths]
        order = np.argsort(lengths, kind="stable").tolist()
        try:
            self._cache.check_room(lengths[order[-1]])
        except MemoryBudgetError as full:
            raise MemoryBudgetError(f"{job.name(order[-1])}: {full}") from None
        copies = [len(places) for places in job.places]
        total = sum(n * length for n, length in zip(copies, lengths, strict=True))
        vectors = np.empty((sum(copies), self._backend.info.hidden_size), np.float32)
        held = [(number, self._cache.interrupted.take(_key(job, number))) for number in order]
        left = [number for number, vector in held if vector is None]
        work = _Work(job=job, left=left, vectors=vectors, total=total, open=len(order))
        self.running.append(work)
        for number, vector in held:
            if vector is not None:
                self._store_vector(work, number, vector)
                work.reused += lengths[number]
        if not work.open:
            self._finish(work)

    def _forward(self, work: _Work, quota: int) -> None:
        """One batch of texts, or a chunk of a long text."""
        if work.prefill is not None or self._length(work) > quota:
            self._guarded([(work, work.left[-1])], lambda: self._chunk(work, quota))
        else:
            chosen = self._choose(work, quota)
            self._guarded(chosen, lambda: self._slice(chosen))

    def _length(self, work: _Work) -> int:
        return len(work.job.paths[work.left[-1]])

    def end(self, work: _Work, error: BaseException | None) -> None:
        """Ends the job unfinished; if it was cancelled, its vectors are kept for the next job with the same texts."""
        work.over = True
        if error is None:
            for number in work.complete:
                vector = work.vectors[work.job.places[number][0]].copy()
                self._cache.interrupted.keep(_key(work.job, number), vector, vector.nbytes)
        self._leave(work, "cancelled" if error is None else "error", work.total)
        work.job.end(error)

    # ---- short texts: one padded batch ----------------------------------------------------------------------------

    def _choose(self, lead: _Work, quota: int) -> Chosen:
        """The lead's longest texts, then other jobs' texts of similar length, within the quota and the bound on padding."""
        chosen: Chosen = []
        longest = self._length(lead)
        useful = 0
        alike = (w for w in self.running if w is not lead and w.prefill is None and w.job.namespace == lead.job.namespace)
        for work in (lead, *alike):
            at = len(work.left)
            while at and len(chosen) < self._options.batch_rows:
                length = len(work.job.paths[work.left[at - 1]])
                padded = (len(chosen) + 1) * longest
                if length > longest or padded > quota or padded - useful - length > _padding(useful + length):
                    break
                at -= 1
                useful += length
                chosen.append((work, work.left[at]))
            del work.left[at:]
        return chosen

    def _slice(self, chosen: Chosen) -> None:
        paths = [work.job.paths[number] for work, number in chosen]
        longest = max(map(len, paths))
        tokens = np.stack([np.concatenate([path, np.full(longest - len(path), path[-1])]) for path in paths]).astype(np.int64)
        needed = tokens.size * self._backend.info.hidden_size * 4
        if not self._cache.kv_budget.make_room(needed):
            raise NoRoomError(
                f"the hidden states of {tokens.size:,} tokens need {needed:,} bytes, and running requests leave no room "
                f"for them in the budget of {self._cache.kv_budget.budget:,}: raise kv_cache_bytes (`set_kv_budget`) "
                "or end another request"
            )
        started, stack = time.monotonic(), stack_of(chosen[0][0].job.namespace)  # all chosen texts have the same adapters
        stacks = TokenStacks.uniform(stack, tokens.size) if stack else None
        try:
            hidden = self._backend.hidden_states(tokens, stacks)  # (rows, longest, hidden)
        except MemoryBudgetError:
            self._cache.kv_budget.free_unused()
            hidden = self._backend.hidden_states(tokens, stacks)
        self._pace.measure(tokens.size, time.monotonic() - started)
        for (work, number), path, states in zip(chosen, paths, hidden, strict=True):
            pool = Pooler(work.job.pooling)
            pool.add(states[: len(path)])
            work.computed += longest
            self._finish_text(work, number, pool)

    # ---- a long text: chunk by chunk through a pack -----------------------------------------------------------------

    def _chunk(self, work: _Work, quota: int) -> None:
        number = work.left[-1]
        path = work.job.paths[number]
        if work.prefill is None:
            work.prefill = self._cache.place_apart(Job(path, work.job.namespace))
            work.pool = Pooler(work.job.pooling)
        assert work.pool is not None
        prefill, end = work.prefill, min(work.prefill.at + quota, len(path))
        started = time.monotonic()
        tokens = prefill.tagged[prefill.at : end]
        hidden, prefill.slot = prefill.workspace.extend(tokens, prefill.slot, "hidden")
        work.pool.add(hidden)
        self._pace.measure(end - prefill.at, time.monotonic() - started)
        work.computed += end - prefill.at
        work.done += end - prefill.at
        prefill.at = end
        if end == len(path):
            pool = work.pool
            self._free(work)
            work.left.pop()
            self._finish_text(work, number, pool)

    def _free(self, work: _Work) -> None:
        if work.prefill is not None:
            work.done -= work.prefill.at  # the text restarts, or `_store_vector` counts it with its repetitions
        work.pool = None
        super()._free(work)

    # ---- both -----------------------------------------------------------------------------------------------------

    def _finish_text(self, work: _Work, number: int, pool: Pooler) -> None:
        """Finishes a text: stores its vector, or ends the job if the vector is not finite."""
        if work.over:  # another text of the job was not finite
            return
        vector = pool.vector()
        if not np.isfinite(vector).all():
            self.end(work, NonFiniteLogitsError(f"{work.job.name(number)}: the model's hidden states hold NaN or infinity"))
            return
        self._store_vector(work, number, vector)

    def _store_vector(self, work: _Work, number: int, vector: Float32) -> None:
        places, length = work.job.places[number], len(work.job.paths[number])
        work.open -= 1
        work.complete.add(number)
        work.vectors[places] = vector
        work.done += len(places) * length
        work.reused += (len(places) - 1) * length

    def _guarded(self, chosen: Chosen, act: Callable[[], None]) -> None:
        """Runs `act` for the chosen texts and answers finished jobs; a failing batch is bisected to the faulty text."""
        try:
            act()
        except BaseException as error:  # noqa: BLE001  # the border: the faulty job gets it (a native panic is no Exception)
            self._failed(chosen, error)
            return
        self._counters.publish(self._cache)  # before the answers, so that their readers see the numbers
        for work in {id(work): work for work, _ in chosen if not work.over}.values():
            if work.open:
                work.report_progress()
            else:
                self._finish(work)

    def _finish(self, work: _Work) -> None:
        work.report_progress()
        work.over = True
        self._counters.texts_embedded += len(work.vectors)
        self._leave(work, "done", work.total)
        settle(work.job.future, work.vectors)

    def _failed(self, chosen: Chosen, error: BaseException) -> None:
        if len(chosen) > 1:
            half = len(chosen) // 2
            for part in (chosen[half:], chosen[:half]):  # the longest last: a text without room goes back to the end of `left`
                wanted = [(work, number) for work, number in part if not work.over]
                if wanted:
                    self._guarded(wanted, partial(self._slice, wanted))
            return
        work, number = chosen[0]
        if work.prefill is None:
            work.left.append(number)
        if self._retry_later(work, error):
            return
        fault = typed(error)
        if isinstance(fault, MemoryBudgetError):
            fault = MemoryBudgetError(f"{work.job.name(number)}: {fault}")
        self.end(work, fault)


EmbedJob.worker = EmbedWorker


def _key(job: EmbedJob, number: int) -> tuple[object, ...]:
    """Identifies a path's vector."""
    return "embed", job.namespace, job.pooling, job.paths[number].tobytes()


def _padding(useful: int) -> int:
    """The most padding tokens in a batch with `useful` text tokens."""
    return max(useful // PADDING_SHARE, min(useful, FREE_PADDING))
