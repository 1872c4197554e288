"""The path that is shown, scored under a second model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from runtime import ModelComparison
from ui.port.refusals import Refusal
from ui.port.settings import AdapterChoice

OnCompared = Callable[[str, int, int], None]  # what is done, how much of how much (0 of 0: not known); on the window's thread


class SecondChoice(Struct, frozen=True):
    """What a path can be compared with.

    Attributes:
        source: The model.
        backend: What runs it.
        label: What it is called beside the model in use.
        detail: A few words more.
        adapters: That it is under; None: whatever it is loaded with.
        dtype: What it computes in; "" as set.
        weights: How it holds its linear weights, as `LoadChoice.weights` has it; "" the engine's own form.
        same_engine: It needs no second engine: the one that runs answers under other adapters.
        problem: Why it cannot be had here; "" where it can.
    """

    source: str
    backend: str
    label: str
    detail: str = ""
    adapters: tuple[AdapterChoice, ...] | None = None
    dtype: str = ""
    weights: str = ""
    same_engine: bool = False
    problem: str = ""


class PathComparison(Struct, frozen=True):
    """The numbers of two models for the tokens of a path; nothing of it is saved.

    Attributes:
        session_id: Whose path.
        left: What the model in use is called.
        right: What the second one is called.
        found: The numbers, by spans.
        spans: For each turn by its node: ``(n,)`` the span that each token of its run is in.
        read: Tokens of the path that were compared; what follows no model has read.
        kl_from: The token of the path from which on the KL is known; 0: of all, where it is known at all.
    """

    session_id: int
    left: str
    right: str
    found: ModelComparison
    spans: Mapping[int, npt.NDArray[np.int64]]
    read: int
    kl_from: int = 0


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
