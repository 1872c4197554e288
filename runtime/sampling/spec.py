"""`StageSpec`: a stage of the sampler, with its parameters, its kernel and its texts for the window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, Final, Literal

from runtime.options.checking import LARGEST, Fault, number

if TYPE_CHECKING:
    from runtime.sampling.history import History
    from runtime.sampling.pool import CandidatePool

CHANGE: Final = number(-LARGEST, LARGEST)  # the rule of options that are added to scores or subtracted from them

Chosen = Mapping[str, Any]  # every sampling option by name, defaults filled in; `dry_breakers` as token ids
Kernel = Callable[["CandidatePool", "History", float], None]
"""Applies a stage to a pool, given the stream's history and a random number in [0, 1) (NaN without `StageSpec.draws`)."""


class StageKind(IntEnum):
    """What a stage changes; the window lists options in this order."""

    TEMPERATURE = 0
    CUT = 1  # removes tokens
    EDIT = 2  # changes scores


class Search(Enum):
    """How a cut finds its place in the sorted row; decides how much of the row is sorted at first."""

    RANK = "rank"
    MASS = "mass"
    LAZY_MASS = "lazy mass"  # a mass, unless a later cut makes the search unnecessary
    WEIGHT = "weight"  # relative to the likeliest token


@dataclass(frozen=True, slots=True)
class Slider:
    """A parameter's slider, shown next to a replayed draw.

    Attributes:
        low, high: Ends of the slider.
        scale: "square" is finer towards 0; "count" takes whole numbers, by ratio, with 0 ("off") at the right end.
        label: Text that replaces the parameter's label.
        always: Whether it is shown while the parameter has its default.
    """

    low: float
    high: float
    scale: Literal["linear", "square", "count"] = "linear"
    label: str = ""
    always: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    """One option of a stage: a field of `SamplingOptions`.

    Attributes:
        rule: Which values are valid; see `runtime.options.checking`.
        label, hint: Texts of the window.
        switch: Whether a value other than the default turns the stage on.
        folded: Whether the window shows it only on request.
        aliases: Its names in other libraries.
        read: Converts values as other libraries spell them, from the name used and the value.
    """

    name: str
    default: Any
    rule: Fault
    label: str
    hint: str
    switch: bool = True
    folded: bool = False
    slider: Slider | None = None
    aliases: tuple[str, ...] = ()
    read: Callable[[str, Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class Chance:
    """How the window describes a stage that acts if its random number is below its first parameter.

    Attributes:
        acted: Its effect; {0} is the number and the first parameter, {1} the second parameter, a probability.
        idle: Likewise, where it cut nothing.
    """

    acted: str
    idle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """A stage of the sampler; `runtime.options.generation` lists them.

    Attributes:
        name: The stage's name in `SamplingOptions.order`, `Stage.name` and messages.
        number: The stage's number in stored columns (`StageTable.names`): never changed, never reused.
        parameters: The stage's options; the first one of a cut sets how much the cut keeps.
        kernel: Makes the stage from settings that turn it on.
        search: How a cut is found; None: a larger sorted head would not help the stage.
        draws: The stage's number in the counter of the random numbers (`runtime.sampling.chain`); None: it is deterministic.
            A drawn number is stored in the column ``u_<name>`` of `StageTable`.
        chance: How the window describes the effect of that number; None: it shows the number alone.
        remembers: Whether it depends on earlier tokens.
        check: Raises `InvalidRequestError` when the options contradict each other or the vocabulary's size.
        label: The window shows it for a token that the stage cut.
    """

    name: str
    number: int
    kind: StageKind
    parameters: tuple[Parameter, ...]
    kernel: Callable[[Chosen], Kernel]
    search: Search | None = None
    draws: int | None = None
    chance: Chance | None = None
    remembers: bool = False
    check: Callable[[Chosen, int | None], None] | None = None
    label: str = ""


def QT_TRANSLATE_NOOP(context: str, text: str) -> str:  # noqa: N802  # as lupdate knows it
    """Returns the text as it is; marks it for lupdate, and the window translates it."""
    del context
    return text
