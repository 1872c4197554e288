"""The share of Elsewise's time that its forwards take: a lower limit, even if nothing else took any time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from benchmarks.clock import Clock, Lap, Stopwatch
from benchmarks.measure import WorkloadResult
from runtime import LanguageModel

FORWARDS = "elsewise, its forwards alone"
REST = "elsewise, all but its forwards"
LIMIT = "its forwards alone, from tokens to logits in numpy"


class Forwards:
    """Context manager that measures the time of a model's forwards; each is waited for, so that none overlaps with other work.

    Args:
        model: A model in this process; it must be idle on entry and exit.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._backend: Any = model.transport.engine.backend  # type: ignore[attr-defined]  # no public access
        self.cpu_seconds = self.wall_seconds = 0.0
        self._began: tuple[float, float] | None = None  # CPU and wall time; set during the outermost timed call

    def __enter__(self) -> Self:
        backend = self._backend
        begin = backend.begin

        def at_once(*args: Any) -> Any:
            answer = begin(*args)()
            return lambda: answer

        backend.compute = self._timed(backend.compute)
        backend.begin = self._timed(at_once)
        backend.prepare = lambda *_: None  # no part of a forward runs outside the timed calls
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name in ("compute", "begin", "prepare"):
            delattr(self._backend, name)

    def watch(self) -> Stopwatch:
        """A stopwatch that runs only during forwards."""
        return Stopwatch(lambda: self.cpu_seconds, lambda: self.wall_seconds)

    def watch_rest(self) -> Stopwatch:
        """A stopwatch that stops during each forward."""
        return Stopwatch(lambda: self._rest(time.process_time, 0), lambda: self._rest(time.perf_counter, 1))

    def _rest(self, clock: Clock, which: int) -> float:
        began, now = self._began, clock()
        return (now if began is None else began[which]) - (self.cpu_seconds, self.wall_seconds)[which]

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._began is not None:
                return call(*args, **kwargs)
            cpu, wall = self._began = time.process_time(), time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.cpu_seconds += time.process_time() - cpu
                self.wall_seconds += time.perf_counter() - wall
                self._began = None

        return timed


Measured = TypeVar("Measured", Lap, WorkloadResult)


def forwards_alone(model: LanguageModel, run: Callable[[], Measured]) -> Measured:
    """What `run` measured, with only the time of the forwards."""
    with Forwards(model) as forwards:
        lap = run()
    return replace(lap, cpu_seconds=forwards.cpu_seconds, wall_seconds=forwards.wall_seconds)
