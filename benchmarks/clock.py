"""Stopping the time of contenders that take turns, so that a noisy machine is noisy for all of them."""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

Clock = Callable[[], float]  # seconds
Told = Callable[[str], None]  # what goes on, for whoever watches


@dataclass(frozen=True, slots=True)
class Lap:
    """One contender's turn."""

    tokens: int  # that were made while the clock ran
    cpu_seconds: float  # of the whole process
    wall_seconds: float
    outcome: str = ""  # digest of what came out; empty where nothing is to be compared


class Stopwatch:
    """Cpu-seconds of the process and wall time since `start`; of clocks of one's own, what they say."""

    def __init__(self, cpu: Clock = time.process_time, wall: Clock = time.perf_counter) -> None:
        self._clocks = cpu, wall
        self._started: tuple[float, float] | None = None

    def start(self) -> None:
        """From now on."""
        self._started = self._now()

    def lap(self, tokens: int, answers: Sequence[Sequence[int]] = ()) -> Lap:
        """Until now.

        Args:
            tokens: Made since the start.
            answers: What came out, for the outcome.

        Raises:
            ValueError: It was never started.
        """
        if self._started is None:
            raise ValueError("the clock was never started: no first token came")
        (cpu, wall), (cpu_now, wall_now) = self._started, self._now()
        return Lap(tokens, cpu_now - cpu, wall_now - wall, digest(answers) if answers else "")

    def _now(self) -> tuple[float, float]:
        cpu, wall = self._clocks
        return cpu(), wall()


def digest(answers: Sequence[Sequence[int]]) -> str:
    """Equal for equal answers."""
    told = hashlib.sha256()
    for answer in answers:
        told.update(np.asarray([*answer, -1], np.int32).tobytes())
    return told.hexdigest()[:12]


def take_turns(contenders: Mapping[str, Callable[[], Lap]], rounds: int, tell: Told, *, warm_up: bool) -> dict[str, list[Lap]]:
    """Everybody's first lap, then everybody's second: A B A B.

    What is there before the first lap is kept out of the garbage collector's sight until the last one has ended.

    Args:
        contenders: By name.
        rounds: Laps of each.
        tell: Is told the name before every lap.
        warm_up: Whether a first round is not counted.
    """
    laps: dict[str, list[Lap]] = {name: [] for name in contenders}
    gc.collect()
    gc.freeze()
    try:
        for turn in range(rounds + warm_up):
            for name, run in contenders.items():
                tell(name)
                gc.collect()
                lap = run()
                if turn >= warm_up:
                    laps[name].append(lap)
    finally:
        gc.unfreeze()
    return laps


def speed(ours: Sequence[Lap], peer: Sequence[Lap], seconds: Callable[[Lap], float]) -> float:
    """How many times as fast: the median over rounds of the peer's seconds per token by ours in the same round."""
    return median((seconds(b) / b.tokens) / (seconds(a) / a.tokens) for a, b in zip(ours, peer, strict=True))


def wall(lap: Lap) -> float:
    """Seconds that somebody waited."""
    return lap.wall_seconds


def cpu(lap: Lap) -> float:
    """Seconds that a core worked."""
    return lap.cpu_seconds
