"""What a stage of the sampler is: a `StageSpec` with its parameters, its kernel and what the window shows of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, Final, Literal

from runtime.options.checking import LARGEST, Fault, number

if TYPE_CHECKING:
    from runtime.sampling.history import History
    from runtime.sampling.pool import Pool

CHANGE: Final = number(-LARGEST, LARGEST)  # the rule of an option that is added to a score or subtracted from it

Chosen = Mapping[str, Any]  # every sampling option by name, defaults filled in; `dry_breakers` as token ids
Kernel = Callable[["Pool", "History", float], None]
"""Applies a stage to a pool: the stream's history, and a random number in [0, 1) where `StageSpec.draws` asks for one."""


class Kind(IntEnum):
    """What a stage changes; the window lists options in this order."""

    TEMPERATURE = 0
    CUT = 1  # removes tokens
    EDIT = 2  # changes scores


class Search(Enum):
    """What a cut looks for in the sorted row, which decides how much of the row is sorted at first."""

    RANK = "rank"
    MASS = "mass"
    LAZY_MASS = "lazy mass"  # a later cut may make the search unnecessary
    WEIGHT = "weight"  # relative to the likeliest token


@dataclass(frozen=True, slots=True)
class Slider:
    """A parameter's slider beside a replayed draw.

    Attributes:
        low, high: Ends.
        scale: "square" is finer towards 0; "count" takes whole numbers, by ratio, with 0 ("off") at the right end.
        label: In place of the parameter's.
        always: Shown even while the parameter has its default.
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
        rule: What a value may be; see `runtime.options.checking`.
        label, hint: In the window.
        switch: Whether a value other than the default turns the stage on.
        folded: Whether the window shows it only on request.
        aliases: Its names in other libraries.
        read: Gives a value in a form that other libraries have the form of ours; it gets the name it came by.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """A stage of the sampler; `runtime.options.generation` lists them.

    Attributes:
        name: In `SamplingOptions.order`, `Stage.name` and messages.
        number: In stored columns (`StageTable.names`): never changed, never given to another stage.
        parameters: The one that a cut is made by first.
        kernel: Makes the stage from settings that turn it on.
        search: Of a cut; None: it looks for nothing that a larger head of the sorted row would help.
        draws: The number of its random number in the counter of `runtime.sampling.chain`; None: it is deterministic.
        remembers: Whether it depends on the tokens before.
        check: Raises `InvalidRequestError` where the options that are set contradict each other, or the vocabulary's size.
        label: In the window, where it cut a token.
    """

    name: str
    number: int
    kind: Kind
    parameters: tuple[Parameter, ...]
    kernel: Callable[[Chosen], Kernel]
    search: Search | None = None
    draws: int | None = None
    remembers: bool = False
    check: Callable[[Chosen, int | None], None] | None = None
    label: str = ""


def QT_TRANSLATE_NOOP(context: str, text: str) -> str:  # noqa: N802  # as lupdate knows it
    """Marks a text that the window translates where it shows it; as it is."""
    del context
    return text
