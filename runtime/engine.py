"""The owner thread: it alone creates, evaluates and destroys arrays, and it runs the scheduler."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import numpy as np

from runtime.backends.base import Backend
from runtime.errors import SessionClosedError
from runtime.info import CacheReport, Metrics
from runtime.scheduler.jobs import CallJob, Job
from runtime.scheduler.loop import Scheduler, typed

T = TypeVar("T")
log = logging.getLogger(__name__)
REPORT_SECONDS = 0.25  # the cache report is renewed this often while something runs
LOOK_SHARE = 50  # looking through all edges takes no more than one in so many seconds
FEW_EDGES = 64  # which are looked through after every answer
SHORT_RESTS_SECONDS = 1.0  # that a look is put off at most, for a rest that is long enough
REST_SECONDS = 0.01  # of idleness before what can wait is done


class Engine:
    """Runs a backend's scheduler on a thread of its own until closed.

    Args:
        make: Builds backend and scheduler, on the owner thread; what it raises is raised here.
    """

    def __init__(self, make: Callable[[], tuple[Backend, Scheduler]]) -> None:
        self._make = make
        self._wake = threading.Condition()
        self._inbox: list[Job] = []
        self._closing = False
        self._ready: Future[tuple[Backend, Scheduler]] = Future()
        self.report = CacheReport(0, 0, 0, 0, 0, 0, 0, 0)
        self._reported = self._looked = 0.0  # monotonic seconds
        self._look_cost = 0.0  # seconds
        self._stale = False  # the report's largest edges are old ones
        self._phase = "loading"
        self._thread = threading.Thread(target=self._run, name="elsewise-owner", daemon=True)
        self._thread.start()
        self.backend, self.scheduler = self._ready.result()

    @property
    def metrics(self) -> Metrics:
        """The counters as of the last step."""
        return self.scheduler.counters.latest

    def heartbeat(self) -> tuple[int, str]:
        """Steps done and what goes on: "loading", "step" or "idle"."""
        scheduler = getattr(self, "scheduler", None)
        return (scheduler.steps if scheduler is not None else 0), self._phase

    def submit(self, jobs: Sequence[Job]) -> None:
        """Hands jobs over as one batch; any thread.

        Raises:
            SessionClosedError: The model was closed.
        """
        with self._wake:
            if self._closing:
                raise SessionClosedError("the model is closed; load it again")
            self._inbox.extend(jobs)
            self._wake.notify()

    def expects(self, digest: str) -> bool:
        """Whether a job that uses an adapter has arrived and was not taken in yet; any thread."""
        with self._wake:
            return any(job.uses(digest) for job in self._inbox)

    def nudge(self) -> None:
        """A job was cancelled: look."""
        with self._wake:
            self._wake.notify()

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Runs something on the owner thread between two steps."""
        job = CallJob(np.empty(0, np.int32), None, call=function)
        self.submit([job])
        future: Future[T] = job.future
        return future

    def close(self) -> None:
        """Ends the thread and frees the model; who waits gets `SessionClosedError`. Idempotent."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            backend, scheduler = self._make()
        except BaseException as error:  # noqa: BLE001  # delivered to whoever loads
            self._ready.set_exception(typed(error))
            return
        self._phase = "idle"
        scheduler.blocks.wake = self.nudge
        self._ready.set_result((backend, scheduler))
        try:
            while self._collect(scheduler):
                scheduler.step()
                if not scheduler.busy or time.monotonic() - self._reported > REPORT_SECONDS:
                    self._renew_report(scheduler, whole=self._look_due(scheduler))
            fault: BaseException = SessionClosedError("the model was closed while this was being worked on")
        except BaseException as error:  # the loop itself failed: a bug of ours
            log.exception("the scheduler stopped")
            fault = typed(error)
        finally:
            with self._wake:
                self._closing = True
                scheduler.submit(self._inbox)
                self._inbox = []
        scheduler.fail_all(fault)
        scheduler.unload()
        backend.unload()

    def _collect(self, scheduler: Scheduler) -> bool:
        """Takes what arrived; waits when there is nothing to do. False: time to end."""
        while True:
            with self._wake:
                if self._inbox or scheduler.busy or self._closing:
                    arrived, self._inbox = self._inbox, []
                    closing = self._closing
                    break
                self._phase = "idle"
                rested = not self._wake.wait(REST_SECONDS if self._stale else None)
            if rested:
                self._renew_report(scheduler, whole=True)
        self._phase = "step"
        scheduler.submit(arrived)
        return not closing

    def _look_due(self, scheduler: Scheduler) -> bool:
        """Whether every edge is looked at for the largest: always where they are few, else when there is time for it.

        Before a rest it can wait for that; but where every rest is short, it is time at last.
        """
        if scheduler.cache.trie.edges <= FEW_EDGES:
            return True
        least = REPORT_SECONDS if scheduler.busy else SHORT_RESTS_SECONDS
        return time.monotonic() - self._looked > max(least, LOOK_SHARE * self._look_cost)

    def _renew_report(self, scheduler: Scheduler, *, whole: bool) -> None:
        started = time.monotonic()
        if whole:
            scheduler.cache.look_through()
        self.report = scheduler.cache.report()
        self._reported = time.monotonic()
        self._stale = not whole
        if whole:
            self._looked, self._look_cost = self._reported, self._reported - started
