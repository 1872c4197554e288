"""What of Elsewise's time its calls of the model take: it could not need less, however little stood around them."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from benchmarks.clock import Clock, Stopwatch
from runtime import LanguageModel

FORWARDS = "elsewise, its forwards alone"
REST = "elsewise, all but its forwards"
LIMIT = "its forwards alone, from tokens to logits in numpy"


class Forwards:
    """Stops the time of a model's forwards while it is entered; each is waited for, so that none hides behind other work.

    Args:
        model: In this process, and idle whenever this is entered or left.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._backend: Any = model.transport.engine.backend  # type: ignore[attr-defined]  # nothing public lies so deep
        self.cpu_seconds = self.wall_seconds = 0.0
        self._began: tuple[float, float] | None = None  # the one under way; one of them may be made of the other

    def __enter__(self) -> Self:
        backend = self._backend
        begin = backend.begin

        def at_once(*args: Any) -> Any:
            answer = begin(*args)()
            return lambda: answer

        backend.compute = self._timed(backend.compute)
        backend.begin = self._timed(at_once)
        backend.prepare = lambda *_: None  # nothing of a forward is done elsewhere
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name in ("compute", "begin", "prepare"):
            delattr(self._backend, name)

    def watch(self) -> Stopwatch:
        """One that runs while the model does."""
        return Stopwatch(lambda: self.cpu_seconds, lambda: self.wall_seconds)

    def watch_rest(self) -> Stopwatch:
        """One that runs while the model does not: it stands still from the beginning of each forward to its end."""
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
