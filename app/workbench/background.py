"""Background tasks of the event loop, and blocking work on a thread that can be stopped."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
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
REPORT_SECONDS = 0.05  # between two reports to the loop


class _StoppedError(Exception):
    """The work was cancelled."""


async def stoppable(work: Callable[[Callable[[P], None]], T], tell: Callable[[P], object]) -> T:
    """Runs blocking `work` on a thread; if cancelled, stops it at its next report and waits for its end.

    A second cancellation does not wait.

    Args:
        work: Takes the progress callback, calls it often, and lets its exception through.
        tell: Called on the loop with the newest report, at most twenty times per second, and with the last one.
    """
    loop, stopping = asyncio.get_running_loop(), threading.Event()
    newest, scheduled, due = deque[P](maxlen=1), False, 0.0

    def report(news: P) -> None:
        nonlocal scheduled
        if stopping.is_set():
            raise _StoppedError
        newest.append(news)
        if not scheduled:
            scheduled = True
            loop.call_soon_threadsafe(lambda: loop.call_at(due, pass_on))

    def pass_on() -> None:
        nonlocal scheduled, due
        scheduled, due = False, loop.time() + REPORT_SECONDS  # before `newest` is read: a report after it is scheduled again
        if newest and not stopping.is_set():
            tell(newest.pop())

    pool = ThreadPoolExecutor(1, thread_name_prefix="stoppable")
    running = asyncio.wrap_future(pool.submit(work, report))
    running.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved: `_StoppedError`
    pool.shutdown(wait=False)
    try:
        answer = await asyncio.shield(running)
        pass_on()
        return answer
    except asyncio.CancelledError:
        stopping.set()
        await asyncio.wait([running])
        raise
    finally:
        stopping.set()
