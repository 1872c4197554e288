"""The owner thread: only it creates, evaluates and destroys arrays, and it runs the scheduler."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import numpy as np

from runtime.backends.packs.packed import Backend
from runtime.errors import ForkedError, RuntimeFault, SessionClosedError
from runtime.info import CacheReport
from runtime.memory import limit_arenas, return_memory
from runtime.scheduler.faults import typed
from runtime.scheduler.jobs import CallJob, Job, JobGroup
from runtime.scheduler.loop import Scheduler

T = TypeVar("T")
log = logging.getLogger(__name__)
REPORT_SECONDS = 0.25  # the cache report is renewed this often while something runs
FEW_EDGES = 64  # up to this number of edges in the trie, the report lists the largest ones after every answer
IDLE_SECONDS = 0.01  # idle time before deferred work is done
EXIT_SECONDS = 60.0  # longest wait for the end of a step when the process exits


class Engine:
    """Runs a backend's scheduler on a thread of its own until closed.

    It works in one process only: calls of a forked child fail at once. At exit the thread is ended first; otherwise the
    interpreter would stop it within a native library, which aborts the process.

    Args:
        make: Builds backend and scheduler, on the owner thread; its exceptions are raised here. Its argument is a function to
            call between two steps of the load, which raises `SessionClosedError` once the load was given up.
    """

    def __init__(self, make: Callable[[Callable[[], None]], tuple[Backend, Scheduler]]) -> None:
        self._wake = threading.Condition()
        self.inbox: list[Job] = []  # submitted jobs that the scheduler has yet to receive; changed under `_wake`
        self._nudged = self._closing = self._exiting = False
        self._ready: Future[tuple[Backend, Scheduler]] = Future()
        self.report = CacheReport(0, 0, 0, 0, 0, 0, 0, 0)
        self._phase = "loading"
        self._pid = os.getpid()
        self._freed = threading.Event()  # at exit: the owner thread has freed the model
        limit_arenas()
        self._thread = threading.Thread(target=self._run, args=(make,), name="elsewise-owner", daemon=True)
        self._register_exit()
        self._thread.start()
        try:
            self.backend, self.scheduler = self._ready.result()
        except BaseException:  # Ctrl-C too: the load is given up
            self.end()
            raise

    def heartbeat(self) -> tuple[int, str, int]:
        """Steps done, the phase ("loading", "step" or "idle"), and calls of the model and its layers (progress in a step)."""
        if self._phase == "loading":
            return 0, "loading", 0
        return self.scheduler.steps, self._phase, self.backend.forwards + self.backend.layer_calls

    def submit(self, jobs: Sequence[Job]) -> None:
        """Submits jobs as one batch; any thread. They fail if the model was closed, or belongs to another process."""
        turn = JobGroup()
        for job in jobs:
            if not job.turn.one_by_one:
                job.turn = turn
        if os.getpid() == self._pid:  # in a forked child no thread answers, and any lock may be held for ever
            with self._wake:
                if not self._closing:
                    self.inbox.extend(jobs)
                    self._wake.notify()
                    return
        fault = self.ended
        assert fault is not None  # it was closed, or belongs to another process
        for job in jobs:
            job.end(fault)

    @property
    def ended(self) -> RuntimeFault | None:
        """The error of new calls; None while the engine lives."""
        if os.getpid() != self._pid:
            return ForkedError.of(self._pid)
        return SessionClosedError("the model is closed; load it again") if self._closing else None

    def _check_load(self) -> None:
        """Called between two steps of the load; ends a load that was given up."""
        if self._closing:
            raise SessionClosedError("the model is closed; load it again")
        self._register_exit()

    def _register_exit(self) -> None:
        """Registers the last exit handler, which runs first: before the handlers of the libraries imported so far."""
        if not self._exiting:
            atexit.unregister(self._end_with_process)
            atexit.register(self._end_with_process)

    def expects(self, digest: str) -> bool:
        """Whether the scheduler has yet to receive a submitted job that uses an adapter; any thread."""
        with self._wake:
            return any(job.uses(digest) for job in self.inbox)

    def nudge(self) -> None:
        """Wakes the owner thread because a job was cancelled, or another thread has an answer."""
        if os.getpid() == self._pid:  # in a forked child there is nothing to cancel
            with self._wake:
                self._nudged = True
                self._wake.notify()

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Runs a function on the owner thread between two steps."""
        job = CallJob(np.empty(0, np.int32), None, call=function)
        self.submit([job])
        future: Future[T] = job.future
        return future

    def end(self) -> None:
        """Lets the thread end and free the model, without waiting; any thread. Pending requests get `SessionClosedError`."""
        if os.getpid() == self._pid:
            with self._wake:
                self._closing = True
                self._wake.notify()

    def close(self) -> None:
        """Ends the thread and frees the model. Idempotent; in a forked child it does nothing."""
        self.end()
        if os.getpid() == self._pid and threading.current_thread() is not self._thread:
            self._thread.join()

    def _end_with_process(self) -> None:
        """Waits for the end of the current step; a second Ctrl-C ends the process at once."""
        if os.getpid() != self._pid:
            return
        with self._wake:
            self._exiting = True
        self.end()
        deadline = time.monotonic() + EXIT_SECONDS
        try:
            while self._thread.is_alive() and not self._freed.wait(0.05) and time.monotonic() < deadline:
                pass
        except KeyboardInterrupt:
            sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(self._pid, signal.SIGINT)

    def _run(self, make: Callable[[Callable[[], None]], tuple[Backend, Scheduler]]) -> None:
        try:
            self._serve(make)
        finally:
            if self._exiting:
                self._freed.set()
                _block_forever()
            atexit.unregister(self._end_with_process)

    def _serve(self, make: Callable[[Callable[[], None]], tuple[Backend, Scheduler]]) -> None:
        try:
            backend, scheduler = make(self._check_load)
        except BaseException as error:  # noqa: BLE001  # delivered to the caller that loads
            self._answer_load(typed(error))
            return
        del make  # releases the model's files
        self._register_exit()
        self._phase = "idle"
        scheduler.blocks.wake = self.nudge
        scheduler.listen(lambda: None if self._closing else self.inbox.copy())
        self._answer_load((backend, scheduler))
        try:
            self._work(scheduler)
            fault: BaseException = SessionClosedError("the model was closed while this was being worked on")
        except BaseException as error:  # the loop itself failed, which is a bug
            log.exception("the scheduler stopped")
            fault = typed(error)
        finally:
            with self._wake:
                self._closing = True
                scheduler.submit(self.inbox)
                self.inbox = []
        if not self._exiting:  # otherwise a daemon thread would print its error while the process ends
            scheduler.fail_all(fault)
        scheduler.unload()
        backend.unload()
        return_memory()

    def _answer_load(self, outcome: tuple[Backend, Scheduler] | BaseException) -> None:
        """Lets the loading thread continue; at exit it stays blocked, as the owner thread does."""
        with self._wake:
            if self._exiting:
                return
            if isinstance(outcome, BaseException):
                self._ready.set_exception(outcome)
            else:
                self._ready.set_result(outcome)

    def _work(self, scheduler: Scheduler) -> None:
        """Runs steps until the model is closed; waits when there is nothing to do.

        The report is renewed whenever there is nothing more to do; its largest edges only every `REPORT_SECONDS` while answers
        follow each other.
        """
        reported = looked = 0.0  # monotonic seconds
        busy = stale = False  # whether there is more to do; whether the report's largest edges are outdated
        while True:
            idle = False  # whether `IDLE_SECONDS` passed without work
            with self._wake:
                while not (busy or self.inbox or self._nudged or self._closing or idle):
                    self._phase = "idle"
                    idle = not self._wake.wait(IDLE_SECONDS if stale else None)
                if self._closing:
                    return
                if self.inbox or self._nudged:  # work may have arrived at the end of the wait
                    idle = False
                arrived, self.inbox, self._nudged = self.inbox, [], False
            if not idle:
                self._phase = "step"
                scheduler.submit(arrived)
                del arrived  # frees finished jobs while this loop waits
                busy = scheduler.step()
            now = time.monotonic()
            if not busy or now - reported > REPORT_SECONDS:
                reported = now
                stale = not (idle or scheduler.cache.trie.edges <= FEW_EDGES or now - looked > REPORT_SECONDS)
                if not stale:
                    looked = now
                self.report = scheduler.cache.report(look=not stale)


def _block_forever() -> None:
    """Keeps a thread from ending while the process does.

    When a thread ends, MLX clears what it compiled or imported, which needs the interpreter. An interpreter that has shut down
    would stop the thread within the destructor, which aborts the process.
    """
    threading.Event().wait()
