"""Cases, the models that they share, and the results of a part: counts, times, gaps, and their bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TypeVar

from benchmarks.clock import Lap
from benchmarks.measure import Result


class Closing(Protocol):
    """Something with an end."""

    def close(self) -> None:
        """Frees what it holds."""


Held = TypeVar("Held", bound=Closing)


class Loaded:
    """Models of one case, each made by its first user and closed behind the last part."""

    def __init__(self) -> None:
        self._held: dict[Any, Any] = {}
        self._ends = ExitStack()

    def get(self, kind: object, make: Callable[[], Held]) -> Held:
        """The one of this kind; made where there is none yet."""
        if kind not in self._held:
            self._held[kind] = made = make()
            self._ends.callback(made.close)
        found: Held = self._held[kind]
        return found

    def close(self) -> None:
        """Closes all, the last one first; what is asked for afterwards is made anew."""
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
    loaded: Loaded = field(default_factory=Loaded, compare=False, repr=False)  # what several parts use

    @property
    def tiny(self) -> bool:
        """Whether it is one of the made models, in which what happens around the model shows."""
        return self.model != EMBEDDED

    @property
    def title(self) -> str:
        """As tables say it."""
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
    ) -> Verdict:
        """A figure of this model against its bar."""
        return Verdict(row, self.backend, self.model, what, figure, bar, at_least, timed, limit)


@dataclass(frozen=True, slots=True)
class Timing:
    """What a token cost one contender: medians over its laps, in milliseconds."""

    part: str
    backend: str
    model: str
    who: str
    wall_ms: float
    cpu_ms: float  # of the whole process
    laps: int
    outcome: str  # digest of the tokens: equal where two contenders drew the same; empty where nothing is drawn


@dataclass(frozen=True, slots=True)
class Gaps:
    """How long an event loop was away, in milliseconds: between two ticks of a 1 ms timer."""

    part: str
    backend: str
    model: str
    who: str
    p50: float
    p99: float
    max: float
    ticks: int
    work: str  # what was done meanwhile, and how often


@dataclass(frozen=True, slots=True)
class Reading:
    """How near decoding one stream comes to what reading the weights takes, which no token can do without."""

    part: str
    backend: str
    model: str
    who: str
    nbytes: int  # of the weights that a token reads
    speed: float  # of memory: bytes a second, read one after the other in the same run
    wall_ms: float  # of a token

    @property
    def limit_ms(self) -> float:
        """Of a token, if the weights were read and nothing else was done."""
        return self.nbytes / self.speed * 1000

    @property
    def gap(self) -> float:
        """How many times that a token takes."""
        return self.wall_ms / self.limit_ms


@dataclass(frozen=True, slots=True)
class Took:
    """How long a part was at work on one model, loading included."""

    part: str
    backend: str
    model: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Limit:
    """What a figure would be at most (or least) if Elsewise added nothing, from the same run."""

    figure: float
    what: str  # what reaches the figure, and why it is a bound


@dataclass(frozen=True, slots=True)
class Verdict:
    """One figure against its bar."""

    row: str  # "W5 one stream"
    backend: str
    model: str
    what: str  # the figure in words
    figure: float
    bar: float
    at_least: bool  # else: at most
    timed: bool = True  # False: an exact count, which a busy machine cannot change
    limit: Limit | None = None  # told where the bar is missed

    @property
    def met(self) -> bool:
        """Whether the figure is on the right side of the bar."""
        return self.figure >= self.bar if self.at_least else self.figure <= self.bar


@dataclass(frozen=True, slots=True)
class Findings:
    """Of one part, or of several together."""

    results: tuple[Result, ...] = ()
    timings: tuple[Timing, ...] = ()
    gaps: tuple[Gaps, ...] = ()
    readings: tuple[Reading, ...] = ()
    verdicts: tuple[Verdict, ...] = ()

    def __add__(self, other: Findings) -> Findings:
        """Both."""
        return Findings(
            self.results + other.results,
            self.timings + other.timings,
            self.gaps + other.gaps,
            self.readings + other.readings,
            self.verdicts + other.verdicts,
        )


def timing(part: str, case: Case, who: str, laps: Sequence[Lap]) -> Timing:
    """The medians of a contender's laps."""
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
    """The same of every contender."""
    return tuple(timing(part, case, who, each) for who, each in laps.items())
