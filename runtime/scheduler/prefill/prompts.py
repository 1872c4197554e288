"""Jobs that wait, and the prefill of queries and prompts: chunks sized by time, packed into one forward per workspace."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from runtime.backends.base import ForwardInterrupted
from runtime.info import PromptProgress
from runtime.options.priority import Priority
from runtime.records import Scores
from runtime.scheduler.faults import bisect, typed
from runtime.scheduler.jobs import CallJob, DecodingJob, Job, JobGroup, QueryJob, ScoreJob
from runtime.scheduler.kv.prefix_cache import PrefixCache, fill_gaps
from runtime.scheduler.kv.workspace import NoRoomError
from runtime.scheduler.metrics import RequestMetrics
from runtime.scheduler.prefill.distributions import ChunkLogits, Distribution, non_finite
from runtime.scheduler.prefill.prefill import (
    ALONE_SECONDS,
    CHUNK_SECONDS,
    LONG_SECONDS,
    Batch,
    Prefill,
    by_workspace,
    preemptible,
    stop_of,
)
from runtime.scheduler.workers import Background, SchedulerContext

AT_ONCE = 64  # most jobs of one caller that are placed in one step
CALM_SECONDS = 3.0  # without jobs of two callers at once; afterwards an interruptible chunk takes `LONG_SECONDS`
LOGITS_BYTES = 30 << 20  # of a forward's rows on the host: glibc reuses blocks up to 32 MiB, and pages in larger ones each time
MOST_LOGITS_BYTES = 64 << 20  # `LOGITS_BYTES` of a large model: compared with half a byte per parameter, paging in is cheap
FEWEST_ROWS = 128  # least rows of logits per forward, however large the vocabulary: fewer tokens do not fill a processor
SHORT = 2  # tokens; jobs that need no more share one forward of up to `ALONE_SECONDS`, even while others wait


def _interrupts(job: Job, others: Sequence[Job]) -> bool:
    """Whether a new job interrupts a long forward of `others`, which are sorted by priority.

    Less urgent jobs, jobs of the same call, background jobs, and queries equal to one of the others do not.
    """
    if isinstance(job, CallJob):
        return True
    if job.abandoned or job.turn is others[0].turn or job.priority > others[0].priority or job.priority == Priority.BACKGROUND:
        return False
    return not (isinstance(job, QueryJob) and any(isinstance(other, QueryJob) and job.key == other.key for other in others))


class Lane(NamedTuple):
    """The key of a queue of waiting jobs."""

    priority: Priority
    turn: JobGroup


class Waiting:
    """Waiting jobs: a queue per `Lane`, so that a call with thousands delays no other; and *parked* ones, which lack memory.

    Args:
        cache: Says what a parked job lacks.
        request_metrics: Request metrics.
    """

    def __init__(self, cache: PrefixCache, request_metrics: RequestMetrics) -> None:
        self._cache, self._request_metrics = cache, request_metrics
        self.new: dict[Lane, deque[Job]] = {}
        self._admitted = 0  # jobs so far
        self.parked: dict[Job, int] = {}  # each with the bytes that it needs, in order of arrival

    def __iter__(self) -> Iterator[Job]:
        return iter([*self.parked, *(job for jobs in self.new.values() for job in jobs)])

    def __len__(self) -> int:
        return len(self.parked) + sum(map(len, self.new.values()))

    def park(self, job: Job) -> None:
        """Parks a job until the bytes that it needs are free besides the running jobs, or no other job runs."""
        self._request_metrics.park(job)
        job.parks += 1
        self.parked[job] = self._cache.kv_budget.lacking(len(job.ids) + job.extra_tokens)

    def drop(self, chosen: Callable[[Job], bool]) -> list[Job]:
        """Removes and returns the chosen jobs."""
        dropped = [job for job in self if chosen(job)]
        if dropped:
            removed = set(dropped)
            self.parked = {job: needed for job, needed in self.parked.items() if job not in removed}
            left = {key: deque(job for job in jobs if job not in removed) for key, jobs in self.new.items()}
            self.new = {key: jobs for key, jobs in left.items() if jobs}
        return dropped

    def clear(self) -> None:
        self.new.clear()
        self.parked.clear()

    def take(self, returns: Callable[[int], bool], running: Sized, most: int) -> Iterator[Job]:
        """Yields the jobs to place now, the most urgent first; the caller places each before it asks for the next one.

        Args:
            returns: Whether a parked job that needs the given number of bytes may return.
            running: Running prompts.
            most: From this number of running prompts on, each lane yields one job.
        """
        lanes = sorted(self.new, key=attrgetter("turn.served"))
        for priority in Priority:
            for job in list(self.parked):
                if job.priority == priority and job in self.parked and returns(self.parked[job]):
                    del self.parked[job]
                    yield job
            for lane in lanes:
                for n in range(AT_ONCE if lane.priority == priority else 0):
                    jobs = self.new.get(lane)  # placing the last job may have removed others
                    if not jobs or (n and len(running) >= most):
                        break
                    job = jobs.popleft()
                    if not jobs:
                        del self.new[lane]
                    self._admitted += 1
                    job.order = self._admitted
                    yield job


class Prompts:
    """The running prefills. Owner thread only.

    Args:
        context: What the scheduler's parts share.
        waiting: Takes preempted prompts.
        background: The background jobs, which are preempted before a prompt is.

    Attributes:
        running: The prefills.
        complete: The prompts of the last forward that are complete: the jobs, their cursors, and the distributions after them.
    """

    def __init__(self, context: SchedulerContext, waiting: Waiting, background: Background) -> None:
        options, backend = context.options, context.backend
        self._batch_rows, self._batch_tokens = options.batch_rows, options.max_batch_tokens
        self._cache, self._counters = context.cache, context.counters
        self._request_metrics, self._pace = context.request_metrics, context.pace
        self._waiting = waiting
        self._background = background
        self._round = 0
        self._disturbed = -math.inf  # the last time that two callers had jobs at once
        self._hurried = False  # whether the last forward was interrupted: a job waits for the next one
        self.arrived: Callable[[], Sequence[Job] | None] = tuple  # see `Scheduler.listen`
        rows_bytes = min(max(backend.info.parameters // 2, LOGITS_BYTES), MOST_LOGITS_BYTES)
        most = max(rows_bytes // (4 * backend.info.vocab_size), FEWEST_ROWS)
        self._most_rows = options.max_batch_tokens if backend.on_device and not backend.unified else most
        self.running: list[Prefill] = []
        self._parts: list[tuple[list[Prefill], int]] = []  # yet to be pushed in this step, each with its quota; the next last
        self.complete: deque[tuple[Job, Prefill, Distribution]] = deque()

    def step(self, *, decoding: bool) -> Iterator[None]:
        """Forwards within the quota, over all workspaces if the backend can; after each, the caller empties `complete`.

        The most urgent prompts come first, then those of the caller that has waited longest.

        While generations wait (`decoding`) there is one forward only: one chunk between two of their tokens.
        """
        self._round += 1
        self.running.sort(key=attrgetter("job.priority", "job.turn.served", "served"))
        now, first, quota = time.monotonic(), self.running[0].job, self._pace.chunk(CHUNK_SECONDS)
        if decoding:
            self._disturbed = now
            short = SHORT * sum(p.total - p.at <= SHORT for p in self.running)
            quota = max(quota, min(short, self._pace.chunk(ALONE_SECONDS)))
        else:  # longer forwards cost less per token
            if first.priority < Priority.BACKGROUND:
                self._pace.urgent = now
                for prefill in self.running:
                    if prefill.job.priority == first.priority and prefill.job.turn is not first.turn:
                        self._disturbed = now
            if self._hurried:
                self._hurried = False
            elif self._cache.backend.interruptible:
                calm = self._pace.measured and now - self._disturbed >= CALM_SECONDS
                quota = self._pace.chunk(LONG_SECONDS if calm else ALONE_SECONDS)
            else:
                quota = self._pace.background()
        quota = min(quota, self._batch_tokens)
        for group in [list(self.running)] if self._cache.backend.together else by_workspace(self.running):
            self._parts = [(group[: self._batch_rows], quota)]
            while self._parts:
                part, most = self._parts.pop()
                quota -= self._push(list(filter(self.running.__contains__, part)), most)
                yield
            if quota <= 0 or decoding:
                return

    def _interrupted(self, group: Sequence[Prefill], until: float) -> bool:
        """Whether to interrupt a forward of `group`: for new jobs, or because no caller waits for any of its jobs.

        Not after the time `until`: the rest takes no longer than a short forward.
        """
        if time.monotonic() > until:
            return False
        arrived, jobs = self.arrived(), [prefill.job for prefill in group]
        return arrived is None or any(_interrupts(job, jobs) for job in arrived) or all(job.abandoned for job in jobs)

    def _push(self, group: list[Prefill], quota: int) -> int:
        """One forward over the group's next tokens; returns the tokens pushed, or the quota if the forward failed.

        After a failure, the parts to push in its place are on `_parts`.
        """
        resumed = []
        for prefill in group:
            if (prefill.workspace.recurrent or isinstance(prefill.job, ScoreJob)) and not self._resume(prefill):
                continue
            prefill.mark = prefill.slot, prefill.at, prefill.reused, prefill.computed
            resumed.append(prefill)
        group = resumed
        if not group:
            return 0
        batch, backend = Batch(self._most_rows, self._cache.vectors.block_bytes), self._cache.backend
        started = time.monotonic()
        try:
            recurrent = group[0].workspace.recurrent
            for prefill in group:
                batch.advance(prefill, quota - batch.size, stop_of(prefill, group) if recurrent else prefill.total)
            interrupted = None
            if backend.interruptible and batch.size > self._pace.chunk(ALONE_SECONDS):
                until = started + self._pace.seconds(batch.size) - ALONE_SECONDS
                interrupted = partial(self._interrupted, group, until)
            batch.run(interrupted)
        except BaseException as error:  # noqa: BLE001  # bisected: only the faulty request fails
            batch.rollback()
            for prefill in group:
                prefill.undo()
            if isinstance(error, ForwardInterrupted):
                self._disturbed, self._hurried = time.monotonic(), True
                self._counters.prefill_seconds += self._disturbed - started
                self._counters.tokens_prefilled += batch.size
                for prefill in group:  # so that the new jobs go first
                    prefill.served = prefill.job.turn.served = self._round
                return quota
            if isinstance(error, NoRoomError):
                if len(batch.portions) > 1:  # one after the other: each may use all memory that the others do not need
                    self._parts += [(part, quota) for part in reversed(by_workspace(group))]
                    return quota
                if self.preempt(group):
                    self._parts.append((group, quota))
                    return quota
            parts = list[tuple[list[Prefill], int]]()
            bisect(group, error, lambda part: parts.append((part, quota)), self.end)
            self._parts += reversed(parts)
            return quota
        pushed = batch.size
        seconds = time.monotonic() - started
        self._pace.measure(pushed, seconds)
        self._counters.prefill_seconds += seconds
        self._counters.tokens_prefilled += pushed
        self._counters.publish(self._cache)  # before the answers, so that their readers see the numbers
        moved = []
        for prefill in group:
            if prefill.at > prefill.mark[1]:
                moved.append(prefill)
                prefill.served = prefill.job.turn.served = self._round
                if prefill.job.on_progress is not None:
                    prefill.job.on_progress(prefill.progress)
        if not self._cache.kv_budget.in_place:
            self._cache.copy_new_tails(moved)
        for prefill in moved:
            self._settle_chunk(prefill)
        if self._cache.copied_tails:
            self._cache.drop_copied_tails()
        self._counters.publish(self._cache)  # before the answers, so that their readers see the numbers
        return pushed

    def preempt(self, among: list[Prefill] | None = None, job: Job | None = None) -> bool:
        """Preempts a background job, or else a prompt, when running requests need more than the budget.

        A prompt is parked; its KV stays in the trie. It is the least urgent one; of several, one that was not parked before; of
        these, the longest.

        Args:
            among: The candidates among the prompts; None: all running prompts.
            job: The job that needs room, if it is not running yet; see `preemptible`.

        Returns:
            False if there is no candidate, or no other running job that it could wait for.
        """
        if self._background.preempt(job):
            return True
        prefills = self.running if among is None else among
        if job is not None:
            prefills = [prefill for prefill in prefills if preemptible(prefill.job, prefill.total, job)]
        if not prefills or len(self._cache.kv_budget.live) < 2:
            return False
        chosen = max(prefills, key=lambda prefill: (prefill.job.priority, not prefill.job.parks, prefill.total))
        self._drop(chosen)
        self._waiting.park(chosen.job)
        return True

    def _resume(self, prefill: Prefill) -> bool:
        """Makes sure that a token can be appended at the job's slot; False: that failed, and the job has ended."""
        ws, job = prefill.workspace, prefill.job
        try:
            if ws.recurrent and not ws.resumable(prefill.slot):
                prefill.slot, prefill.at = self._cache.regain(prefill, job.ids[: prefill.at])
                prefill.reused = min(prefill.reused, prefill.at)  # later tokens may have been computed, not found
            if (
                isinstance(job, ScoreJob)
                and prefill.first_wanted <= prefill.at < prefill.total
                and ws.follow(prefill.slot, int(prefill.tagged[prefill.at])) is not None
            ):  # another job has computed it meanwhile, and its scores
                prefill.first_wanted = max(self.first_unscored(job) - 1, 0)
        except BaseException as error:  # noqa: BLE001  # the border: only this job fails
            self.end(prefill, typed(error))
            return False
        return True

    def _settle_chunk(self, prefill: Prefill) -> None:
        """Publishes a chunk's tokens and scores; a complete path joins `complete`, and its place is released if not needed."""
        job, chunk, rows = prefill.job, prefill.chunk, sorted(prefill.rows)
        prefill.chunk, scores, last = None, None, None
        prefill.rows.clear()
        try:
            if chunk is not None:
                scores = self._score_rows(job, chunk, rows) if isinstance(job, ScoreJob) else None
                if prefill.at == prefill.total:
                    position, row = rows[-1]
                    last = chunk.after.get(row)
                    if last is None:
                        raise non_finite(position)
            start = prefill.lease.length
            if prefill.at > start:
                part = None if scores is None else scores[start : prefill.at]
                self._cache.publish(prefill, job.ids[start : prefill.at], prefill.slot, part)
            if scores is not None and start:
                self._cache.keep_scores(prefill.lease, scores[:start])
            if last is not None:
                self._cache.vectors.put(job.key, last)
        except BaseException as error:  # noqa: BLE001  # the border: only this job fails
            self.end(prefill, typed(error))
            return
        if last is None:
            return
        self.complete.append((job, prefill, last))
        self.running.remove(prefill)
        if not isinstance(job, DecodingJob):  # a generation keeps its place, and is counted at its end
            self._cache.leave(prefill)
            self._counters.tokens_reused += prefill.reused
        if isinstance(job, ScoreJob):
            self._counters.last_reused, self._counters.last_computed = prefill.reused, prefill.computed
            job.prompted = time.monotonic()
            self._request_metrics.leave(job, "done", reused=prefill.reused, computed=prefill.computed)

    def _score_rows(self, job: ScoreJob, chunk: ChunkLogits, rows: Sequence[tuple[int, int]]) -> Scores:
        """The job's known scores, for the whole path, with those of the tokens after the rows merged in."""
        known = job.known
        assert known is not None
        inner = [row for row in rows if row[0] + 1 < len(job.ids)]
        if inner:
            first, n = inner[0][0], len(inner)
            fresh, finite = chunk.score([row for _, row in inner], job.ids[first + 1 : first + 1 + n], job.k)
            if not finite.all():
                raise non_finite(first + int((~finite).argmax()))
            fill_gaps(known, fresh, first + 1)
        return known

    def _drop(self, prefill: Prefill) -> None:
        self.running.remove(prefill)
        self._cache.leave(prefill)

    def end(self, prefill: Prefill, error: BaseException | None) -> None:
        """Ends the job: with the error, or because no caller waits."""
        self._drop(prefill)
        how = "cancelled" if error is None else "error"
        self._request_metrics.leave(prefill.job, how, reused=prefill.reused, computed=prefill.computed)
        self._counters.publish(self._cache)  # before the answer, so that its reader sees the numbers
        prefill.job.end(error)

    # ---- scores -----------------------------------------------------------------------------------------------------

    def first_unscored(self, job: ScoreJob) -> int:
        """The first position from `job.start` on whose score must be computed; the path's length if all are known."""
        known = self._cache.known_scores(job)
        if job.known is not None:  # computed by the job itself; the trie may have had no room for them
            fill_gaps(known, job.known, 0)
        first, n = max(job.start, 1), len(job.ids)
        unknown = np.flatnonzero(known.rank[first:] == 0) if first < n else np.empty(0, np.int64)
        if unknown.size and self._score_by_vector(job, known, first + int(unknown[0])):
            unknown = unknown[1:]
        job.known = known
        if not unknown.size:
            return n
        return first + int(unknown[0])

    def _score_by_vector(self, job: ScoreJob, known: Scores, at: int) -> bool:
        """Scores token `at` by the kept distribution before it; False if there is none.

        Without it the token before would be pushed again, on recurrent models from an earlier checkpoint.
        """
        last = self._cache.vectors.get((job.key[0], job.ids[:at].tobytes()))
        if last is None:
            return False
        fill_gaps(known, last.score(job.ids[at : at + 1], job.k), at)
        return True

    def scores_are_known(self, job: ScoreJob) -> None:
        """Answers a job from known scores."""
        self._counters.tokens_reused += len(job.ids)
        self._counters.last_reused, self._counters.last_computed = len(job.ids), 0
        number, listener = job.number, job.on_progress
        self._request_metrics.leave(job, "done", reused=len(job.ids))
        self._counters.publish(self._cache)
        if listener is not None:
            listener(PromptProgress(len(job.ids), len(job.ids), len(job.ids), 0, number))
        job.answer()
