"""Work in the background that nobody waits for; what is left of it at the end is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Chores:
    """Tasks of the window's loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Does it some time soon; not after `close`, for nobody would wait for its end."""
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
