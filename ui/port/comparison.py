"""The path that is shown, scored under a second model; turns that are alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from runtime import ModelComparison
from ui.port.refusals import Refusal
from ui.port.settings import AdapterChoice

if TYPE_CHECKING:
    from runtime import Pooling

OnCompared = Callable[[str, int, int], None]  # what is done, how much of how much (0 of 0: not known); on the window's thread


class SecondChoice(Struct, frozen=True):
    """What a path can be compared with."""

    source: str  # the model
    backend: str  # what runs it
    label: str  # what it is called beside the model in use
    detail: str = ""  # a few words more
    adapters: tuple[AdapterChoice, ...] | None = None  # that it is under; None: whatever it is loaded with
    dtype: str = ""  # what it computes in; "" as set
    weights: str = ""  # how it holds its linear weights, as `LoadChoice.weights` has it; "" the engine's own form
    same_engine: bool = False  # it needs no second engine: the one that runs answers under other adapters
    problem: str = ""  # why it cannot be had here; "" where it can


class PathComparison(Struct, frozen=True):
    """The numbers of two models for the tokens of a path; nothing of it is saved."""

    session_id: int  # whose path
    left: str  # what the model in use is called
    right: str  # what the second one is called
    found: ModelComparison  # the numbers, by spans
    spans: Mapping[int, npt.NDArray[np.int64]]  # for each turn by its node: ``(n,)`` the span that each token of its run is in
    read: int  # tokens of the path that were compared; what follows no model has read
    kl_from: int = 0  # the token of the path from which on the KL is known; 0: of all, where it is known at all


class NoRoomRefusal(Refusal):
    """The second model is not loaded since memory is short; it may be tried all the same."""


class ComparisonCommands(Protocol):
    """A second model beside the one in use. Every coroutine may raise `Refusal`."""

    async def choices(self, session_id: int) -> Sequence[SecondChoice]:
        """What the path of a session can be compared with: the same model otherwise, and what else is on the shelf."""

    async def compare(
        self, session_id: int, choice: SecondChoice, progress: OnCompared, *, anyway: bool = False, kl_of_all: bool = False
    ) -> PathComparison:
        """Scores the path under the model in use and a second one, behind everything else; may be cancelled.

        The second one has an engine of its own, which ends afterwards unless it is kept. The KL takes two queries for each
        token: it is of the last ones, unless it is to be of all.

        Raises:
            NoRoomRefusal: It would not fit into what memory is free; `anyway` tries it.
        """

    @property
    def keeps_second(self) -> bool:
        """Whether the second model stays loaded after a comparison."""

    async def keep_second(self, keep: bool) -> None:  # a state, not an option
        """Keeps it from now on, or gives its memory back."""


class SimilarTurn(Struct, frozen=True):
    """One turn beside the one that was asked about."""

    node_id: int  # its last node
    role: str  # system, user, assistant, tool
    words: str  # the first of them, on one line
    similarity: float  # the cosine of the two turns' vectors, -1 to 1
    on_path: bool = True  # whether it is part of the path shown
    branch: str = ""  # what its branch is called, where it is not
    tokens: int = 0  # that it has, where only the first of them were compared; 0: all of it was


class SimilarTurns(Struct, frozen=True):
    """All turns that have words, the most similar first. Vectors are remembered in memory; nothing of it is saved."""

    session_id: int  # whose turns
    node_id: int  # the turn that the others were compared with
    words: str  # the first of its words
    pooling: Pooling  # how vectors were made of hidden states
    model: str  # what the model is called that made them
    rows: tuple[SimilarTurn, ...]  # the other turns
    poolings: tuple[Pooling, ...]  # what this model can be asked for
    limit: int  # tokens that are compared of a turn
    tokens: int = 0  # that the turn asked about has, where that is more; else 0
    damaged: int = 0  # turns that were left out since what is stored of them cannot be trusted
    computed: int = 0  # tokens that were pushed through the model for this, padding too; 0: all vectors were remembered


class SimilarCommands(Protocol):
    """Turns that are alike. Every coroutine may raise `Refusal`."""

    async def find(self, session_id: int, node_id: int, pooling: Pooling, progress: OnCompared) -> SimilarTurns:
        """Compares a turn with all others of its session, on all branches that are in sight; behind everything else.

        What the model made of a turn is remembered until the app ends: of the same text nothing is computed again. May be
        cancelled; what was made by then stays.

        Raises:
            ModelRefusal: No model can be asked: another one may be chosen.
        """
