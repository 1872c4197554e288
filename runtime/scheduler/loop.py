"""The scheduler: what arrived during the last forward is the next batch. No timers.

Per step: (a) collect and cancel; (b) one token for every running generation; (c) queries and (d) one prefill chunk
sized by time, packed into one forward per workspace. Everything computed is published to the trie, also when the
caller has gone. Runs on the owner thread alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from runtime.aio import together
from runtime.backends.base import Backend
from runtime.errors import MemoryBudgetError
from runtime.options import LoadOptions
from runtime.records import Float32
from runtime.scheduler.beams import Beams
from runtime.scheduler.cache import Cache
from runtime.scheduler.counters import Counters
from runtime.scheduler.faults import bisect, typed
from runtime.scheduler.finish import Finisher, gone
from runtime.scheduler.jobs import BeamJob, CallJob, FanJob, GenerateJob, Job, QueryJob, ScoreJob, StayingJob, settle
from runtime.scheduler.logits import Distributions, normalise
from runtime.scheduler.prefill import Prefill
from runtime.scheduler.prompts import Prompts
from runtime.scheduler.room import NoRoomError
from runtime.scheduler.rows import Row, decode
from runtime.scheduler.standing import bring_back
from runtime.scheduler.stream import Stream, TextDecoder
from runtime.scheduler.waiting import Waiting

__all__ = ["Scheduler", "typed"]


class Scheduler:
    """Works through jobs on one backend.

    Args:
        backend: The model.
        options: Batch limits and whether anything is cached.
        budget: Bytes for trie and working buffers together.
        token_bytes: Bytes of every id.
        eos: Ids that end an answer.
        new_decoder: Makes an incremental UTF-8 decoder.
    """

    def __init__(
        self,
        backend: Backend,
        options: LoadOptions,
        budget: int,
        token_bytes: Sequence[bytes],
        eos: frozenset[int],
        new_decoder: Callable[[], TextDecoder],
    ) -> None:
        self._options = options
        self._context = backend.info.context_length
        self._token_bytes = token_bytes
        self._eos = eos
        self._new_decoder = new_decoder
        self.cache = Cache(backend, budget, enabled=options.cache)
        self.counters = Counters()
        self._finish = Finisher(self.cache, self.counters)
        self._waiting = Waiting()
        self._queries: dict[object, QueryJob] = {}
        self._rows: list[Row] = []
        self._prompts = Prompts(
            options,
            self.cache,
            self.counters,
            self._finish,
            guard=self._guard,
            forget=self._forget,
            start=self._start,
            park=self._waiting.park,
        )
        self._beams = Beams(
            self.cache,
            self.counters,
            self._prompts.make_way,
            token_bytes=token_bytes,
            eos=eos,
            context=self._context,
            new_decoder=new_decoder,
        )
        self.steps = 0

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._waiting or self._in_work)

    @property
    def _in_work(self) -> bool:
        return bool(self._rows or self._beams.running or self._prompts.running)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Takes jobs in; a query equal to one in flight joins it."""
        for job in jobs:
            if isinstance(job, QueryJob):
                self.counters.queries += 1
                running = self._queries.get(job.key)
                if running is not None and not running.abandoned:
                    running.waiters.extend(job.waiters)
                    self.counters.queries_deduplicated += 1
                    continue
                self._queries[job.key] = job
            self._waiting.append(job)

    def step(self) -> None:
        """One round; call while `busy`."""
        self.steps += 1
        self._drop_cancelled()
        for job in self._waiting.take(self.cache.departures, idle=not self._in_work):
            self._guard(job, partial(self._admit, job))
        if self._rows:
            self._decode_step()
            with together():
                for row in self._rows:  # after the work; before what may take long, all there is
                    row.stream.deliver(paced=not self._prompts.running)
        self._beams.step()
        if self._prompts.running:
            self._prompts.step(decoding=bool(self._rows or self._beams.running))
        self.cache.account()
        self.counters.publish(self.cache)

    def fail_all(self, error: BaseException) -> None:
        """Nobody waits for ever: every job in work or waiting gets the error."""
        for row in list(self._rows):
            self._end_row(row, error)
        self._beams.fail_all(error)
        for prefill in list(self._prompts.running):
            self._prompts.end(prefill, error)
        for job in self._waiting:
            job.fail(error)
        self._waiting.clear()
        self._queries.clear()

    def cancel_queries(self, error: BaseException) -> None:
        """Every query that waits fails with `error`; generations and scores go on."""
        for prefill in [p for p in self._prompts.running if isinstance(p.job, QueryJob)]:
            self._prompts.end(prefill, error)
        for job in [j for j in self._waiting if isinstance(j, QueryJob)]:
            self._waiting.remove(job)
            job.fail(error)
        self._queries.clear()

    # ---- (a) collect and cancel -----------------------------------------------------------------------------------

    def _drop_cancelled(self) -> None:
        for row in [r for r in self._rows if r.job.cancelled]:
            self._end_row(row, None)
        self._beams.drop_cancelled()
        for prefill in [p for p in self._prompts.running if gone(p.job)]:
            self._prompts.end(prefill, None)
        for job in [j for j in self._waiting if gone(j)]:
            self._waiting.remove(job)
            self._forget(job)
            if isinstance(job, StayingJob):
                job.leave()

    def _guard(self, job: Job, act: Callable[[], None]) -> bool:
        """A job that fails takes nobody with it."""
        try:
            act()
        except BaseException as error:  # noqa: BLE001  # the border: the caller gets it (a native panic is no Exception)
            self._forget(job)
            job.fail(typed(error))
            return False
        return True

    def _forget(self, job: Job) -> None:
        if isinstance(job, QueryJob) and self._queries.get(job.key) is job:
            del self._queries[job.key]

    def _admit(self, job: Job) -> None:
        if isinstance(job, CallJob):
            settle(job.future, job.call())
            return
        self.cache.check_room(job.least_tokens)
        first_wanted = len(job.ids) - 1
        if isinstance(job, ScoreJob):
            first_wanted = self._finish.first_unscored(job) - 1
            if first_wanted == len(job.ids) - 1:
                self._finish.scores_are_known(job)
                self.cache.answered(job)
                return
        elif (vector := self.cache.vectors.get(job.key)) is not None:
            if isinstance(job, QueryJob):
                self.counters.tokens_reused += len(job.ids)
                self.counters.publish(self.cache)
                self._forget(job)
                self.cache.answered(job)
                job.answer(vector)
                return
            prefill = self.cache.place(job, len(job.ids))
            if prefill.at == len(job.ids):  # the KV is there as well: nothing to push
                prefill.tell()
                self._start(prefill, vector)
                return
            self.cache.leave(prefill)
        prefill = self.cache.place(job, max(first_wanted, 0))
        self._prompts.running.append(prefill)
        prefill.tell()
        if isinstance(job, ScoreJob):  # what is held but must be pushed again, for want of scores
            self.counters.tokens_rescored += max(self.cache.match(job.namespace, job.ids) - prefill.at, 0)

    # ---- (b) one token for every generation -----------------------------------------------------------------------

    def _decode_step(self) -> None:
        by_workspace: dict[int, list[Row]] = {}
        for row in self._rows:
            by_workspace.setdefault(id(row.workspace), []).append(row)
        for rows in by_workspace.values():
            for start in range(0, len(rows), self._options.max_batch_rows):
                self._decode_rows(rows[start : start + self._options.max_batch_rows])

    def _decode_rows(self, rows: list[Row]) -> None:
        rows = self._standing(rows)
        if not rows:
            return
        workspace = rows[0].workspace
        base = workspace.size
        fresh: dict[tuple[int, int], int] = {}  # (slot, token) -> the new slot, shared by whoever says the same there
        at = [fresh.setdefault((row.slot, row.pending), len(fresh)) for row in rows]
        try:
            for place in fresh:
                workspace.append(*place)
            logits = workspace.forward([token for _, token in fresh], [slot for slot, _ in fresh], range(len(fresh)))
        except BaseException as error:  # noqa: BLE001  # bisected: only the guilty row fails
            workspace.rollback(base)
            if isinstance(error, NoRoomError) and self._prompts.make_way():
                self._decode_rows(rows)
                return
            bisect(rows, error, self._decode_rows, self._end_row)
            return
        self.counters.tokens_computed += len(fresh)
        self.counters.forward_calls += 1
        for row, i in zip(rows, at, strict=True):
            row.slot = base + i
            row.pushed += 1
        self._draw(rows, normalise(logits, entropy=True), at)

    def _standing(self, rows: list[Row]) -> list[Row]:
        """The rows, each where a token can be appended now; one that cannot be brought back has ended.

        One that is brought back may take the state that another stood on, but only of a shorter path: no more rounds
        are needed than there are rows.
        """
        for _ in range(len(rows)):
            lost = [row for row in rows if not row.workspace.resumable(row.slot)]
            if not lost:
                break
            moved: dict[int, int] = {}  # who stood at one place stands at one place again
            for row in lost:
                if row.slot in moved:
                    row.slot = moved[row.slot]
                elif (slot := self._push_again(row)) is not None:
                    moved[row.slot], row.slot = slot, slot
            rows = [row for row in rows if row in self._rows]
        return rows

    def _push_again(self, row: Row) -> int | None:
        """Brings a generation back to its place, whose recurrent state went along with another job.

        Returns:
            Its new slot; None when it could not be brought back and has ended.
        """
        try:
            return bring_back(self.cache, self.counters, row.prefill, row.path)
        except BaseException as error:  # noqa: BLE001  # the border: this generation alone fails
            self._end_row(row, typed(error))
            return None

    def _draw(self, rows: list[Row], after: Distributions, at: Sequence[int]) -> None:
        for row, failure in decode(rows, after, at):
            self._end_row(row, failure)
        for row in rows:
            if row not in self._rows:
                continue
            if row.due:
                row.tried = row.pushed
                self._finish.publish_row(row)
            try:
                self.cache.check_room(len(row.job.ids) + row.pushed + 1)
            except MemoryBudgetError as full:  # this one has outgrown the budget by itself; what it said is kept
                self._end_row(row, typed(full))

    def _start(self, prefill: Prefill, last: Float32) -> None:
        """A prompt is in place: what goes on from it begins, with the distribution after it ``(vocab,)``."""
        job = prefill.job
        assert isinstance(job, StayingJob)
        self.counters.last_reused, self.counters.last_computed = prefill.reused, prefill.computed
        self.counters.first_token_seconds = time.monotonic() - job.submitted
        self.counters.publish(self.cache)  # before the first token, so that who sees it sees what the prompt cost
        if isinstance(job, BeamJob):
            self._beams.start(prefill, last)
        else:
            self._start_rows(prefill, last)

    def _start_rows(self, prefill: Prefill, last: Float32) -> None:
        """The first token of each continuation comes from `last` ``(vocab,)``."""
        jobs = _continuations(prefill.job)
        if not jobs:
            self.cache.leave(prefill)
            return
        rows: list[Row] = []
        places = [prefill]
        begun = False
        try:
            places += [self.cache.join(prefill, job) for job in jobs[1:]]
            for job, place in zip(jobs, places, strict=True):
                eos = self._eos if job.eos is None else job.eos
                rows.append(Row(Stream(job, self._token_bytes, eos, self._context, self._new_decoder()), place))
            self._rows += rows
            begun = True
            self._draw(rows, Distributions.known(last), [0] * len(rows))
            with together():
                for row in rows:
                    row.stream.deliver()
        except BaseException:  # the jobs are told by the caller; nothing of them stays
            ended = [row.prefill for row in rows if begun and row not in self._rows]
            self._rows = [row for row in self._rows if row not in rows]
            for place in places:
                if place not in ended:
                    self.cache.leave(place)
            raise

    def _end_row(self, row: Row, error: BaseException | None) -> None:
        self._rows.remove(row)
        self._finish.end_row(row, error)


def _continuations(job: Job) -> Sequence[GenerateJob]:
    """What begins where the job's path ends; what of it was dropped meanwhile ends here."""
    if isinstance(job, GenerateJob):
        return [job]
    assert isinstance(job, FanJob)
    for dropped in (one for one in job.jobs if one.cancelled):
        dropped.leave()
    return [one for one in job.jobs if not one.cancelled]
