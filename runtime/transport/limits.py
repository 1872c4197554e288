"""How long an engine may be silent or stuck before it is ended."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from runtime.loading.paths import is_model_id, shelf_path

_LOAD_BASE_SECONDS = 120.0  # imports on a cold disk, the self-test
_LOAD_BYTES_PER_SECOND = 20e6  # a slow disk and a conversion of dtypes
_UNKNOWN_BYTES = 16 << 30  # a name on the shelf: only the engine knows how large it is


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Seconds of monotonic time, as the caller's process experiences it (a suspended machine judges nobody)."""

    step_seconds: float = 30.0  # one step of the owner thread in which no layer of the model is reached
    silence_seconds: float = 30.0  # without any message, once loaded
    loading_seconds: float | None = None  # None: by the size of the source
    close_seconds: float = 1.2  # for the engine to end by itself; then it is ended
    beat_seconds: float = 0.25  # between two signs of life

    def for_loading(self, source: str) -> float:
        """Seconds that loading `source` may take."""
        if self.loading_seconds is not None:
            return self.loading_seconds
        return _LOAD_BASE_SECONDS + _source_bytes(source) / _LOAD_BYTES_PER_SECOND


def patient(limits: EngineLimits, source: str) -> EngineLimits:
    """For a model whose weights are read from disk in every step: a slow disk is no reason to end the engine."""
    return replace(limits, step_seconds=limits.step_seconds + _source_bytes(source) / _LOAD_BYTES_PER_SECOND)


class Vigil:
    """Decides whether an engine hangs, from its beats and from elapsed time. Knows no clock and no process."""

    def __init__(self, limits: EngineLimits, loading_seconds: float) -> None:
        self._limits, self._loading = limits, loading_seconds
        self._state = (0, "loading", 0)
        self._silent = 0.0
        self._stuck = 0.0

    def heard(self) -> None:
        """Any message arrived."""
        self._silent = 0.0

    def beat(self, steps: int, phase: str, progress: int = 0) -> None:
        """A beat arrived; a step whose `progress` grows is slow and does not hang."""
        if (steps, phase, progress) != self._state:
            self._state, self._stuck = (steps, phase, progress), 0.0

    def elapse(self, seconds: float) -> str | None:
        """Time went by. Why the engine is to be ended, or None."""
        self._silent += seconds
        self._stuck += seconds
        steps, phase, _ = self._state
        silence = self._loading if phase == "loading" else self._limits.silence_seconds
        if self._silent > silence:
            return f"it gave no sign of life for {silence:g} s while {_DOING.get(phase, phase)}"
        if phase == "loading" and self._stuck > self._loading:
            return f"loading took more than {self._loading:g} s"
        if phase == "step" and self._stuck > self._limits.step_seconds:
            return f"step {steps:,} took more than {self._limits.step_seconds:g} s"
        return None


_DOING = {"loading": "loading", "step": "computing"}


def _source_bytes(source: str) -> int:
    try:
        path = Path(source)
        if not path.exists() and is_model_id(source):
            path = shelf_path(source)
        if path.is_dir():
            return sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        return path.stat().st_size
    except (OSError, ValueError):  # not here, or known to the engine alone; ValueError: a NUL in the name
        return _UNKNOWN_BYTES
