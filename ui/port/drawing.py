"""Draws: how a token was drawn, how one place could go on, and what follows an alternative."""

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
    """How the token of a place was drawn, as far as it is stored."""

    sampling: SamplingOptions | None  # the settings in force, DRY's breakers as ids; None where they are not stored
    seed: int | None  # of the stream; None where it is not stored
    branch: int  # of the stream, among those with that seed
    history: npt.NDArray[np.int32]  # ``(position,) int32``, the ids before the token from the first of the path on
    model: str  # whose numbers they are; "" where that is not known
    stale: str  # another model is in use now, its name; or the same one with other adapters, which are named with it
    can_ask: bool  # the model of these numbers runs: it can be asked for the whole row
    beams: int = 0  # nothing was drawn: a search of so many beams found it; 0 where none did

    @property
    def position(self) -> int:
        """How many tokens stand before it."""
        return len(self.history)


class TurnDepth(Struct, frozen=True):
    """At which layer each token of a turn was decided."""

    # ``(n,) int32``: the layer from which the token is the likeliest, without a break up to the last; -1: it is not there, -2:
    # not known, as of the first token of a text
    leads: npt.NDArray[np.int32]
    layers: int  # of the model


class TurnDepthCost(Struct, frozen=True):
    """What `turn_depth` takes."""

    tokens: int  # of the turn
    like_tokens: int  # reading so many tokens of a prompt takes about as long


class ColumnKind(StrEnum):
    """How several continuations of one place were found."""

    DRAWS = "draws"  # each drawn by the sampler
    BEAMS = "beams"  # the likeliest that a beam search finds, best first


class BeamRules(Struct, frozen=True):
    """What a beam search goes by; see `runtime.BeamOptions`."""

    length_penalty: float = 1.0  # a sum of log-probabilities is divided by the length to this power: above 0 longer ones gain
    # the search ends: True, when as many are complete as were asked for; False, when the best that is still running, as long as
    # it is now, is no better than the worst of those; "never", when it could not be so at any length
    early_stopping: bool | Literal["never"] = False


class Column(Struct, frozen=True):
    """One continuation."""

    node_id: int  # its node in the tree; below 0 while a beam search has not ended, for its beams come and go
    run: TokenRun  # its tokens so far
    logprob: float | None = None  # the sum of their raw log-probabilities, nats; None before the first
    score: float | None = None  # that, normalised by the length; beams only
    running: bool = True  # more tokens are expected
    note: str = ""  # why it ended, where that is worth a word ("reached the length limit")


class Columns(Struct, frozen=True):
    """Several continuations of one place, side by side."""

    session_id: int  # where they are saved
    kind: ColumnKind  # how they are found
    before: str  # the last words in front of the place
    wanted: int  # how many were asked for
    columns: tuple[Column, ...] = ()  # in the order of their numbers; beams best first. Empty until the engine has begun
    running: bool = True  # more tokens are expected
    note: str = ""  # what happens or happened to all ("starting the engine…")


class DrawingCommands(Protocol):
    """How tokens were drawn, and what else might have been. Every coroutine may raise `Refusal`."""

    async def find(self, session_id: int, node_id: int, index: int) -> Drawing | None:
        """How token `index` of the turn was drawn; None where there is no such token. Asks no model."""

    async def whole_row(self, session_id: int, node_id: int, index: int, *, here: bool = False) -> npt.NDArray[np.float32]:
        """``(vocab,) float32``: raw log-probabilities before token `index`, from the model that runs; one forward at most.

        `here`: only from a model of this machine; one on a server is refused, and nothing is sent to it.
        """

    async def depth(self, session_id: int, node_id: int, index: int, also: Sequence[int] = ()) -> LensRun:
        """What each layer of the model that runs would answer before token `index`.

        One position; the token itself is column 0. The ids of `also`, then its stored alternatives, are followed beside it,
        64 of them together.
        """

    async def turn_depth_cost(self, session_id: int, node_id: int) -> TurnDepthCost:
        """What `turn_depth` would take; computes nothing."""

    async def turn_depth(self, session_id: int, node_id: int, on_progress: Callable[[int, int], None]) -> TurnDepth:
        """At which layer of the model that runs each token of a turn was decided, at the lowest priority; nothing is saved.

        `on_progress` hears the tokens done and in all. Cancelling it stops the work.
        """

    async def preview(self, session_id: int, node_id: int, index: int, token_id: int, most: int) -> Sequence[bytes]:
        """The likeliest words after another token at that place, `most` tokens at most, at low priority; nothing is saved."""


class ContinuationCommands(Protocol):
    """Several continuations of one place, side by side. Every coroutine may raise `Refusal`."""

    async def continue_many(self, session_id: int, node_id: int, index: int | None, n: int) -> None:
        """Draws `n` continuations of one place as siblings; returns when all have ended.

        The place is in front of token `index` of the turn, or (None) the end of the turn. The path that is shown stays.
        """

    async def beams(self, session_id: int, node_id: int, index: int | None, width: int, rules: BeamRules | None = None) -> None:
        """The likeliest continuations that a beam search finds, as siblings; the place as in `continue_many`.

        It goes by the usual rules unless others are given.
        """
