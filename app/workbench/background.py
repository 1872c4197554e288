"""Background tasks of the event loop, and blocking work on a thread that can be stopped."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar


class BackgroundTasks:
    """Tasks that no caller waits for; those still running at the end are cancelled."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        """Iterates over a copy: tasks may end meanwhile."""
        return iter(tuple(self._tasks))

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Starts a task, unless `close` was called."""
        if self._closing:
            work.close()
            return
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        self._closing = True

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()


P = TypeVar("P")
T = TypeVar("T")
REPORT_SECONDS = 0.05  # between two forwarded reports


class _StoppedError(Exception):
    """The work was cancelled."""


async def stoppable(work: Callable[[Callable[[P], None]], T], tell: Callable[[P], object]) -> T:
    """Runs blocking `work` on a thread; if cancelled, stops it at its next report and waits for its end.

    Args:
        work: Takes the progress callback, calls it at least once a second, and lets its exception through.
        tell: Called on the loop with the reports, at most twenty per second.
    """
    loop, stopping, due = asyncio.get_running_loop(), threading.Event(), 0.0

    def report(news: P) -> None:
        nonlocal due
        if stopping.is_set():
            raise _StoppedError
        if (now := time.monotonic()) >= due:
            due = now + REPORT_SECONDS
            loop.call_soon_threadsafe(pass_on, news)

    def pass_on(news: P) -> None:
        if not stopping.is_set():
            tell(news)

    with ThreadPoolExecutor(1, thread_name_prefix="shelf") as pool:  # its exit waits for the work
        running = asyncio.wrap_future(pool.submit(work, report))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            stopping.set()
            await asyncio.wait([running])
            if not running.cancelled():
                running.exception()  # retrieved: `_StoppedError`
            raise
        finally:
            stopping.set()
