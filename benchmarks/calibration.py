"""How fast, and how busy, the machine is at the moment: what other seconds and gaps are to be held against."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.gaps import gaps_of, ticks

ROUNDS = 20
SIZE = 1_000_000
IDLE_SECONDS = 0.5
BUSY = 1.2  # wall over cpu from which the machine counts as busy
STALLED = 5.0  # ms at the idle loop's 99th percentile from which it does as well


@dataclass(frozen=True, slots=True)
class Calibration:
    """One fixed numpy kernel on one thread, and the gaps of an event loop that has nothing to do (ms)."""

    when: str  # the case that was about to run
    cpu_seconds: float
    wall_seconds: float
    idle_p99: float
    idle_max: float

    @property
    def normal(self) -> bool:
        """Whether a missed bar counts: the kernel was not kept waiting, nor the idle loop."""
        return self.wall_seconds <= BUSY * self.cpu_seconds and self.idle_p99 <= STALLED


def calibrate(when: str) -> Calibration:
    """Runs the kernel (exponentials and sorts of a million float32: a quarter of a second), then idles half a second."""
    values = np.random.default_rng(0).standard_normal(SIZE, dtype=np.float32)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(ROUNDS):
        np.sort(np.exp(values))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    _, p99, longest = gaps_of(asyncio.run(ticks(IDLE_SECONDS)))
    return Calibration(when, cpu, wall, p99, longest)
