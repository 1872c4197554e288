"""How fast, and how busy, the machine is at the moment: one fixed piece of work to hold other seconds against."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

ROUNDS = 40
SIZE = 1_000_000


@dataclass(frozen=True, slots=True)
class Calibration:
    """Seconds of one fixed numpy kernel on one thread; wall far above cpu says that the machine is busy."""

    cpu_seconds: float
    wall_seconds: float


def calibrate() -> Calibration:
    """Runs the kernel: exponentials and sorts of a million float32, forty times: about half a second."""
    values = np.random.default_rng(0).standard_normal(SIZE, dtype=np.float32)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(ROUNDS):
        np.sort(np.exp(values))
    return Calibration(time.process_time() - cpu, time.perf_counter() - wall)
