"""Background tasks of the event loop, and blocking work on a thread that can be stopped."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar


class BackgroundTasks:
    """Tasks that no caller waits for; what is left of them at the end is cancelled."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        """Those of now."""
        return iter(tuple(self._tasks))

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Starts a task; after `close` none is started."""
        if self._closing:
            work.close()
            return
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Nothing is started any more."""
        self._closing = True

    def cancel(self) -> None:
        """Ends what is left."""
        for task in list(self._tasks):
            task.cancel()


P = TypeVar("P")
T = TypeVar("T")
REPORT_SECONDS = 0.05  # between two reports that are passed on


class _StoppedError(Exception):
    """The result is not wanted any more."""


class _Reports(Generic[P]):
    """What the work calls with how far it is; the last report of a moment is passed on."""

    def __init__(self, tell: Callable[[P], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._tell = tell
        self._stopping = threading.Event()
        self._next = 0.0

    def __call__(self, report: P) -> None:
        """On the work's thread.

        Raises:
            _StoppedError: It is to end.
        """
        if self._stopping.is_set():
            raise _StoppedError
        now = time.monotonic()
        if now >= self._next:
            self._next = now + REPORT_SECONDS
            self._loop.call_soon_threadsafe(self._pass_on, report)

    def stop(self) -> None:
        """The next report ends the work; none is passed on any more."""
        self._stopping.set()

    def _pass_on(self, report: P) -> None:
        if not self._stopping.is_set():
            self._tell(report)


async def stoppable(work: Callable[[Callable[[P], None]], T], tell: Callable[[P], object]) -> T:
    """Runs `work`, which is given what it reports to; cancelled, it stops it there and waits for its end.

    Args:
        work: Blocks. It reports at least once a second, and lets what that raises through.
        tell: Hears reports on the loop, at most twenty a second.
    """
    reports: _Reports[Any] = _Reports(tell)
    with ThreadPoolExecutor(1, thread_name_prefix="shelf") as pool:  # by its end the work has ended
        running = asyncio.wrap_future(pool.submit(work, reports))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            reports.stop()
            await asyncio.wait([running])
            if not running.cancelled():
                running.exception()  # it is what stopped it
            raise
        finally:
            reports.stop()
