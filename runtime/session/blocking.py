"""Coroutines for who cannot await."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs it to its end and returns what it returns; inside a running loop (which it holds up) on a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # no loop in this thread
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1, "elsewise-session") as pool:
        return pool.submit(asyncio.run, coroutine).result()
