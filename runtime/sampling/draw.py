"""The random number behind a draw, and the draw itself.

A draw is u from Philox(key = seed, counter = (position, branch, stage)) through the inverse CDF over falling
probability, ties by id: the same stream samples the same alone, in a batch, on a branch and after a reload.
"""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

DRAW_STAGE = 0  # the place of a stage in the counter
XTC_STAGE = 1


def fresh_seed() -> int:
    """A seed nobody chose, within 63 bits so that SQLite stores it as it is."""
    return secrets.randbits(63)


def uniform(seed: int, position: int, branch: int = 0, stage: int = DRAW_STAGE) -> float:
    """The number in [0, 1) that belongs to this place of this stream."""
    bits = np.random.Philox(key=seed, counter=[0, position, branch, stage]).random_raw()
    return float(bits >> 11) * 2.0**-53


def inverse_cdf(probs: npt.NDArray[np.float64], u: float) -> int:
    """The index drawn from falling weights that need not sum to one."""
    edges = np.cumsum(probs)
    return min(int(np.searchsorted(edges, u * edges[-1], side="right")), len(probs) - 1)
