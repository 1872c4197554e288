"""Laps of contenders that take turns, gaps of event loops, and the calibration of the machine."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import Any, Self, TypeVar

import numpy as np

Clock = Callable[[], float]  # seconds
Told = Callable[[str], None]  # receives progress messages


@dataclass(frozen=True, slots=True)
class Lap:
    """One timed turn of a contender."""

    tokens: int  # processed while the clock ran
    cpu_seconds: float  # of the whole process
    wall_seconds: float
    outcome: str = ""  # digest of the answers; empty if they are not compared


class Stopwatch:
    """Measures CPU and wall time since `start`, by default of this process; other clocks can be passed."""

    def __init__(self, cpu: Clock = time.process_time, wall: Clock = time.perf_counter) -> None:
        self._clocks = cpu, wall
        self._started: tuple[float, float] | None = None

    def start(self) -> Self:
        """Starts, or restarts, the measurement."""
        self._started = self._now()
        return self

    def lap(self, tokens: int, answers: Sequence[Sequence[int]] = ()) -> Lap:
        """Returns the time since the start as a lap.

        Args:
            tokens: Number of tokens processed since the start.
            answers: Token ids whose digest becomes the outcome of the lap.

        Raises:
            ValueError: The stopwatch was never started.
        """
        if self._started is None:
            raise ValueError("the clock was never started: no first token came")
        (cpu, wall), (cpu_now, wall_now) = self._started, self._now()
        return Lap(tokens, cpu_now - cpu, wall_now - wall, digest(answers) if answers else "")

    def _now(self) -> tuple[float, float]:
        cpu, wall = self._clocks
        return cpu(), wall()


def timed(act: Callable[[int], object], times: int, *, each: int = 1) -> Lap:
    """Calls `act(0)` to `act(times - 1)` and returns their lap; each call counts as `each` tokens."""
    watch = Stopwatch().start()
    for i in range(times):
        act(i)
    return watch.lap(each * times)


def timed_steps(step: Callable[[Any], Any], prompts: Any, n: int) -> Lap:
    """Generates `n` tokens per row, step by step; the clock starts after the first token.

    Args:
        step: Takes the new tokens of each row and returns the next ones, ``(rows, 1)``.
        prompts: ``(rows, length)``, an array of the library.
        n: Tokens per row.
    """
    watch, tokens = Stopwatch(), step(prompts)
    watch.start()
    drawn = [tokens[:, 0].tolist()]
    for _ in range(n - 1):
        tokens = step(tokens)
        drawn.append(tokens[:, 0].tolist())
    return watch.lap(len(drawn[0]) * (n - 1), list(zip(*drawn, strict=True)))


def digest(answers: Sequence[Sequence[int]]) -> str:
    """Short hash of the answers: equal for equal answers."""
    told = hashlib.sha256()
    for answer in answers:
        told.update(np.asarray([*answer, -1], np.int32).tobytes())
    return told.hexdigest()[:12]


def take_turns(
    contenders: Mapping[str, Callable[[], Lap]], rounds: int, tell: Told, *, row: str = "", warm_up: bool = True
) -> dict[str, list[Lap]]:
    """Runs the first lap of each contender, then the second of each: A B A B.

    Objects that exist before the first lap are frozen: the garbage collector skips them until the last lap has ended.

    Args:
        contenders: By name.
        rounds: Counted laps per contender.
        tell: Called before every lap with the row and the name of the contender.
        row: Name of the measurement, for progress messages.
        warm_up: Whether to run one more round first that is not counted.

    Returns:
        The counted laps of each contender, by name.
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
    """Relative speed: the median over rounds of the peer's seconds per token divided by ours in the same round."""
    return median((seconds(b) / b.tokens) / (seconds(a) / a.tokens) for a, b in zip(ours, peer, strict=True))


Timed = TypeVar("Timed")
wall: Callable[[Any], float] = attrgetter("wall_seconds")  # of a lap, or of a result
cpu: Callable[[Any], float] = attrgetter("cpu_seconds")


def share(ours: Sequence[Timed], peer: Sequence[Timed], seconds: Callable[[Timed], float]) -> float:
    """Our seconds over the peer's in the same round: the median over rounds."""
    return median(seconds(a) / seconds(b) for a, b in zip(ours, peer, strict=True))


TICK_SECONDS = 0.001


async def ticks(seconds: float) -> list[float]:
    """Runs a timer for `seconds`; returns the milliseconds between its ticks, the 1 ms of the timer included."""
    found: list[float] = []
    end = (before := time.perf_counter()) + seconds
    while before < end:
        await asyncio.sleep(TICK_SECONDS)
        now = time.perf_counter()
        found.append((now - before) * 1000)
        before = now
    return found


def gaps_of(found: Sequence[float]) -> tuple[float, float, float]:
    """Median, 99th percentile and maximum."""
    middle, high = np.percentile(found, [50, 99]).tolist()
    return middle, high, max(found)


ROUNDS = 20
SIZE = 1_000_000
IDLE_SECONDS = 0.5
BUSY = 1.2  # wall over CPU time above which the machine counts as busy
STALLED = 5.0  # ms: 99th percentile of the idle loop's gaps above which it counts as busy, too


@dataclass(frozen=True, slots=True)
class Calibration:
    """Times of one fixed numpy kernel on one thread, and the gaps of an idle event loop (ms)."""

    when: str  # title of the case that runs next
    cpu_seconds: float
    wall_seconds: float
    idle_p99: float
    idle_max: float

    @property
    def normal(self) -> bool:
        """Whether the machine was idle enough for a missed bar to count: neither kernel nor event loop had to wait."""
        return self.wall_seconds <= BUSY * self.cpu_seconds and self.idle_p99 <= STALLED


def calibrate(when: str) -> Calibration:
    """Runs the kernel (exp and sort of a million float32, about 0.25 s in all), then an idle event loop for 0.5 s."""
    values = np.random.default_rng(0).standard_normal(SIZE, dtype=np.float32)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(ROUNDS):
        np.sort(np.exp(values))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    _, p99, longest = gaps_of(asyncio.run(ticks(IDLE_SECONDS)))
    return Calibration(when, cpu, wall, p99, longest)
