"""The scheduler's loop: the jobs that arrive during a forward are the next batch. No timers.

Per step: (a) collect new jobs and drop cancelled ones; (b) one token for every running generation; (c) queries and (d) one
prefill chunk sized by time, packed into one forward per workspace. All computed KV is published to the trie, also after a
cancellation. Owner thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import NamedTuple
from weakref import WeakValueDictionary

from runtime.backends.packs.packed import Backend
from runtime.options.load import LoadOptions
from runtime.options.priority import Priority
from runtime.scheduler.beam.beams import Beams
from runtime.scheduler.blocks.blocks import Blocks
from runtime.scheduler.decode.decoding import Decoding
from runtime.scheduler.decode.rows import Vocabulary
from runtime.scheduler.faults import all_of, typed
from runtime.scheduler.jobs import BeamJob, CallJob, DecodingJob, FanJob, GenerateJob, Job, QueryJob, ScoreJob, Turn, settle
from runtime.scheduler.kv.cache import Cache
from runtime.scheduler.metrics import Counters, RequestMetrics
from runtime.scheduler.prefill.distributions import Distribution
from runtime.scheduler.prefill.prefill import Prefill
from runtime.scheduler.prefill.prompts import Prompts
from runtime.scheduler.workers import Background, BackgroundJob, WorkerContext
from runtime.speculation.draft import Drafter
from runtime.trie.tree import common_prefix

AT_ONCE = 64  # most jobs of one caller that are placed in one step
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
        self.cache = Cache(backend, budget, enabled=options.cache)
        self.counters = Counters()
        self._ledger = RequestMetrics(self.counters)
        self._drafter = self.cache.room.drafter = None if draft is None else Drafter(draft, self.cache.room.make)
        self._waiting = Waiting()
        self._has_waiting = False  # whether jobs still wait after a step
        self._steps_to_sweep = 0  # steps until the waiting jobs are checked for cancelled ones
        self._last_check = (-1, 0)  # departures and budget at the last check for room for parked jobs
        self._queries: WeakValueDictionary[object, QueryJob] = WeakValueDictionary()  # running or waiting, by key
        self.blocks = Blocks(options.blocks, self.cache, self.counters, self._resume_restored)
        self._leaving: list[tuple[str, Future[None]]] = []  # digests of adapters to unload, and the futures to settle
        vocabulary = Vocabulary(token_bytes, eos, backend.info.context_length)
        self.decoding = Decoding(
            options,
            self.cache,
            self.counters,
            self._ledger,
            vocabulary,
            self._drafter,
            overlaps=backend.overlaps,
            preempt=self._preempt,
        )
        self._beams = Beams(self.cache, self.counters, self._ledger, self._preempt, vocabulary)
        self._starts: dict[type[Job], Callable[[Prefill, Distribution], None]] = {
            GenerateJob: self.decoding.start,
            FanJob: self.decoding.start,
            BeamJob: self._beams.start,
        }  # called when a prompt is complete
        self._prompts = Prompts(
            options,
            self.cache,
            self.counters,
            self._ledger,
            fail=self._fail,
            starts=self._starts,
            park=self._park,
            preempt_others=lambda: self._background.preempt(),
        )
        context = WorkerContext(backend, options, self.cache, self.counters, self._ledger, self._prompts.pace)
        self._background = Background(context)
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
                self._ledger.enter(job)
                if isinstance(job, DecodingJob):
                    job.begin_masks()
            self._waiting.new.setdefault(Lane(job.priority, job.turn), deque()).append(job)

    def step(self) -> bool:
        """Runs one step; returns whether another one has work at once, without a new job or an answer of another thread."""
        self.steps += 1
        self._drop_cancelled()
        room, looked = self.cache.room, self._last_check
        self._last_check = self.cache.departures, self.cache.room.budget

        def returns(needed: int) -> bool:
            return not room.live or (looked != self._last_check and room.spare() >= needed)

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
        if self.decoding.rows:
            self.decoding.step(paced=not (self._prompts.running or self._background.workers))
        if self._beams.running:
            self._beams.step()
        decodes = bool(self.decoding.rows or self._beams.running)
        if decodes:
            self._prompts.pace.busy()
        if self._prompts.running:
            self._prompts.step(decoding=decodes)
        decodes = bool(self.decoding.rows or self._beams.running)
        if self._background.workers and not (decodes and self._prompts.running):
            self._background.step(contended=decodes or bool(self._prompts.running))
        self.cache.room.account()
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
        ends += [partial(self._end_restore, prefill, error) for prefill in self.blocks.restores.cursors]
        ends.append(partial(self._background.fail_all, error))
        ends += [partial(self._fail, job, error) for job in self._waiting]
        ends += [partial(settle, future, error=error) for _, future in self._leaving]
        all_of(ends)
        self._waiting.clear()
        self._leaving.clear()

    def unload(self) -> None:
        """Ends the block thread, frees the cache and the draft model; no job may be running."""
        self.blocks.close()
        self.cache.clear()
        if self._drafter is not None:
            self._drafter.unload()
        del self._starts, self._prompts, self.decoding, self._beams  # reference cycles with it that hold the vocabulary

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
        self._ledger.leave(job, "cancelled")
        job.end(None)

    def _fail(self, job: Job, error: BaseException) -> None:
        """Ends a job without a place with an error, possibly a `BaseException` (a native panic)."""
        self._ledger.leave(job, "error")
        self.counters.publish(self.cache)  # before the answer, so that its reader sees the numbers
        job.end(typed(error))

    def _preempt(self) -> bool:
        """Preempts a background job, or else a prompt, for a running answer; False if there is none."""
        return self._background.preempt() or self._prompts.preempt()

    def _park(self, job: Job) -> None:
        self._ledger.park(job)
        self._waiting.park(job, self.cache.room.lacking(len(job.ids) + job.extra_tokens))

    def _fits(self, prefill: Prefill) -> bool:
        """Whether a newly placed job has room besides the others, after preempting some of them if necessary.

        Called when memory is short or jobs are parked.
        """
        room, job = self.cache.room, prefill.job
        for elder, needed in self._waiting.parked.items():
            before = elder.priority <= job.priority and elder.order < job.order
            if before and room.spare() < needed <= room.spare(elder.order):
                return False  # only later jobs keep the parked one waiting: this job must not join them
        if room.plenty or any(common_prefix(other.tagged, prefill.tagged) > prefill.at for other in self._prompts.running):
            return True  # a shared prefix is computed and stored once
        while room.spare() < 0 and len(room.live) > 1:
            if not (self._background.preempt(job) or self._prompts.preempt(job=job)):
                return False
        return True

    def _admit(self, job: Job) -> None:
        if isinstance(job, CallJob):
            settle(job.future, job.call())
            return
        if not isinstance(job, QueryJob):
            self._ledger.place(job)
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
                self._starts[type(job)](prefill, known)
                return
            self.cache.leave(prefill)
        if self.blocks.thread is not None and self.blocks.restores.worth_reading(job):
            self.blocks.restores.begin(self.cache.place(job, len(job.ids) - 1))
            return
        prefill = self.cache.place(job, max(first_wanted, 0))
        if (self._waiting.parked or not self.cache.room.plenty) and not self._fits(prefill):
            self.cache.leave(prefill)
            self._park(job)
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
        self._ledger.leave(job, "cancelled" if error is None else "error", reused=cursor.reused)
        job.end(error)
        self.blocks.restores.drop(cursor)


class Lane(NamedTuple):
    """The key of a queue of waiting jobs."""

    priority: Priority
    turn: Turn


class Waiting:
    """Waiting jobs: a queue per `Lane`, so that a call with thousands delays no other; and *parked* ones, which lack memory."""

    def __init__(self) -> None:
        self.new: dict[Lane, deque[Job]] = {}
        self._admitted = 0  # jobs so far
        self.parked: dict[Job, int] = {}  # each with the bytes that it needs, in order of arrival

    def __iter__(self) -> Iterator[Job]:
        return iter([*self.parked, *(job for jobs in self.new.values() for job in jobs)])

    def __len__(self) -> int:
        return len(self.parked) + sum(map(len, self.new.values()))

    def park(self, job: Job, needed: int) -> None:
        """Parks a job until `needed` bytes are free besides the running jobs, or no other job runs."""
        job.parks += 1
        self.parked[job] = needed

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
        """Removes all jobs."""
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
