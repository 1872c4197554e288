"""The scheduler: what arrived during the last forward is the next batch. No timers.

Per step: (a) collect and cancel; (b) one token for every running generation; (c) queries and (d) one prefill chunk
sized by time, packed into one forward per workspace. Everything computed is published to the trie, also when the
caller has gone. Runs on the owner thread alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from runtime.backends.base import Backend
from runtime.errors import MemoryBudgetError, RuntimeFault
from runtime.options import LoadOptions
from runtime.records import Float32
from runtime.scheduler.cache import Cache
from runtime.scheduler.counters import Counters
from runtime.scheduler.finish import Finisher, gone
from runtime.scheduler.jobs import CallJob, GenerateJob, Job, QueryJob, ScoreJob, settle
from runtime.scheduler.prefill import Batch, Prefill
from runtime.scheduler.rows import Row, decode, normalise
from runtime.scheduler.stream import Stream, TextDecoder

CHUNK_SECONDS = 0.08  # a prefill chunk while somebody else waits for a token
ALONE_SECONDS = 0.4  # and when nobody does
MIN_CHUNK = 32
SHORT = 2  # tokens; what needs no more goes into the batch whatever the clock says

Work = TypeVar("Work", Prefill, Row)


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
        self._waiting: list[Job] = []
        self._queries: dict[object, QueryJob] = {}
        self._prefills: list[Prefill] = []
        self._rows: list[Row] = []
        self._speed = 400.0  # prefill tokens per second, measured as we go
        self.steps = 0

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._waiting or self._prefills or self._rows)

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
        self._waiting.sort(key=lambda job: job.priority)

    def step(self) -> None:
        """One round; call while `busy`."""
        self.steps += 1
        self._drop_cancelled()
        waiting, self._waiting = self._waiting, []
        for job in waiting:
            self._guard(job, partial(self._admit, job))
        self._prefills.sort(key=lambda p: p.job.priority)
        if self._rows:
            self._decode_step()
        if self._prefills:
            self._prefill_step()
        self.cache.account()
        self.counters.publish(self.cache)

    def fail_all(self, error: BaseException) -> None:
        """Nobody waits for ever: every job in work or waiting gets the error."""
        for row in list(self._rows):
            self._end_row(row, error)
        for prefill in list(self._prefills):
            self._end_prefill(prefill, error)
        for job in self._waiting:
            job.fail(error)
        self._waiting.clear()
        self._queries.clear()

    def cancel_queries(self, error: BaseException) -> None:
        """Every query that waits fails with `error`; generations and scores go on."""
        for prefill in [p for p in self._prefills if isinstance(p.job, QueryJob)]:
            self._end_prefill(prefill, error)
        for job in [j for j in self._waiting if isinstance(j, QueryJob)]:
            self._waiting.remove(job)
            job.fail(error)
        self._queries.clear()

    # ---- (a) collect and cancel -----------------------------------------------------------------------------------

    def _drop_cancelled(self) -> None:
        for row in [r for r in self._rows if r.job.cancelled]:
            self._end_row(row, None)
        for prefill in [p for p in self._prefills if gone(p.job)]:
            self._end_prefill(prefill, None)
        for job in [j for j in self._waiting if gone(j)]:
            self._waiting.remove(job)
            self._forget(job)
            if isinstance(job, GenerateJob):
                job.on_end(None)

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
        self.cache.check_room(len(job.ids))
        first_wanted = len(job.ids) - 1
        if isinstance(job, ScoreJob):
            first_wanted = self._finish.first_unscored(job) - 1
            if first_wanted == len(job.ids) - 1:
                self._finish.scores_are_known(job)
                return
        elif (vector := self.cache.vectors.get(job.key)) is not None:
            if isinstance(job, QueryJob):
                self.counters.tokens_reused += len(job.ids)
                self.counters.publish(self.cache)
                self._forget(job)
                job.answer(vector)
                return
            prefill = self.cache.place(job, len(job.ids))
            if prefill.at == len(job.ids):  # the KV is there as well: nothing to push
                self._start_row(prefill, vector)
                return
            self.cache.leave(prefill)
        prefill = self.cache.place(job, max(first_wanted, 0))
        self._prefills.append(prefill)
        if isinstance(job, ScoreJob):  # what is held but must be pushed again, for want of scores
            self.counters.tokens_rescored += max(self.cache.match(job.namespace, job.ids) - prefill.at, 0)

    # ---- (b) one token for every generation -----------------------------------------------------------------------

    def _decode_step(self) -> None:
        for _ in self._rows:  # one that is brought back may take the state that another stood on
            lost = [row for row in self._rows if not row.workspace.resumable(row.slot)]
            if not lost:
                break
            for row in lost:
                if not row.workspace.resumable(row.slot):
                    self._push_again(row)
        by_workspace: dict[int, list[Row]] = {}
        for row in self._rows:
            by_workspace.setdefault(id(row.workspace), []).append(row)
        for rows in by_workspace.values():
            for start in range(0, len(rows), self._options.max_batch_rows):
                self._decode_rows(rows[start : start + self._options.max_batch_rows])

    def _decode_rows(self, rows: list[Row]) -> None:
        workspace = rows[0].workspace
        base = workspace.size
        parents = [row.slot for row in rows]
        fresh = [workspace.append(row.slot, row.pending) for row in rows]
        try:
            logits = workspace.forward([row.pending for row in rows], parents, range(len(rows)))
        except BaseException as error:  # noqa: BLE001  # bisected: only the guilty row fails
            workspace.rollback(base)
            self._bisect(rows, error, self._decode_rows, self._end_row)
            return
        self.counters.tokens_computed += len(rows)
        self.counters.forward_calls += 1
        for row, slot in zip(rows, fresh, strict=True):
            row.slot = slot
            row.pushed += 1
        self._draw(rows, *normalise(logits))

    def _push_again(self, row: Row) -> None:
        """Brings a generation back to its place, whose recurrent state went along with another job."""
        workspace, base, path = row.workspace, row.workspace.size, row.path
        try:
            slot, at = self.cache.regain(row.prefill, path)
            base, missing, parents = workspace.size, path[at:].tolist(), []
            for token in missing:
                parents.append(slot)
                slot = workspace.append(slot, token)
            if missing:
                workspace.forward(missing, parents, [])
        except BaseException as error:  # noqa: BLE001  # the border: this generation alone fails
            workspace.rollback(base)
            self._end_row(row, typed(error))
            return
        row.slot = slot
        self.counters.tokens_computed += len(missing)
        self.counters.forward_calls += bool(missing)

    def _draw(self, rows: list[Row], logprobs: Float32, finite: npt.NDArray[np.bool_]) -> None:
        for row, failure in decode(rows, logprobs, finite):
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
                self._end_row(row, full)

    def _start_row(self, prefill: Prefill, last: Float32) -> None:
        """A prompt is in place: the first token comes from the distribution after it ``(vocab,)``."""
        job = prefill.job
        assert isinstance(job, GenerateJob)
        eos = self._eos if job.eos is None else job.eos
        stream = Stream(job, self._token_bytes, eos, self._context, self._new_decoder())
        row = Row(stream, prefill, prefill.slot)
        self._rows.append(row)
        self.counters.last_reused, self.counters.last_computed = prefill.reused, prefill.computed
        self.counters.first_token_seconds = time.monotonic() - job.submitted
        self.counters.publish(self.cache)  # before the first token, so that who sees it sees what the prompt cost
        self._draw([row], last[None], np.ones(1, np.bool_))

    def _end_row(self, row: Row, error: BaseException | None) -> None:
        self._rows.remove(row)
        self._finish.end_row(row, error)

    # ---- (c) and (d) queries and one prefill chunk ------------------------------------------------------------------

    def _prefill_step(self) -> None:
        quota = self._quota()
        groups: dict[int, list[Prefill]] = {}
        for prefill in self._prefills:
            groups.setdefault(id(prefill.workspace), []).append(prefill)
        for group in groups.values():
            quota -= self._push(group, quota)
            if quota <= 0:
                return

    def _quota(self) -> int:
        by_time = int(self._speed * (CHUNK_SECONDS if self._rows else ALONE_SECONDS))
        sized = min(max(by_time, MIN_CHUNK), self._options.prefill_chunk_tokens)
        short = SHORT * sum(p.total - p.at <= SHORT for p in self._prefills)
        return min(max(sized, short), self._options.max_batch_tokens)

    def _push(self, group: list[Prefill], quota: int) -> int:
        """One forward over the group's next tokens; how many rows were pushed."""
        group = [prefill for prefill in group if self._guard(prefill.job, partial(self._stand_again, prefill))]
        if not group:
            return 0
        batch = Batch(group[0].workspace, group[0].workspace.size)
        started = time.monotonic()
        try:
            for prefill in group:
                batch.advance(prefill, quota - len(batch.tokens))
            batch.run()
        except BaseException as error:  # noqa: BLE001  # bisected: only the guilty request fails
            batch.workspace.rollback(batch.base)
            for prefill in group:
                prefill.undo()
            self._bisect(group, error, lambda part: self._push(part, quota), self._end_prefill)
            return quota
        pushed = len(batch.tokens)
        if pushed >= MIN_CHUNK // 2:
            self._speed += 0.5 * (pushed / max(time.monotonic() - started, 1e-6) - self._speed)
        self.counters.tokens_computed += pushed
        self.counters.forward_calls += pushed > 0
        self.counters.publish(self.cache)  # before the answers, so that who sees one sees its numbers
        moved = [prefill for prefill in group if prefill.at > prefill.mark_at]
        complete = [(prefill, last) for prefill in moved if (last := self._settle_chunk(prefill)) is not None]
        self.counters.publish(self.cache)  # before the answers, so that who has one sees its numbers
        for prefill, last in complete:
            if isinstance(prefill.job, GenerateJob):
                self._start_row(prefill, last)
            else:
                self._finish.answer(prefill.job, last)
        return pushed

    def _stand_again(self, prefill: Prefill) -> None:
        """Makes sure that a token can be appended where the job stands."""
        if not prefill.workspace.resumable(prefill.slot):
            try:
                slot, at = self.cache.regain(prefill, prefill.job.ids[: prefill.at])
            except BaseException:  # the job is told by the caller
                self._drop_prefill(prefill)
                raise
            prefill.go_back(slot, at)
        prefill.save()

    def _settle_chunk(self, prefill: Prefill) -> Float32 | None:
        """Publishes what a chunk computed.

        Returns:
            The distribution after the job's path ``(vocab,)`` when it is complete; its lease is then released.
        """
        rows: list[Float32] = []

        def take() -> None:
            rows.extend(self._finish.publish_chunk(prefill))

        if not self._guard(prefill.job, take):
            self._drop_prefill(prefill)
        elif prefill.done:
            generates = isinstance(prefill.job, GenerateJob)
            self._drop_prefill(prefill, leave=not generates)
            self._forget(prefill.job)
            if not generates:  # a generation's are counted at its end
                self._finish.count(prefill)
            return rows[-1]
        return None

    def _drop_prefill(self, prefill: Prefill, *, leave: bool = True) -> None:
        self._prefills.remove(prefill)
        if leave:
            self.cache.leave(prefill)

    def _end_prefill(self, prefill: Prefill, error: BaseException | None) -> None:
        self._forget(prefill.job)
        self._drop_prefill(prefill)
        if error is not None:
            prefill.job.fail(error)
        elif isinstance(prefill.job, GenerateJob):
            prefill.job.on_end(None)

    def _bisect(
        self,
        items: list[Work],
        error: BaseException,
        again: Callable[[list[Work]], object],
        fail: Callable[[Work, BaseException], None],
    ) -> None:
        """A failing batch is halved until the guilty one is alone."""
        if len(items) == 1:
            fail(items[0], typed(error))
            return
        half = len(items) // 2
        for part in (items[:half], items[half:]):
            wanted = [item for item in part if not gone(item.job)]
            if wanted:
                again(wanted)


def typed(error: BaseException) -> Exception:
    """The error itself, or a `RuntimeFault` around what is no Exception (a panic in native code)."""
    if isinstance(error, Exception):
        return error
    fault = RuntimeFault(f"the model's library failed: {error!r}")
    fault.__cause__ = error
    return fault
