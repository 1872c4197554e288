"""The block thread: it alone opens, reads and writes the block store."""

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

from runtime.blocks.store import BlockStore
from runtime.errors import BlockFileError, SessionClosedError

log = logging.getLogger(__name__)
T = TypeVar("T")


def told(error: BaseException) -> str:
    """An error in a line: of the operating system's, the file and what is wrong with it."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


class Urgency(IntEnum):
    """The order of requests."""

    READ = 0
    WRITE = 1
    END = 2


class BlockThread:
    """Runs what touches the store, reads before writes, each in the order of asking.

    Args:
        open_store: Makes the store, on the thread.
        on_open: Told, on the thread, whether that went well: None, or what was wrong.
    """

    def __init__(self, open_store: Callable[[], BlockStore], on_open: Callable[[Exception | None], None]) -> None:
        self._open_store, self._on_open = open_store, on_open
        self._asked: queue.PriorityQueue[tuple[int, int, Callable[[BlockStore], Any] | None, Future[Any]]]
        self._asked = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._until: float | None = None  # monotonic seconds after which nothing more is begun
        self._missing: BlockFileError | None = None  # why there is no store
        self._lock = threading.Lock()  # of `_ended`: what is put before it is set is answered
        self._ended = False  # nothing is taken out of the queue any more
        self._thread = threading.Thread(target=self._run, name="elsewise-blocks", daemon=True)
        self._thread.start()

    def ask(self, urgency: Urgency, act: Callable[[BlockStore], T]) -> Future[T]:
        """Runs `act` with the store; any thread.

        What it raises is in the future: `BlockFileError` where there is no store, `SessionClosedError` where the
        thread has ended.
        """
        future: Future[T] = Future()
        with self._lock:
            if not (self._ended or self._late):
                self._asked.put((urgency, next(self._numbers), act, future))
                return future
        future.set_exception(self._refusal())
        return future

    def close(self, seconds: float) -> None:
        """Ends the thread: what is asked already is done as far as `seconds` reach, the rest fails. Idempotent."""
        self._until = time.monotonic() + seconds
        self._asked.put((Urgency.END, next(self._numbers), None, Future()))
        self._thread.join(seconds + 1.0)  # one write that hangs does not hang the model's end
        if self._thread.is_alive():
            log.warning("the block file did not close in time")

    def _run(self) -> None:
        store: BlockStore | None = None
        try:
            store = self._open_store()
            self._on_open(None)
        except Exception as error:  # noqa: BLE001  # the border to the application's store: the engine goes on without
            self._missing = BlockFileError(f"the block file cannot be used: {told(error)}")
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
            del act, future  # what they hold is let go before the next one is waited for
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
