"""Forwards of a workspace that are under way: begun and not waited for, or prepared and not begun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Slots = npt.NDArray[np.int64]
Fetch = Callable[[], npt.NDArray[np.float32]]  # waits for the logits


@dataclass(slots=True)
class Begun:
    """A forward that computes by itself: its slots are reserved until somebody settles it."""

    base: int  # the number of its first slot
    count: int
    fetch: Fetch | None  # None: it is settled
    logits: npt.NDArray[np.float32] | None = None  # None: not settled, or it failed


@dataclass(frozen=True, slots=True)
class Prepared:
    """A forward that lacks its tokens alone, and what it was prepared for."""

    parents: Slots  # the pack's own slots
    tags: Slots  # of the tokens: the adapters that they will be computed under
    begin: Callable[[Slots], tuple[Slots, Fetch]]

    def fits(self, tokens: Sequence[int], ids: Slots, parents: Slots) -> bool:
        """Whether it is what these tokens need, of which `ids` are without their tags."""
        return np.array_equal(parents, self.parents) and np.array_equal(np.array(tokens, np.int64) - ids, self.tags)
