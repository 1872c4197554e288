"""Background jobs, done in steps between those of prompts and answers. Owner thread only.

A new kind is one file with its `BackgroundJob` and the `Worker` for it, which is set as the job's `worker`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from runtime.backends.packs.packed import Backend
from runtime.info import PromptProgress
from runtime.options.load import LoadOptions
from runtime.scheduler.faults import all_of
from runtime.scheduler.jobs import AnsweredJob, Job
from runtime.scheduler.kv.prefix_cache import PrefixCache
from runtime.scheduler.kv.workspace import NoRoomError
from runtime.scheduler.metrics import EngineCounters, RequestMetrics
from runtime.scheduler.prefill.prefill import CHUNK_SECONDS, Pace, Prefill, preemptible


@dataclass(frozen=True, slots=True)
class SchedulerContext:
    """The objects that the scheduler's parts share."""

    backend: Backend
    options: LoadOptions  # batch limits
    cache: PrefixCache
    counters: EngineCounters  # of the work done
    request_metrics: RequestMetrics  # counts and times the requests
    pace: Pace  # sizes the forwards


@dataclass(slots=True, eq=False)
class BackgroundJob(AnsweredJob):
    """A job that a `Worker` does in steps."""

    worker: ClassVar[type[Worker[Any]]]  # of all jobs of this kind


@dataclass(slots=True, eq=False, kw_only=True)
class Work:
    """The state of a running job.

    Attributes:
        job: The job.
        prefill: Its cursor, while it has a pack.
        lacking: Bytes that it waits for; None if it can run.
        departures: `PrefixCache.departures` at the last check for room.
        total, done: The job's tokens or positions, repeated texts included, and how many of them are done.
        reused: Tokens that were not pushed: copied from the trie, or of texts that are repeated or kept.
        computed: Tokens that were pushed, padding included.
    """

    job: Any
    prefill: Prefill | None = None
    lacking: int | None = None
    departures: int = 0
    total: int
    done: int = 0
    reused: int = 0
    computed: int = 0

    def report_progress(self) -> None:
        if self.job.on_progress is not None:
            self.job.on_progress(PromptProgress(self.done, self.total, self.reused, self.computed, self.job.number))


W = TypeVar("W", bound=Work)


class Worker(ABC, Generic[W]):
    """Works on the jobs of one kind."""

    def __init__(self, context: SchedulerContext) -> None:
        self._backend, self._options, self._cache = context.backend, context.options, context.cache
        self._counters, self._request_metrics, self._pace = context.counters, context.request_metrics, context.pace
        self.running: list[W] = []  # the one served last is at the end

    @property
    def waits(self) -> bool:
        """Whether no job can run before another request has left."""
        return all(map(self._is_blocked, self.running))

    def _is_blocked(self, work: W) -> bool:
        if work.lacking is None or not self._cache.kv_budget.live:
            return False
        return work.departures == self._cache.departures or self._cache.kv_budget.spare() < work.lacking

    @abstractmethod
    def admit(self, job: Any) -> None:
        """Starts a job.

        Raises:
            MemoryBudgetError: It exceeds the budget; nothing was computed.
        """

    def step(self, *, contended: bool) -> None:
        """One forward for the runnable job served longest ago; `contended`: other requests wait for the end of this step."""
        for work in self.running:
            lacks, work.departures = self._is_blocked(work), self._cache.departures
            if not lacks:
                break
        else:
            return
        self.running.remove(work)
        self.running.append(work)
        work.lacking = None
        quota = self._pace.chunk(CHUNK_SECONDS) if contended else self._pace.background()
        self._forward(work, min(quota, self._options.max_batch_tokens))

    @abstractmethod
    def _forward(self, work: W, quota: int) -> None:
        """One forward of up to `quota` tokens for a job; an error in it ends only this job."""

    @abstractmethod
    def end(self, work: W, error: BaseException | None) -> None:
        """Ends the job unfinished: with the error, or because it was cancelled."""

    @abstractmethod
    def _length(self, work: W) -> int:
        """Tokens that the job needs a pack for."""

    def _retry_later(self, work: W, error: BaseException) -> bool:
        """Restarts a job later if its forward found no room because of other requests; else returns False."""
        if not isinstance(error, NoRoomError) or len(self._cache.kv_budget.live) == (work.prefill is not None):
            return False
        self._restart(work)
        return True

    def _restart(self, work: W) -> None:
        """Frees the job's pack; the job begins again when there is room."""
        self._free(work)
        work.job.parks += 1
        work.lacking, work.departures = self._cache.kv_budget.lacking(self._length(work)), self._cache.departures

    def _leave(self, work: W, finish: str, prompt: int | None = None) -> None:
        """Takes a job off and counts its end; see `RequestMetrics.leave`."""
        self.running.remove(work)
        self._free(work)
        self._request_metrics.leave(work.job, finish, prompt=prompt, reused=work.reused, computed=work.computed)
        self._counters.publish(self._cache)  # before the answer, so that its reader sees the numbers

    def _free(self, work: W) -> None:
        if work.prefill is not None:
            self._cache.leave(work.prefill)
            work.prefill = None

    def preempt(self, job: Job | None) -> bool:
        """Frees the pack of a job that `job` may preempt (None: of any job); False if there is none."""
        for work in self.running:
            if work.prefill is not None and (job is None or preemptible(work.job, work.prefill.total, job)):
                self._restart(work)
                return True
        return False


class Background:
    """All background jobs: each step serves one kind, in turn.

    Attributes:
        workers: One worker for each kind with running jobs; the one served last is at the end.
    """

    def __init__(self, context: SchedulerContext) -> None:
        self._context = context
        self.workers: dict[type[BackgroundJob], Worker[Any]] = {}

    @property
    def jobs(self) -> list[Job]:
        return [work.job for worker in self.workers.values() for work in worker.running]

    @property
    def waits(self) -> bool:
        """Whether no job can run before another request has left."""
        return all(worker.waits for worker in self.workers.values())

    def admit(self, job: BackgroundJob) -> None:
        """Starts a job.

        Raises:
            MemoryBudgetError: It exceeds the budget; nothing was computed.
        """
        kind = type(job)
        worker = self.workers.get(kind) or kind.worker(self._context)
        worker.admit(job)
        if worker.running:
            self.workers[kind] = worker

    def step(self, *, contended: bool) -> None:
        """One forward for the runnable kind served longest ago; `contended`: other requests wait for its end."""
        kind = next((kind for kind, worker in self.workers.items() if not worker.waits), next(iter(self.workers)))
        worker = self.workers[kind] = self.workers.pop(kind)
        worker.step(contended=contended)
        if not worker.running:
            del self.workers[kind]

    def preempt(self, job: Job | None = None) -> bool:
        """Frees the pack of a job, which restarts when there is room again; False if there is none.

        Args:
            job: The job that needs the room, if it is not running yet; see `preemptible`.
        """
        return any(worker.preempt(job) for worker in self.workers.values())

    def drop_cancelled(self) -> None:
        for kind, worker in list(self.workers.items()):
            for work in [work for work in worker.running if work.job.cancelled]:
                worker.end(work, None)
            if not worker.running:
                del self.workers[kind]

    def fail_all(self, error: BaseException) -> None:
        all_of([partial(worker.end, work, error) for worker in self.workers.values() for work in worker.running])
        self.workers.clear()
