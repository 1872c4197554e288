"""Coroutines started by clicks and keys: one object that keeps them, shows what they refuse and logs what they break.

The window's thread only, inside the running event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, TypeVar

from resources.processes import was_moved
from ui.port import QT_TRANSLATE_NOOP, Refusal, translate

logger = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

BUG_TEXT = QT_TRANSLATE_NOOP(
    "Tasks", "This did not work: an error in Elsewise, written to the log. Nothing you wrote was lost."
)
MOVED_TEXT = QT_TRANSLATE_NOOP(
    "Tasks", "Elsewise was moved or removed while it was running: quit it, and open it from where it is now."
)


class Tasks:
    """Runs coroutines for widgets.

    Args:
        show: Called with the words of a refusal (or of a bug) unless the caller of `run` takes them itself.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._running: set[asyncio.Task[None]] = set()  # the loop itself keeps weak references only
        self._latest: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._running)

    def run(self, work: Coroutine[Any, Any, object], refused: Callable[[str], None] | None = None) -> asyncio.Task[None]:
        """Starts `work` and keeps it until it has ended; the words of a refusal go to `refused`."""
        task = asyncio.get_running_loop().create_task(self._guarded(work, refused or self._show))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda _task: work.close())  # a task cancelled before its first step never touched it
        return task

    def latest(self, key: str, work: Coroutine[Any, Any, object], refused: Callable[[str], None] | None = None) -> None:
        """Like `run`, but ends an earlier one with the same key first: the answer to an older question is not wanted."""
        self.drop(key)
        self._latest[key] = self.run(work, refused)

    def running(self, key: str) -> asyncio.Task[None] | None:
        """The one with that key, unless it has ended."""
        task = self._latest.get(key)
        return None if task is None or task.done() else task

    def drop(self, key: str) -> None:
        """Ends the one with that key: its answer is no longer wanted."""
        previous = self._latest.pop(key, None)
        if previous is not None:
            previous.cancel()

    async def ended(self) -> None:
        """Waits until nothing is running, except the caller's own task."""
        while others := [task for task in self._running if not task.done() and task is not asyncio.current_task()]:
            await asyncio.wait(others)

    async def cancel(self) -> None:
        """Ends everything that is running, except the caller's own task, and waits until it has ended."""
        others = [task for task in self._running if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._latest.clear()

    async def _guarded(self, work: Coroutine[Any, Any, object], refused: Callable[[str], None]) -> None:
        try:
            await work
        except Refusal as refusal:
            refused(str(refusal))
        except Exception:  # the border between clicks and code: a bug is logged, the window lives on
            logger.exception("a command of the window failed")
            refused(translate("Tasks", MOVED_TEXT if was_moved() else BUG_TEXT))


async def tell(listener: Callable[..., object], command: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> None:
    """Calls `listener` with what a command answers; as work for `Tasks`."""
    listener(await command(*args, **kwargs))


class Stoppables:
    """Work that can be stopped, one of each key. Its end is told when it is over, so that a listener may begin it again.

    Args:
        tasks: Run it.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._running: dict[str, asyncio.Task[None]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._running

    def begin(
        self,
        key: str,
        work: Callable[[], Coroutine[Any, Any, T]],
        *,
        done: Callable[[T], None],
        stopped: Callable[[], None],
        refused: Callable[[str], None],
    ) -> None:
        """Starts `work`, unless that runs already.

        Args:
            key: Which.
            work: Makes the coroutine.
            done: Hears what came of it.
            stopped: Hears that nothing did, as `stop` was called.
            refused: Hears the words of a refusal.
        """
        if key in self._running:
            return
        task = self._running[key] = self._tasks.run(self._whole(key, work, done, stopped), refused)
        task.add_done_callback(partial(self._over, key, stopped))

    def stop(self, key: str) -> None:
        if key in self._running:
            self._running[key].cancel()

    async def cancel(self) -> None:
        """Ends all of it and waits until it has ended."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _whole(
        self, key: str, work: Callable[[], Coroutine[Any, Any, T]], done: Callable[[T], None], stopped: Callable[[], None]
    ) -> None:
        try:
            try:
                result = await work()
            finally:
                del self._running[key]  # before anything is told
        except asyncio.CancelledError:
            stopped()
            raise
        done(result)

    def _over(self, key: str, stopped: Callable[[], None], task: asyncio.Task[None]) -> None:
        if self._running.get(key) is task:  # it was stopped before it began
            del self._running[key]
            stopped()
