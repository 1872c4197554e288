"""Comparison of the path shown with a second model, and search for similar turns."""

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

OnCompared = Callable[
    [str, int, int], None
]  # what is being done, how much of how much (0 of 0: unknown); on the window's thread


class ComparisonChoice(Struct, frozen=True):
    """A model that a path can be compared with."""

    source: str  # the model
    backend: str  # that runs it
    label: str  # its name beside the model in use
    detail: str = ""  # further facts, in a few words
    adapters: tuple[AdapterChoice, ...] | None = None  # in use; None: those that it is loaded with
    dtype: str = ""  # of its computation; "" as in the settings
    weights: str = ""  # the form of its linear weights, as in `LoadChoice.weights`; "" the engine's own
    same_engine: bool = False  # needs no second engine: the running one computes it with other adapters
    problem: str = ""  # why it cannot be used here; "" if it can


class PathComparison(Struct, frozen=True):
    """The numbers of two models for the tokens of a path; not saved."""

    session_id: int  # whose path
    left: str  # the name of the model in use
    right: str  # the name of the second model
    found: ModelComparison  # the numbers by span
    spans: Mapping[int, npt.NDArray[np.int64]]  # by node id: ``(n,)``, the span of each token of the turn's run
    read: int  # tokens of the path that were compared; no model has read the ones after them
    kl_from: int = 0  # the first token of the path with a KL; 0: all tokens have one, or none has


class NoRoomRefusal(Refusal):
    """The second model was not loaded for lack of memory; it can be tried anyway."""


class ComparisonCommands(Protocol):
    """A second model beside the one in use. Every coroutine may raise `Refusal`."""

    async def choices(self, session_id: int) -> Sequence[ComparisonChoice]:
        """The models that the path of a session can be compared with: variants of the model in use, and others of the shelf."""

    async def compare(
        self, session_id: int, choice: ComparisonChoice, progress: OnCompared, *, anyway: bool = False, kl_of_all: bool = False
    ) -> PathComparison:
        """Scores the path under the model in use and a second one, at the lowest priority; may be cancelled.

        The second model has an engine of its own, which ends afterwards unless it is kept. The KL takes two queries per
        token: it is computed for the last tokens, or with `kl_of_all` for all.

        Raises:
            NoRoomRefusal: It would not fit into the free memory; `anyway` tries it.
        """

    @property
    def keeps_model(self) -> bool:
        """Whether the second model stays loaded after a comparison."""

    async def keep_model(self, keep: bool) -> None:  # a state, not an option
        """Keeps the second model loaded from now on, or frees its memory."""


class SimilarTurn(Struct, frozen=True):
    """One turn compared with the queried one."""

    node_id: int  # its last node
    role: str  # system, user, assistant, tool
    words: str  # its first words, on one line
    similarity: float  # the cosine of the two turns' vectors, -1 to 1
    on_path: bool = True  # whether it is part of the path shown
    branch: str = ""  # the name of its branch, if it is not on the path
    tokens: int = 0  # its length, if only its first tokens were compared; 0: all were


class SimilarTurns(Struct, frozen=True):
    """All turns with words, the most similar first. Vectors are cached in memory; nothing is saved."""

    session_id: int  # whose turns
    node_id: int  # the queried turn
    words: str  # its first words
    pooling: Pooling  # of hidden states to vectors
    model: str  # the name of the model that computed them
    rows: tuple[SimilarTurn, ...]  # the other turns
    poolings: tuple[Pooling, ...]  # that this model offers
    limit: int  # tokens compared of a turn
    tokens: int = 0  # the length of the queried turn, if it exceeds `limit`; else 0
    damaged: int = 0  # turns left out because their stored data is damaged
    computed: int = 0  # tokens computed for this, padding included; 0: all vectors were cached


class SimilarCommands(Protocol):
    """Search for similar turns. Every coroutine may raise `Refusal`."""

    async def find(self, session_id: int, node_id: int, pooling: Pooling, progress: OnCompared) -> SimilarTurns:
        """Compares a turn with all others of its session, on all branches but pruned ones, at the lowest priority.

        Vectors are cached until the app ends, by text. May be cancelled; vectors computed by then stay cached.

        Raises:
            ModelRefusal: No model can compute it: another one may be chosen.
        """
