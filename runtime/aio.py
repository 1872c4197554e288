"""An event loop on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """A daemon thread that runs an event loop until it is told to stop. `post` and `submit` may be called from any thread."""

    def __init__(self, name: str) -> None:
        self._gate = threading.RLock()  # reentrant: a finaliser may post while this thread posts
        self._open = True
        self._stop = asyncio.Event()
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name=name, daemon=True)
        self._thread.start()
        self.loop = started.result()

    def post(self, callback: Callable[..., object], *arguments: Any) -> bool:
        """Runs `callback` on the loop soon. False if the loop has been stopped: it never runs then."""
        with self._gate:
            if self._open:
                self.loop.call_soon_threadsafe(callback, *arguments)
            return self._open

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine on the loop; a future for any thread.

        Raises:
            RuntimeError: The loop has been stopped.
        """
        with self._gate:
            if not self._open:
                coroutine.close()
                raise RuntimeError(f"the thread {self._thread.name} has ended")
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def stop(self) -> None:
        """Lets the thread end after what was posted before; tasks that still run are cancelled. Does not wait."""
        with self._gate:
            if self._open:
                self._open = False
                self.loop.call_soon_threadsafe(self._stop.set)

    def join(self) -> None:
        """Waits for the thread's end (not on that thread itself)."""
        self._thread.join()

    def _run(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner() as runner:
            started.set_result(runner.get_loop())
            runner.run(self._stop.wait())


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end and returns its result: as `asyncio.run`, and where a loop is running already.

    That is the case in a notebook's cell. The coroutine has a loop of its own in a thread of its own; the caller waits, and
    Ctrl-C there cancels it.
    """
    thread = LoopThread("run-sync")
    try:
        return thread.submit(coroutine).result()
    finally:
        thread.stop()  # which cancels it, where it has not ended
        thread.join()
