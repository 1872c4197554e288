"""The owner thread: it alone creates, evaluates and destroys arrays, and it runs the scheduler."""

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
from runtime.info import CacheReport, Metrics
from runtime.memory import limit_arenas, return_memory
from runtime.scheduler.faults import typed
from runtime.scheduler.jobs import CallJob, Job, Turn
from runtime.scheduler.loop import Scheduler

T = TypeVar("T")
log = logging.getLogger(__name__)
REPORT_SECONDS = 0.25  # the cache report is renewed this often while something runs
FEW_EDGES = 64  # with which the report is whole after every answer
REST_SECONDS = 0.01  # of idleness before what can wait is done
EXIT_SECONDS = 60.0  # that the end of the process waits at most for the end of a step


class Engine:
    """Runs a backend's scheduler on a thread of its own until closed.

    It is the process's: a forked child is refused at once, and at exit the thread is ended first. Left to the interpreter,
    it would be stopped within a native library, which aborts the process.

    Args:
        make: Builds backend and scheduler, on the owner thread; what it raises is raised here. It is handed a function that
            raises `SessionClosedError` once the model is not waited for any more, to be called between two steps of the load.
    """

    def __init__(self, make: Callable[[Callable[[], None]], tuple[Backend, Scheduler]]) -> None:
        self._wake = threading.Condition()
        self._inbox: list[Job] = []
        self._nudged = self._closing = self._exiting = False
        self._ready: Future[tuple[Backend, Scheduler]] = Future()
        self.report = CacheReport(0, 0, 0, 0, 0, 0, 0, 0)
        self._phase = "loading"
        self._pid = os.getpid()
        self._freed = threading.Event()  # at exit: the owner thread has freed all it had
        limit_arenas()
        self._thread = threading.Thread(target=self._run, args=(make,), name="elsewise-owner", daemon=True)
        self._go_first_at_exit()
        self._thread.start()
        try:
            self.backend, self.scheduler = self._ready.result()
        except BaseException:  # Ctrl-C too: the load is given up
            self.end()
            raise

    @property
    def metrics(self) -> Metrics:
        """The counters as of the last step."""
        return self.scheduler.counters.latest

    def heartbeat(self) -> tuple[int, str, int]:
        """Steps done, what goes on ("loading", "step" or "idle"), and calls of the model and its layers: progress in a step."""
        if self._phase == "loading":
            return 0, "loading", 0
        return self.scheduler.steps, self._phase, self.backend.forwards + self.backend.layer_calls

    def submit(self, jobs: Sequence[Job]) -> None:
        """Hands jobs over as one batch; any thread. They fail where the model was closed, or is another process's."""
        turn = Turn()
        for job in jobs:
            if not job.turn.one_by_one:
                job.turn = turn
        if os.getpid() == self._pid:  # in a forked child no thread answers, and any lock may be held for ever
            with self._wake:
                if not self._closing:
                    self._inbox.extend(jobs)
                    self._wake.notify()
                    return
        fault = self.ended
        assert fault is not None  # it was closed, or is another process's
        for job in jobs:
            job.end(fault)

    @property
    def ended(self) -> RuntimeFault | None:
        """Why nothing can be asked any more; None while it lives."""
        if os.getpid() != self._pid:
            return ForkedError.of(self._pid)
        return SessionClosedError("the model is closed; load it again") if self._closing else None

    def _load_on(self) -> None:
        """Between two steps of the load: ends it where it is not waited for."""
        if self._closing:
            raise SessionClosedError("the model is closed; load it again")
        self._go_first_at_exit()

    def _go_first_at_exit(self) -> None:
        """What was registered last runs first: before what the libraries registered, as far as they are imported."""
        if not self._exiting:
            atexit.unregister(self._end_with_process)
            atexit.register(self._end_with_process)

    def expects(self, digest: str) -> bool:
        """Whether a job that uses an adapter has arrived and was not taken in yet; any thread."""
        with self._wake:
            return any(job.uses(digest) for job in self._inbox)

    def nudge(self) -> None:
        """A job was cancelled, or a thread has an answer: look."""
        if os.getpid() == self._pid:  # in a forked child there is nothing to cancel
            with self._wake:
                self._nudged = True
                self._wake.notify()

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Runs something on the owner thread between two steps."""
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
        """Waits for the end of the step that is computed; a second Ctrl-C ends the process at once."""
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
                _rest_for_good()
            atexit.unregister(self._end_with_process)

    def _serve(self, make: Callable[[Callable[[], None]], tuple[Backend, Scheduler]]) -> None:
        try:
            backend, scheduler = make(self._load_on)
        except BaseException as error:  # noqa: BLE001  # delivered to the caller that loads
            self._answer_load(typed(error))
            return
        del make  # and the files of the model with it
        self._go_first_at_exit()
        self._phase = "idle"
        scheduler.blocks.wake = self.nudge
        scheduler.listen(lambda: None if self._closing else self._inbox.copy())
        self._answer_load((backend, scheduler))
        try:
            self._work(scheduler)
            fault: BaseException = SessionClosedError("the model was closed while this was being worked on")
        except BaseException as error:  # the loop itself failed: a bug of ours
            log.exception("the scheduler stopped")
            fault = typed(error)
        finally:
            with self._wake:
                self._closing = True
                scheduler.submit(self._inbox)
                self._inbox = []
        if not self._exiting:  # else a daemon thread would print its error while the process ends
            scheduler.fail_all(fault)
        scheduler.unload()
        backend.unload()
        return_memory()

    def _answer_load(self, outcome: tuple[Backend, Scheduler] | BaseException) -> None:
        """Lets the thread that loads go on; not at exit, where a daemon thread rests as the owner does."""
        with self._wake:
            if self._exiting:
                return
            if isinstance(outcome, BaseException):
                self._ready.set_exception(outcome)
            else:
                self._ready.set_result(outcome)

    def _work(self, scheduler: Scheduler) -> None:
        """Works on what arrives until the model is closed; waits when there is nothing to do.

        The report is made anew whenever there is nothing more to do, its largest edges every `REPORT_SECONDS` while answers
        follow each other.
        """
        reported = looked = 0.0  # monotonic seconds
        busy = stale = False  # whether there is more to do; whether the report's largest edges are old ones
        while True:
            rested = False
            with self._wake:
                while not (busy or self._inbox or self._nudged or self._closing or rested):
                    self._phase = "idle"
                    rested = not self._wake.wait(REST_SECONDS if stale else None)
                if self._closing:
                    return
                if self._inbox or self._nudged:  # it may have come just as the rest was over
                    rested = False
                arrived, self._inbox, self._nudged = self._inbox, [], False
            if not rested:
                self._phase = "step"
                scheduler.submit(arrived)
                del arrived  # they are the scheduler's: this loop may wait for long
                busy = scheduler.step()
            now = time.monotonic()
            if not busy or now - reported > REPORT_SECONDS:
                reported = now
                stale = not (rested or scheduler.cache.trie.edges <= FEW_EDGES or now - looked > REPORT_SECONDS)
                if not stale:
                    looked = now
                self.report = scheduler.cache.report(look=not stale)


def _rest_for_good() -> None:
    """Keeps a thread from ending while the process does.

    MLX clears what a thread compiled or imported when that thread ends, and needs the interpreter for it: one that is gone by
    then stops the thread within the destructor, which aborts the process.
    """
    threading.Event().wait()
