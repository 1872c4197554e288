"""Work done in steps beside answers: each kind of job brings the class that works on it. Owner thread only.

A new kind is one file: its `BackgroundJob`, and the `Worker` that the job makes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from runtime.backends.packs.packed import Backend
from runtime.options.load import LoadOptions
from runtime.scheduler.faults import all_of
from runtime.scheduler.jobs import AnsweredJob, Job
from runtime.scheduler.kv.cache import Cache
from runtime.scheduler.metrics import Counters, RequestMetrics
from runtime.scheduler.prefill.prompts import CHUNK_SECONDS, Pace, yields


@dataclass(frozen=True, slots=True)
class Means:
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
    def worker(means: Means) -> Worker[Any]:
        """What works on all jobs of this kind."""


class Work(Protocol):
    """A job on its way."""

    @property
    def job(self) -> Any:
        """The job."""


W = TypeVar("W", bound=Work)


class Worker(ABC, Generic[W]):
    """The jobs of one kind that run."""

    def __init__(self, means: Means) -> None:
        self._backend, self._options, self._cache = means.backend, means.options, means.cache
        self._counters, self._ledger, self._pace = means.counters, means.ledger, means.pace
        self.running: list[W] = []  # the one served last stands last

    @property
    def waits(self) -> bool:
        """Whether other requests have to leave before anything can be computed."""
        return False

    @abstractmethod
    def admit(self, job: Any) -> None:
        """Takes a job in.

        Raises:
            MemoryBudgetError: It cannot fit whatever is evicted; nothing was computed.
        """

    @abstractmethod
    def step(self, *, beside: bool) -> None:
        """One forward for the job served longest ago; `beside`: other requests wait for this step's end."""

    def _quota(self, *, beside: bool) -> int:
        """Tokens of the next forward."""
        quota = self._pace.chunk(CHUNK_SECONDS) if beside else self._pace.background()
        return min(quota, self._options.max_batch_tokens)

    @abstractmethod
    def end(self, work: W, error: BaseException | None) -> None:
        """The job ends unfinished: with the error, or because it was cancelled."""

    @abstractmethod
    def packed(self, work: W) -> int | None:
        """Tokens of the path whose pack the job has; None: it has no pack."""

    @abstractmethod
    def begin_anew(self, work: W) -> None:
        """Frees the job's pack; it begins again when there is room."""

    def make_way(self, job: Job | None) -> bool:
        """Frees the pack of a job that gives way to another one (None: to any). False: there is none."""
        for work in self.running:
            tokens = self.packed(work)
            if tokens is not None and (job is None or yields(work.job, tokens, job)):
                self.begin_anew(work)
                return True
        return False


class Background:
    """All background jobs: each step serves one kind, in turn.

    Attributes:
        workers: Of the kinds of which a job runs; the one served last stands last.
    """

    def __init__(self, means: Means) -> None:
        self._means = means
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
        worker = self.workers.get(kind) or kind.worker(self._means)
        worker.admit(job)
        if worker.running:
            self.workers[kind] = worker

    def step(self, *, beside: bool) -> None:
        """One forward, of the kind served longest ago that need not wait; `beside`: other requests wait for its end."""
        kind = next((kind for kind, worker in self.workers.items() if not worker.waits), next(iter(self.workers)))
        worker = self.workers[kind] = self.workers.pop(kind)
        worker.step(beside=beside)
        if not worker.running:
            del self.workers[kind]

    def make_way(self, job: Job | None = None) -> bool:
        """Frees the pack of a job, which begins anew when there is room again. False: there is none.

        Args:
            job: The one that asks, where it is not running yet; see `yields`.
        """
        return any(worker.make_way(job) for worker in self.workers.values())

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
