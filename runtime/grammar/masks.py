"""Threads that work out the masks of grammars."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
_MOST_THREADS = 64


class MaskWorkers:
    """Works out masks beside the caller, one after the other; one that takes long holds up none that is asked for.

    One thread takes what was submitted. Each further one would contend with the caller for the interpreter at every mask (eight
    rows of a small model: 8 % of a step), so that it begins only when a caller waits for what none has begun. Thread-safe.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="elsewise-grammar")
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Mask], Callable[[], Mask]]] = deque()
        self._threads = 0  # that take what waits
        self._closed = False

    def submit(self, compute: Callable[[], Mask]) -> Future[Mask]:
        """What `compute` will give.

        Raises:
            RuntimeError: It was closed, or the interpreter ends.
        """
        coming: Future[Mask] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("no mask is worked out any more")
            if not self._threads:
                self._begin()
            self._waiting.append((coming, compute))
        return coming

    def hurry(self, coming: Future[Mask]) -> None:
        """A caller waits for it now: where none has begun it, a further thread takes what waits."""
        with self._lock:
            if not coming.running() and not coming.done() and not self._closed:
                self._begin()

    def close(self) -> None:
        """Ends the threads after what they are at; what waits is cancelled."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
        for coming, _ in waiting:
            coming.cancel()
        self._pool.shutdown(cancel_futures=True)

    def _begin(self) -> None:
        """One thread more; under the lock."""
        self._pool.submit(self._work)
        self._threads += 1

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                coming, compute = self._waiting.popleft()
                coming.set_running_or_notify_cancel()
            try:
                coming.set_result(compute())
            except BaseException as fault:  # noqa: BLE001  # its waiter is told; a native panic is no Exception
                coming.set_exception(fault)
