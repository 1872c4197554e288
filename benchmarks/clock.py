"""Clocks of contenders that take turns, gaps of event loops, and the calibration of the machine."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Self

import numpy as np

Clock = Callable[[], float]  # seconds
Told = Callable[[str], None]  # takes messages about progress


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

    def start(self) -> Self:
        """From now on."""
        self._started = self._now()
        return self

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


def timed(act: Callable[[int], object], times: int, *, each: int = 1) -> Lap:
    """A lap of an act that is told how often it was done, and makes `each` tokens."""
    watch = Stopwatch().start()
    for i in range(times):
        act(i)
    return watch.lap(each * times)


def timed_steps(step: Callable[[Any], Any], prompts: Any, n: int) -> Lap:
    """Every row's `n` tokens, each made of those before it; the clock runs from the first on.

    Args:
        step: The next token of each row, ``(rows, 1)``, after what is given.
        prompts: ``(rows, length)``, an array of some library.
        n: Tokens.
    """
    watch, tokens = Stopwatch(), step(prompts)
    watch.start()
    drawn = [tokens[:, 0].tolist()]
    for _ in range(n - 1):
        tokens = step(tokens)
        drawn.append(tokens[:, 0].tolist())
    return watch.lap(len(drawn[0]) * (n - 1), list(zip(*drawn, strict=True)))


def digest(answers: Sequence[Sequence[int]]) -> str:
    """Equal for equal answers."""
    told = hashlib.sha256()
    for answer in answers:
        told.update(np.asarray([*answer, -1], np.int32).tobytes())
    return told.hexdigest()[:12]


def take_turns(
    contenders: Mapping[str, Callable[[], Lap]], rounds: int, tell: Told, *, row: str = "", warm_up: bool = True
) -> dict[str, list[Lap]]:
    """The first lap of each contender, then the second of each: A B A B.

    What is there before the first lap is kept out of the garbage collector's sight until the last one has ended.

    Args:
        contenders: By name.
        rounds: Laps of each.
        tell: Is told the name before every lap, behind the row's.
        row: What is measured.
        warm_up: Whether a first round is not counted.
    """
    laps: dict[str, list[Lap]] = {name: [] for name in contenders}
    gc.collect()
    gc.freeze()
    try:
        for turn in range(rounds + warm_up):
            for name, run in contenders.items():
                tell(f"{row}, {name}" if row else name)
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
    """Wall-clock seconds."""
    return lap.wall_seconds


def cpu(lap: Lap) -> float:
    """Seconds that a core worked."""
    return lap.cpu_seconds


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
