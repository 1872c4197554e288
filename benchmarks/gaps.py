"""How long an event loop is away: the time between two ticks of a 1 ms timer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np

TICK_SECONDS = 0.001


async def ticks(seconds: float) -> list[float]:
    """Milliseconds between the ticks of a timer that runs this long; the tick itself is part of each."""
    found: list[float] = []
    end = (before := time.perf_counter()) + seconds
    while before < end:
        await asyncio.sleep(TICK_SECONDS)
        now = time.perf_counter()
        found.append((now - before) * 1000)
        before = now
    return found


def gaps_of(found: Sequence[float]) -> tuple[float, float, float]:
    """Median, 99th percentile and the longest."""
    middle, high = np.percentile(found, [50, 99]).tolist()
    return middle, high, max(found)
