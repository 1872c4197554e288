"""Cases with their loaded models, and the results of a part: counts, times, gaps and bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TypeVar

from benchmarks.clock import Lap
from benchmarks.measure import WorkloadResult


class Closing(Protocol):
    """An object that can be closed."""

    def close(self) -> None:
        """Frees the resources of the object."""


Held = TypeVar("Held", bound=Closing)


class LoadedModels:
    """Models of one case: each is loaded on first use and closed after the last part."""

    def __init__(self) -> None:
        self._held: dict[Any, Any] = {}
        self._ends = ExitStack()

    def get(self, kind: object, make: Callable[[], Held]) -> Held:
        """The object of this kind; `make` makes it if there is none yet."""
        if kind not in self._held:
            self._held[kind] = made = make()
            self._ends.callback(made.close)
        found: Held = self._held[kind]
        return found

    def close(self) -> None:
        """Closes all objects, the latest first; a later `get` makes new ones."""
        self._held.clear()
        self._ends.pop_all().close()


EMBEDDED = "smollm2"


@dataclass(frozen=True, slots=True)
class Case:
    """One model on one backend."""

    backend: str
    model: str  # "tiny-llama"
    folder: Path
    vocabulary: int
    loaded: LoadedModels = field(default_factory=LoadedModels, compare=False, repr=False)  # shared by the parts

    @property
    def tiny(self) -> bool:
        """Whether it is a tiny model, whose forwards are so short that the time around them shows."""
        return self.model != EMBEDDED

    @property
    def title(self) -> str:
        """The name of the case in tables."""
        return f"{self.backend}, {self.model}" if self.model else self.backend

    def verdict(
        self,
        row: str,
        what: str,
        figure: float,
        bar: float,
        *,
        at_least: bool = False,
        timed: bool = True,
        limit: Limit | None = None,
    ) -> BarVerdict:
        """A figure of this case with its bar."""
        return BarVerdict(row, self.backend, self.model, what, figure, bar, at_least, timed, limit)


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds per token of one contender: medians over its laps."""

    part: str
    backend: str
    model: str
    who: str
    wall_ms: float
    cpu_ms: float  # of the whole process
    laps: int
    outcome: str  # digest of the drawn tokens: equal if two contenders drew the same; empty if nothing is drawn


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps of an event loop: milliseconds between two ticks of a 1 ms timer."""

    part: str
    backend: str
    model: str
    who: str
    p50: float
    p99: float
    max: float
    ticks: int
    work: str  # kinds of work done meanwhile, with their counts


@dataclass(frozen=True, slots=True)
class Reading:
    """Time per token of one stream, compared with reading the weights once, which every token needs."""

    part: str
    backend: str
    model: str
    who: str
    nbytes: int  # of the weights that a token reads
    speed: float  # of memory in bytes per second, measured by sequential reads in the same run
    wall_ms: float  # per token

    @property
    def limit_ms(self) -> float:
        """Milliseconds per token if reading the weights took all the time."""
        return self.nbytes / self.speed * 1000

    @property
    def gap(self) -> float:
        """Time per token divided by that limit."""
        return self.wall_ms / self.limit_ms


@dataclass(frozen=True, slots=True)
class Took:
    """Duration of a part on one model, loading included."""

    part: str
    backend: str
    model: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Limit:
    """The best possible value of a figure, if Elsewise added no time of its own; measured in the same run."""

    figure: float
    what: str  # description of the work that the limit includes


@dataclass(frozen=True, slots=True)
class BarVerdict:
    """One figure with its bar."""

    row: str  # "W5 one stream"
    backend: str
    model: str
    what: str  # description of the figure
    figure: float
    bar: float
    at_least: bool  # True: the bar is a minimum; False: a maximum
    timed: bool = True  # False: an exact count, independent of other load on the machine
    limit: Limit | None = None  # reported if the bar is missed

    @property
    def met(self) -> bool:
        """Whether the figure is on the right side of the bar."""
        return self.figure >= self.bar if self.at_least else self.figure <= self.bar


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of one part, or of several together."""

    results: tuple[WorkloadResult, ...] = ()
    timings: tuple[Timing, ...] = ()
    gaps: tuple[Gaps, ...] = ()
    readings: tuple[Reading, ...] = ()
    verdicts: tuple[BarVerdict, ...] = ()

    def __add__(self, other: Findings) -> Findings:
        return Findings(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


def timing(part: str, case: Case, who: str, laps: Sequence[Lap]) -> Timing:
    """The timing of a contender: medians of its laps."""
    return Timing(
        part=part,
        backend=case.backend,
        model=case.model,
        who=who,
        wall_ms=median(lap.wall_seconds / lap.tokens for lap in laps) * 1000,
        cpu_ms=median(lap.cpu_seconds / lap.tokens for lap in laps) * 1000,
        laps=len(laps),
        outcome=laps[0].outcome,
    )


def timings(part: str, case: Case, laps: Mapping[str, Sequence[Lap]]) -> tuple[Timing, ...]:
    """The timings of all contenders."""
    return tuple(timing(part, case, who, each) for who, each in laps.items())
