"""How a token was drawn, several continuations of one place, previews of alternatives, and depth by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from runtime import SamplingOptions, TokenRun

if TYPE_CHECKING:  # a type alone: the window opens without its module
    from runtime import LensRun as LensRun


class Drawing(Struct, frozen=True):
    """How a token was drawn, as far as that is stored."""

    sampling: SamplingOptions | None  # the settings in force, DRY's breakers as ids; None if not stored
    seed: int | None  # of the stream; None if not stored
    branch: int  # the number of the stream among those with that seed
    history: npt.NDArray[np.int32]  # ``(position,) int32``, the ids of the path before the token
    model: str  # that computed the numbers; "" if unknown
    stale: str  # the model in use, if it is another one or has other adapters (named with it); else ""
    can_ask: bool  # the model of these numbers runs, and can compute the whole row
    beams: int = 0  # the width of the beam search that found the token; 0: it was not found by one

    @property
    def position(self) -> int:
        """The number of tokens before it."""
        return len(self.history)


class TurnDepth(Struct, frozen=True):
    """At which layer each token of a turn was decided."""

    # ``(n,) int32``: the layer from which on the token is the likeliest up to the last layer; -1: it is not the likeliest
    # there, -2: unknown, as for the first token of a text
    leads: npt.NDArray[np.int32]
    layers: int  # of the model


class TurnDepthCost(Struct, frozen=True):
    """What `turn_depth` will compute, to be shown before it starts."""

    tokens: int  # of the turn
    like_tokens: int  # the prompt tokens whose prefill takes about as long


class ColumnKind(StrEnum):
    """How several continuations of one place were found."""

    DRAWS = "draws"  # each drawn by the sampler
    BEAMS = "beams"  # found by a beam search, best first


class BeamSearchRules(Struct, frozen=True):
    """The rules of a beam search; see `runtime.BeamOptions`."""

    length_penalty: float = 1.0  # log-probabilities are divided by the length to this power: above 0 favours longer beams
    # when the search ends: True, once enough beams are complete; False, once the best running beam at its present length is no
    # better than the worst complete one; "never", once it could not become better at any length
    early_stopping: bool | Literal["never"] = False


class Column(Struct, frozen=True):
    """One continuation."""

    node_id: int  # its node in the tree; negative while a beam search runs, whose beams change
    run: TokenRun  # its tokens so far
    logprob: float | None = None  # the sum of their raw log-probabilities, nats; None before the first
    score: float | None = None  # `logprob` normalised by the length; beams only
    running: bool = True  # more tokens are expected
    note: str = ""  # why it ended, if that matters ("reached the length limit")


class Columns(Struct, frozen=True):
    """Several continuations of one place, side by side."""

    session_id: int  # where they are saved
    kind: ColumnKind
    before: str  # the last words before the place
    wanted: int  # the number requested
    columns: tuple[Column, ...] = ()  # in the order of their numbers; beams best first. Empty until the engine has begun
    running: bool = True  # more tokens are expected
    note: str = ""  # the state of all ("starting the engine…")


class DrawingCommands(Protocol):
    """How tokens were drawn, and their alternatives. Every coroutine may raise `Refusal`."""

    async def find(self, session_id: int, node_id: int, index: int) -> Drawing | None:
        """How token `index` of the turn was drawn; None if there is no such token. Asks no model."""

    async def whole_row(self, session_id: int, node_id: int, index: int, *, here: bool = False) -> npt.NDArray[np.float32]:
        """``(vocab,) float32``: raw log-probabilities before token `index`, from the running model; one forward at most.

        With `here`, a model on a server is refused, and nothing is sent to it.
        """

    async def depth(self, session_id: int, node_id: int, index: int, also: Sequence[int] = ()) -> LensRun:
        """The logit lens of the running model before token `index`: one position.

        The token itself is column 0; the ids of `also`, then its stored alternatives, follow, at most 64 together.
        """

    async def turn_depth_cost(self, session_id: int, node_id: int) -> TurnDepthCost:
        """The cost of `turn_depth`; computes nothing."""

    async def turn_depth(self, session_id: int, node_id: int, on_progress: Callable[[int, int], None]) -> TurnDepth:
        """At which layer of the running model each token of a turn was decided, at the lowest priority; not saved.

        `on_progress` gets the tokens done and in all. Cancelling stops the computation.
        """

    async def preview(self, session_id: int, node_id: int, index: int, token_id: int, most: int) -> Sequence[bytes]:
        """The likeliest words after another token at that place, at most `most` tokens, at low priority; not saved."""


class ContinuationCommands(Protocol):
    """Several continuations of one place, side by side. Every coroutine may raise `Refusal`."""

    async def continue_many(self, session_id: int, node_id: int, index: int | None, n: int) -> None:
        """Samples `n` continuations of one place as siblings; returns when all have ended.

        The place is in front of token `index` of the turn, or (None) the end of the turn. The path shown stays.
        """

    async def beams(
        self, session_id: int, node_id: int, index: int | None, width: int, rules: BeamSearchRules | None = None
    ) -> None:
        """The likeliest continuations by a beam search, as siblings; the place is as in `continue_many`."""
