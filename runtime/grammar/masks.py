"""Threads that compute the masks of grammars."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from runtime.errors import SessionClosedError

Mask = npt.NDArray[np.bool_]
_MOST_THREADS = 64


class MaskWorkers:
    """Computes masks while the caller goes on, in order; a slow mask delays no other that a caller waits for.

    One thread takes the submitted masks. Each further one would contend with the caller for the interpreter at every mask
    (eight rows of a small model: 8 % of a step), so it starts only while a caller waits and others are not started.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="elsewise-grammar")
        self._lock = threading.Lock()
        self._queue: deque[tuple[Future[Mask], Callable[[], Mask]]] = deque()
        self._threads = 0  # number of threads that serve the queue
        self._closed = False

    def submit(self, compute: Callable[[], Mask]) -> Future[Mask]:
        """The future result of `compute`.

        Raises:
            RuntimeError: It was closed, or the interpreter ends.
        """
        pending: Future[Mask] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("no mask is worked out any more")
            if not self._threads:
                self._begin()
            self._queue.append((pending, compute))
        return pending

    def hurry(self, pending: Future[Mask]) -> None:
        """A caller waits for this mask: it is next, and a further thread takes what is not started. Never raises."""
        with self._lock:
            if not self._queue or self._closed or self._threads >= _MOST_THREADS:
                return
            at = next((i for i, (each, _) in enumerate(self._queue) if each is pending), 0)
            first = self._queue[at]
            del self._queue[at]
            self._queue.appendleft(first)
            with suppress(RuntimeError):  # no thread can be started: the others take it
                self._begin()

    def close(self) -> None:
        """Ends the threads after their current masks; the others end with `SessionClosedError`."""
        with self._lock:
            self._closed = True
            queue, self._queue = self._queue, deque()
        for pending, _ in queue:
            pending.set_exception(SessionClosedError("the model is closed; load it again"))
        self._pool.shutdown(cancel_futures=True)

    def _begin(self) -> None:
        """Adds a thread. Needs the lock."""
        self._pool.submit(self._work)
        self._threads += 1

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._threads = max(self._threads - 1, 0)  # a thread whose start failed may run later, and is not counted
                    return
                pending, compute = self._queue.popleft()
                pending.set_running_or_notify_cancel()
            try:
                pending.set_result(compute())
            except BaseException as fault:  # noqa: BLE001  # goes to the waiter; a native panic is no Exception
                pending.set_exception(fault)
