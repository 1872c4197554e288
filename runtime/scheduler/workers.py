"""Work done in steps beside answers: each kind of job brings the class that works on it. Owner thread only.

A new kind is one file: its `BackgroundJob`, and the `Worker` that the job makes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from runtime.backends.packs.packed import Backend
from runtime.options.load import LoadOptions
from runtime.scheduler.faults import all_of
from runtime.scheduler.jobs import AnsweredJob, Job
from runtime.scheduler.kv.cache import Cache
from runtime.scheduler.kv.workspace import NoRoomError
from runtime.scheduler.metrics import Counters, RequestMetrics
from runtime.scheduler.prefill.prefill import Prefill
from runtime.scheduler.prefill.prompts import CHUNK_SECONDS, Pace, preemptible


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What a worker works with."""

    backend: Backend
    options: LoadOptions  # batch limits
    cache: Cache
    counters: Counters
    ledger: RequestMetrics
    pace: Pace  # how much goes into one forward


@dataclass(slots=True, eq=False)
class BackgroundJob(AnsweredJob, ABC):
    """A job that is worked on in steps, beside answers and prompts."""

    @staticmethod
    @abstractmethod
    def worker(context: WorkerContext) -> Worker[Any]:
        """What works on all jobs of this kind."""


@dataclass(slots=True, eq=False, kw_only=True)
class Work:
    """A job on its way.

    Attributes:
        job: The job.
        prefill: While it has a pack.
        lacking: Bytes, for which others have to leave first.
        departures: When it was last looked whether there is room.
    """

    job: Any
    prefill: Prefill | None = None
    lacking: int | None = None
    departures: int = 0


W = TypeVar("W", bound=Work)


class Worker(ABC, Generic[W]):
    """The jobs of one kind that run."""

    def __init__(self, context: WorkerContext) -> None:
        self._backend, self._options, self._cache = context.backend, context.options, context.cache
        self._counters, self._ledger, self._pace = context.counters, context.ledger, context.pace
        self.running: list[W] = []  # the one served last stands last

    @property
    def waits(self) -> bool:
        """Whether other requests have to leave before any job can go on."""
        return all(map(self._is_blocked, self.running))

    def _is_blocked(self, work: W) -> bool:
        if work.lacking is None or not self._cache.room.live:
            return False
        return work.departures == self._cache.departures or self._cache.room.spare() < work.lacking

    @abstractmethod
    def admit(self, job: Any) -> None:
        """Takes a job in.

        Raises:
            MemoryBudgetError: It cannot fit whatever is evicted; nothing was computed.
        """

    def step(self, *, contended: bool) -> None:
        """One forward for the job served longest ago that need not wait; `contended`: other requests wait for this step's end."""
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
        """One forward of up to `quota` tokens for a job; what fails in it is the job's own."""

    @abstractmethod
    def end(self, work: W, error: BaseException | None) -> None:
        """The job ends unfinished: with the error, or because it was cancelled."""

    @abstractmethod
    def _length(self, work: W) -> int:
        """Tokens of the path that the job needs a pack for."""

    def _retry_later(self, work: W, error: BaseException) -> bool:
        """Whether others hold what a forward of the job has not found: then it begins again when one has left."""
        if not isinstance(error, NoRoomError) or len(self._cache.room.live) == (work.prefill is not None):
            return False
        self._restart(work)
        return True

    def _restart(self, work: W) -> None:
        """Frees the job's pack; it begins again when there is room."""
        self._free(work)
        work.job.parks += 1
        work.lacking, work.departures = self._cache.room.lacking(self._length(work)), self._cache.departures

    def _free(self, work: W) -> None:
        if work.prefill is not None:
            self._cache.leave(work.prefill)
            work.prefill = None

    def preempt(self, job: Job | None) -> bool:
        """Frees the pack of a job that gives way to another one (None: to any). False: there is none."""
        for work in self.running:
            if work.prefill is not None and (job is None or preemptible(work.job, work.prefill.total, job)):
                self._restart(work)
                return True
        return False


class Background:
    """All background jobs: each step serves one kind, in turn.

    Attributes:
        workers: Of the kinds of which a job runs; the one served last stands last.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self.workers: dict[type[BackgroundJob], Worker[Any]] = {}

    @property
    def jobs(self) -> list[Job]:
        """The jobs that run."""
        return [work.job for worker in self.workers.values() for work in worker.running]

    @property
    def waits(self) -> bool:
        """Whether other requests have to leave before any job can go on."""
        return all(worker.waits for worker in self.workers.values())

    def admit(self, job: BackgroundJob) -> None:
        """Takes a job in.

        Raises:
            MemoryBudgetError: It cannot fit whatever is evicted; nothing was computed.
        """
        kind = type(job)
        worker = self.workers.get(kind) or kind.worker(self._context)
        worker.admit(job)
        if worker.running:
            self.workers[kind] = worker

    def step(self, *, contended: bool) -> None:
        """One forward, of the kind served longest ago that need not wait; `contended`: other requests wait for its end."""
        kind = next((kind for kind, worker in self.workers.items() if not worker.waits), next(iter(self.workers)))
        worker = self.workers[kind] = self.workers.pop(kind)
        worker.step(contended=contended)
        if not worker.running:
            del self.workers[kind]

    def preempt(self, job: Job | None = None) -> bool:
        """Frees the pack of a job, which begins anew when there is room again. False: there is none.

        Args:
            job: The one that asks, where it is not running yet; see `preemptible`.
        """
        return any(worker.preempt(job) for worker in self.workers.values())

    def drop_cancelled(self) -> None:
        """Ends the jobs that are not waited for any more."""
        for kind, worker in list(self.workers.items()):
            for work in [work for work in worker.running if work.job.cancelled]:
                worker.end(work, None)
            if not worker.running:
                del self.workers[kind]

    def fail_all(self, error: BaseException) -> None:
        """Every job gets the error."""
        all_of([partial(worker.end, work, error) for worker in self.workers.values() for work in worker.running])
        self.workers.clear()
