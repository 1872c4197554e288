"""Runs the coroutines of clicks and keys, shows their refusals and logs their bugs.

For the window's thread only, inside the running event loop.
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
        show: Called with the text of a refusal or of a bug, unless the caller of `run` passes a callback of its own.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._running: set[asyncio.Task[None]] = set()  # the loop itself keeps weak references only
        self._latest: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._running)

    def run(self, work: Coroutine[Any, Any, object], refused: Callable[[str], None] | None = None) -> asyncio.Task[None]:
        """Starts `work` and holds it until it has ended; `refused` gets the text of a refusal."""
        task = asyncio.get_running_loop().create_task(self._guarded(work, refused or self._show))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda _task: work.close())  # a task cancelled before its first step never touched it
        return task

    def latest(self, key: str, work: Coroutine[Any, Any, object], refused: Callable[[str], None] | None = None) -> None:
        """Like `run`, but first cancels the task with the same key: its result is out of date."""
        self.drop(key)
        self._latest[key] = self.run(work, refused)

    def running(self, key: str) -> asyncio.Task[None] | None:
        """The task with that key; None if it has ended."""
        task = self._latest.get(key)
        return None if task is None or task.done() else task

    def drop(self, key: str) -> None:
        """Cancels the task with that key."""
        previous = self._latest.pop(key, None)
        if previous is not None:
            previous.cancel()

    async def ended(self) -> None:
        """Waits until all tasks but the caller's have ended."""
        while others := [task for task in self._running if not task.done() and task is not asyncio.current_task()]:
            await asyncio.wait(others)

    async def cancel(self) -> None:
        """Cancels all tasks but the caller's, and waits until they have ended."""
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


def ignore_refusal(_words: str) -> None:
    """Drops a refusal, for commands that no key or click asked for."""


async def tell(listener: Callable[..., object], command: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> None:
    """Awaits a command and calls `listener` with its result; as work for `Tasks`."""
    listener(await command(*args, **kwargs))


class StoppableTasks:
    """Tasks that can be stopped, at most one per key. A listener may start a task again from within its callbacks.

    Args:
        tasks: Runs them.
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
        """Starts `work`, unless a task with the same key is running.

        Args:
            key: Names the task.
            work: Makes the coroutine.
            done: Called with its result.
            stopped: Called if it was stopped.
            refused: Called with the text of a refusal.
        """
        if key in self._running:
            return
        task = self._running[key] = self._tasks.run(self._run(key, work, done, stopped), refused)
        task.add_done_callback(partial(self._ended, key, stopped))

    def stop(self, key: str) -> None:
        if key in self._running:
            self._running[key].cancel()

    async def cancel(self) -> None:
        """Cancels all tasks and waits until they have ended."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(
        self, key: str, work: Callable[[], Coroutine[Any, Any, T]], done: Callable[[T], None], stopped: Callable[[], None]
    ) -> None:
        try:
            try:
                result = await work()
            finally:
                del self._running[key]  # before any callback
        except asyncio.CancelledError:
            stopped()
            raise
        done(result)

    def _ended(self, key: str, stopped: Callable[[], None], task: asyncio.Task[None]) -> None:
        if self._running.get(key) is task:  # cancelled before its first step
            del self._running[key]
            stopped()
