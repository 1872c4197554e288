"""The block thread, the only thread that opens, reads and writes the block store."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from enum import IntEnum
from typing import Any, TypeVar

from runtime.errors import BlockFileError, SessionClosedError
from runtime.kv.store import BlockStore

log = logging.getLogger(__name__)
T = TypeVar("T")


def one_line(error: BaseException) -> str:
    """The message of an error in one line; for an error of the operating system, the file and its fault."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


class Urgency(IntEnum):
    """The order of requests: lower values first."""

    READ = 0
    WRITE = 1
    END = 2


class BlockThread:
    """Runs functions on the store: reads before writes, each in the order of the requests.

    Args:
        open_store: Opens the store, on the thread.
        on_open: Called on the thread with None, or with the error of `open_store`.
    """

    def __init__(self, open_store: Callable[[], BlockStore], on_open: Callable[[Exception | None], None]) -> None:
        self._open_store, self._on_open = open_store, on_open
        self._asked: queue.PriorityQueue[tuple[int, int, Callable[[BlockStore], Any] | None, Future[Any]]]
        self._asked = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._until: float | None = None  # monotonic time after which no request is begun
        self._missing: BlockFileError | None = None  # the error if there is no store
        self._lock = threading.Lock()  # guards `_ended`, so that requests queued before it is set are answered
        self._ended = False  # whether the queue is no longer read
        self._thread = threading.Thread(target=self._run, name="elsewise-blocks", daemon=True)
        self._thread.start()

    def ask(self, urgency: Urgency, act: Callable[[BlockStore], T]) -> Future[T]:
        """Runs `act` with the store on the block thread. Callable from any thread.

        The future raises the error of `act`, `BlockFileError` without a store, or `SessionClosedError` after the thread's end.
        """
        future: Future[T] = Future()
        with self._lock:
            if not (self._ended or self._late):
                self._asked.put((urgency, next(self._numbers), act, future))
                return future
        future.set_exception(self._refusal())
        return future

    def close(self, seconds: float) -> None:
        """Ends the thread after the requests that it can begin within `seconds`; the others fail. Idempotent."""
        self._until = time.monotonic() + seconds
        self._asked.put((Urgency.END, next(self._numbers), None, Future()))
        self._thread.join(seconds + 1.0)  # a hanging write must not delay the end of the model
        if self._thread.is_alive():
            log.warning("the block file did not close in time")

    def _run(self) -> None:
        store: BlockStore | None = None
        try:
            store = self._open_store()
            self._on_open(None)
        except Exception as error:  # noqa: BLE001  # the application's store: the engine goes on without it
            self._missing = BlockFileError(f"the block file cannot be used: {one_line(error)}")
            self._on_open(error)
        while True:
            _, _, act, future = self._asked.get()
            if act is None:
                break
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if store is None or self._late:
                    raise self._refusal()
                future.set_result(act(store))
            except Exception as error:  # noqa: BLE001  # as above
                future.set_exception(error)
            del act, future  # frees their references before the wait for the next request
        with self._lock:
            self._ended = True
        while not self._asked.empty():
            *_, left = self._asked.get()
            if left.set_running_or_notify_cancel():
                left.set_exception(self._refusal())
        if store is not None:
            try:
                store.close()
            except Exception:  # as above
                log.warning("the block file could not be closed", exc_info=True)

    @property
    def _late(self) -> bool:
        return self._until is not None and time.monotonic() > self._until

    def _refusal(self) -> Exception:
        if self._missing is not None:
            return BlockFileError(*self._missing.args)
        return SessionClosedError("the model is closed; load it again")
