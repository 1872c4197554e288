"""The scheduler's loop: the jobs that arrive during a forward are the next batch. No timers.

Per step: (a) collect new jobs and drop cancelled ones; (b) one token for every running generation; (c) queries and (d) one
prefill chunk sized by time, packed into one forward per workspace. All computed KV is published to the trie, also after a
cancellation. Owner thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from operator import attrgetter
from weakref import WeakValueDictionary

from runtime.aio import together
from runtime.backends.packs.packed import Backend
from runtime.kv.trie import common_prefix
from runtime.options.load import LoadOptions
from runtime.scheduler.beam.beams import Beams
from runtime.scheduler.decode.decoding import Decoding
from runtime.scheduler.decode.draft import Drafter
from runtime.scheduler.decode.rows import DecodeVocabulary
from runtime.scheduler.faults import all_of, typed
from runtime.scheduler.jobs import BeamJob, CallJob, DecodingJob, Job, QueryJob, ScoreJob, settle
from runtime.scheduler.kv.blocks import Blocks
from runtime.scheduler.kv.prefix_cache import PrefixCache
from runtime.scheduler.metrics import EngineCounters, RequestMetrics
from runtime.scheduler.prefill.distributions import Distribution
from runtime.scheduler.prefill.prefill import Pace, Prefill
from runtime.scheduler.prefill.prompts import AT_ONCE, Lane, Prompts, Waiting
from runtime.scheduler.workers import Background, BackgroundJob, SchedulerContext

STALLED_SECONDS = 0.01  # wait of a step if every answer waits for a grammar mask; new jobs are admitted between steps


class Scheduler:
    """Works through jobs on one backend.

    Args:
        backend: The model.
        options: Batch limits and whether anything is cached.
        budget: Bytes for trie and working buffers together.
        token_bytes: The bytes of every id.
        eos: Ids that end an answer.
        draft: The draft model for speculation.
    """

    def __init__(
        self,
        backend: Backend,
        options: LoadOptions,
        budget: int,
        token_bytes: Sequence[bytes],
        eos: frozenset[int],
        draft: Backend | None = None,
    ) -> None:
        options = replace(options, max_batch_rows=options.max_batch_rows or backend.batch_rows)
        self.batch_rows = options.batch_rows
        self._most = max(options.batch_rows, AT_ONCE)  # limit of running prompts; beyond it each caller gets one more
        self.cache = PrefixCache(backend, budget, enabled=options.cache)
        self.counters = EngineCounters()
        self._request_metrics = RequestMetrics(self.counters)
        self._drafter = self.cache.kv_budget.drafter = None if draft is None else Drafter(draft, self.cache.kv_budget.make_room)
        self._waiting = Waiting(self.cache, self._request_metrics)
        self._has_waiting = False  # whether jobs still wait after a step
        self._steps_to_sweep = 0  # steps until the waiting jobs are checked for cancelled ones
        self._last_check = (-1, 0)  # departures and budget at the last check for room for parked jobs
        self._queries: WeakValueDictionary[object, QueryJob] = WeakValueDictionary()  # running or waiting, by key
        self.blocks = Blocks(options.blocks, self.cache, self.counters)
        self._leaving: list[tuple[str, Future[None]]] = []  # digests of adapters to unload, and the futures to settle
        self._pace = Pace(backend.speed, options.prefill_chunk_tokens or backend.chunk_tokens)
        context = SchedulerContext(backend, options, self.cache, self.counters, self._request_metrics, self._pace)
        self._background = Background(context)
        self._prompts = Prompts(context, self._waiting, self._background)
        vocabulary = DecodeVocabulary(token_bytes, eos, backend.info.context_length)
        self.decoding = Decoding(context, vocabulary, self._drafter, self._prompts.preempt)
        self._beams = Beams(context, vocabulary, self._prompts.preempt)
        self.steps = 0
        self.counters.publish(self.cache)

    def listen(self, arrived: Callable[[], Sequence[Job] | None]) -> None:
        """Sets the callback that lists jobs arrived during a step; a long forward is interrupted for them.

        It returns None when the model is to be closed.
        """
        self._prompts.arrived = arrived

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queues jobs; a query joins an equal one in flight of the same or a higher priority."""
        for job in jobs:
            if isinstance(job, QueryJob):
                self.counters.queries += 1
                running = self._queries.get(job.key)
                if running is not None and not running.abandoned and running.priority <= job.priority:
                    running.waiters.extend(job.waiters)
                    running.whole |= job.whole
                    self.counters.queries_deduplicated += 1
                    continue
                self._queries[job.key] = job
            else:
                self._request_metrics.enter(job)
                if isinstance(job, DecodingJob):
                    job.begin_masks()
            self._waiting.new.setdefault(Lane(job.priority, job.turn), deque()).append(job)

    def step(self) -> bool:
        """Runs one step; returns whether another one has work at once, without a new job or an answer of another thread."""
        self.steps += 1
        self._drop_cancelled()
        kv_budget, looked = self.cache.kv_budget, self._last_check
        self._last_check = self.cache.departures, self.cache.kv_budget.budget

        def returns(needed: int) -> bool:
            return not kv_budget.live or (looked != self._last_check and kv_budget.spare() >= needed)

        for job in self._waiting.take(returns, self._prompts.running, self._most):
            if job.abandoned:
                self._drop_waiting(job)
            else:
                try:
                    self._admit(job)
                except BaseException as error:  # noqa: BLE001  # the border: only this job fails
                    self._fail(job, error)
        self._has_waiting = bool(self._waiting.new or self._waiting.parked)
        if self.blocks.asked and self.blocks.busy:
            self.blocks.step(contended=bool(self.decoding.rows or self._beams.running or self._prompts.running))
            while self.blocks.restores.complete:
                self._resume_restored(self.blocks.restores.complete.popleft())
        if self.decoding.rows:
            self.decoding.step(paced=not (self._prompts.running or self._background.workers))
        if self._beams.running:
            self._beams.step()
        decodes = bool(self.decoding.rows or self._beams.running)
        if decodes:
            self._pace.busy()
        if self._prompts.running:
            for _ in self._prompts.step(decoding=decodes):
                with together():
                    while self._prompts.complete:
                        self._answer(*self._prompts.complete.popleft())
        decodes = bool(self.decoding.rows or self._beams.running)
        if self._background.workers and not (decodes and self._prompts.running):
            self._background.step(contended=decodes or bool(self._prompts.running))
        self.cache.kv_budget.account()
        self.counters.publish(self.cache)
        others = self._waiting.new or self._prompts.running or (self._background.workers and not self._background.waits)
        stalled = decodes and not others and self.decoding.stalled and self._beams.stalled
        if stalled and not (self.blocks.asked and self.blocks.busy):
            (self.decoding if self.decoding.rows else self._beams).wait(STALLED_SECONDS)
        if self._leaving:
            self._settle_unused()
        return bool(decodes or others or self._waiting.parked) or (self.blocks.asked and self.blocks.busy)

    def when_unused(self, digest: str, future: Future[None]) -> None:
        """Settles the future once no request uses an adapter; the caller submits no further ones that do."""
        self._leaving.append((digest, future))

    def _settle_unused(self) -> None:
        prefills = (*self._prompts.running, *(row.prefill for row in self.decoding.rows), *self.blocks.restores.cursors)
        beams = [one.job for one in self._beams.running]
        jobs = [*(prefill.job for prefill in prefills), *beams, *self._background.jobs, *self._waiting]
        unused = [pair for pair in self._leaving if not any(job.uses(pair[0]) for job in jobs)]
        self._leaving = [pair for pair in self._leaving if pair not in unused]
        for _, future in unused:
            settle(future)

    def fail_all(self, error: BaseException) -> None:
        """Ends every running or waiting job with the error, in whatever state a failed step left it."""
        ends: list[Callable[[], None]] = [partial(self.decoding.end, row, error) for row in self.decoding.rows]
        ends.append(partial(self._beams.fail_all, error))
        ends += [partial(self._prompts.end, prefill, error) for prefill in self._prompts.running]
        for job, prefill, _ in self._prompts.complete:
            ends += [partial(self.cache.leave, prefill)] if isinstance(job, DecodingJob) else []
            ends.append(partial(self._fail, job, error))
        ends += [partial(self._end_restore, prefill, error) for prefill in self.blocks.restores.cursors]
        ends.append(partial(self._background.fail_all, error))
        ends += [partial(self._fail, job, error) for job in self._waiting]
        ends += [partial(settle, future, error=error) for _, future in self._leaving]
        all_of(ends)
        self._prompts.complete.clear()
        self._waiting.clear()
        self._leaving.clear()

    def unload(self) -> None:
        """Ends the block thread, frees the cache and the draft model; no job may be running."""
        self.blocks.close()
        self.cache.clear()
        if self._drafter is not None:
            self._drafter.unload()
        del self._prompts, self.decoding, self._beams  # which hold the vocabulary: this object is in reference cycles

    def cancel_queries(self, error: BaseException) -> None:
        """Ends every query with `error`; generations and scores continue."""
        for prefill in [p for p in self._prompts.running if isinstance(p.job, QueryJob)]:
            self._prompts.end(prefill, error)
        for prefill in [p for p in self.blocks.restores.cursors if isinstance(p.job, QueryJob)]:
            self._end_restore(prefill, error)
        for job in self._waiting.drop(lambda job: isinstance(job, QueryJob)):
            job.end(error)

    # ---- (a) collect and cancel -----------------------------------------------------------------------------------

    def _drop_cancelled(self) -> None:
        if self.decoding.rows:
            self.decoding.drop_cancelled()
        if self._beams.running:
            self._beams.drop_cancelled()
        for prefill in list(self._prompts.running):
            if prefill.job.abandoned:
                self._prompts.end(prefill, None)
        if self.blocks.asked:
            for prefill in self.blocks.restores.cursors:
                if prefill.job.abandoned:
                    self._end_restore(prefill, None)
        if self._background.workers:
            self._background.drop_cancelled()
        self._steps_to_sweep -= 1
        if self._has_waiting and self._steps_to_sweep < 0:  # less often the more jobs wait: a step's cost stays constant
            for job in self._waiting.drop(attrgetter("abandoned")):
                self._drop_waiting(job)
            self._steps_to_sweep = len(self._waiting) // AT_ONCE

    def _drop_waiting(self, job: Job) -> None:
        """Ends a cancelled request before it is placed."""
        self._request_metrics.leave(job, "cancelled")
        job.end(None)

    def _fail(self, job: Job, error: BaseException) -> None:
        """Ends a job without a place with an error, possibly a `BaseException` (a native panic)."""
        self._request_metrics.leave(job, "error")
        self.counters.publish(self.cache)  # before the answer, so that its reader sees the numbers
        job.end(typed(error))

    def _answer(self, job: Job, prefill: Prefill, last: Distribution) -> None:
        """Answers a job whose path is complete, or starts its generation."""
        try:
            if isinstance(job, DecodingJob):
                (self._beams if isinstance(job, BeamJob) else self.decoding).start(prefill, last)
            else:
                job.answer(last)
        except BaseException as error:  # noqa: BLE001  # the border: only this job fails
            self._fail(job, error)

    def _fits(self, prefill: Prefill) -> bool:
        """Whether a newly placed job has room besides the others, after preempting some of them if necessary.

        Called when memory is short or jobs are parked.
        """
        kv_budget, job = self.cache.kv_budget, prefill.job
        for elder, needed in self._waiting.parked.items():
            before = elder.priority <= job.priority and elder.order < job.order
            if before and kv_budget.spare() < needed <= kv_budget.spare(elder.order):
                return False  # only later jobs keep the parked one waiting: this job must not join them
        if kv_budget.plenty or any(common_prefix(other.tagged, prefill.tagged) > prefill.at for other in self._prompts.running):
            return True  # a shared prefix is computed and stored once
        while kv_budget.spare() < 0 and len(kv_budget.live) > 1:
            if not self._prompts.preempt(job=job):
                return False
        return True

    def _admit(self, job: Job) -> None:
        if isinstance(job, CallJob):
            value = job.call()
            self.counters.publish(self.cache)  # metrics show its effect before the caller goes on
            settle(job.future, value)
            return
        if not isinstance(job, QueryJob):
            self._request_metrics.place(job)
        if isinstance(job, BackgroundJob):
            self._background.admit(job)
            return
        self.cache.check_room(len(job.ids) + job.extra_tokens)
        first_wanted = len(job.ids) - 1
        if isinstance(job, ScoreJob):
            first_wanted = self._prompts.first_unscored(job) - 1
            if first_wanted == len(job.ids) - 1:
                self._prompts.scores_are_known(job)
                self.cache.answered(job)
                return
        elif (known := self.cache.vectors.get(job.key)) is not None:
            if isinstance(job, QueryJob):
                self.counters.tokens_reused += len(job.ids)
                self.counters.publish(self.cache)
                self.cache.answered(job)
                job.answer(known)
                return
            prefill = self.cache.place(job, len(job.ids))
            if prefill.at == len(job.ids):  # the KV is there as well: nothing to push
                if job.on_progress is not None:
                    job.on_progress(prefill.progress)
                self._answer(job, prefill, known)
                return
            self.cache.leave(prefill)
        if self.blocks.thread is not None and self.blocks.restores.worth_reading(job):
            self.blocks.restores.begin(self.cache.place(job, len(job.ids) - 1))
            return
        prefill = self.cache.place(job, max(first_wanted, 0))
        if (self._waiting.parked or not self.cache.kv_budget.plenty) and not self._fits(prefill):
            self.cache.leave(prefill)
            self._waiting.park(job)
            return
        self._prompts.running.append(prefill)
        if job.on_progress is not None:
            job.on_progress(prefill.progress)
        if isinstance(job, ScoreJob):  # cached tokens that are pushed again for their scores
            self.counters.tokens_rescored += max(self.cache.trie.match(job.spans(job.ids)) - prefill.at, 0)

    def _resume_restored(self, cursor: Prefill) -> None:
        """Admits a job whose stored blocks were restored."""
        try:
            self._admit(cursor.job)
        except BaseException as error:  # noqa: BLE001  # the border: only this job fails
            self._fail(cursor.job, error)
        finally:
            self.cache.leave(cursor)  # only now, when the job itself is placed

    def _end_restore(self, cursor: Prefill, error: BaseException | None) -> None:
        """Ends a job whose path is being restored: with the error, or because no caller waits."""
        job = cursor.job
        self.cache.leave(cursor)
        self._request_metrics.leave(job, "cancelled" if error is None else "error", reused=cursor.reused)
        job.end(error)
        self.blocks.restores.drop(cursor)
