"""How deep the place of a mass probably lies in the falling order of a row, from samples of it: guesses, never answers."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.numerics.ranking import PARTS

if TYPE_CHECKING:
    from runtime.numerics.sorted_row import SortedRow
    from runtime.records import Float32

_SAMPLE = 2048  # entries of a row, where its mass lies everywhere
_MARGIN = 6  # parts of a row
_FEW = 64.0  # entries beyond the head, which
_PER_ENTRY = 8  # times as many reach where each has less than the one before


class Deep(NamedTuple):
    """`Reached`, with the weights of the falling scores, and their sums so far."""

    least: np.float32
    ids: npt.NDArray[np.int64]
    found: Float32
    scores: Float32
    weights: npt.NDArray[np.float64]
    edges: npt.NDArray[np.float64]


def likely_depth(order: SortedRow, target: float) -> np.float32 | None:
    """A score below which the place of a mass hardly lies, by the largest entries of the row's parts.

    None where it lies deeper than those tell.
    """
    peaks = order.ranked.sample
    if len(peaks) < PARTS:
        return None
    fewest = max(target - float(order.edges[-1]), 0.0) / max(float(order.weights[-1]), 1e-300)  # entries that it takes
    if fewest <= _FEW:
        return order.ranked.peak_reached_by(len(order.ids) + _PER_ENTRY * fewest)
    return _depth_by_mass(order, np.sort(peaks)[::-1], target)


def _depth_by_mass(order: SortedRow, peaks: Float32, target: float) -> np.float32 | None:
    """The same, where it takes many entries: how many of the row a peak stands for is known of numbers that lie anywhere."""
    weights = order.cooled(peaks - np.float32(order.top))
    np.exp(weights, out=weights)
    weights *= _shares(len(peaks))
    mass = weights.cumsum()
    known = int(np.count_nonzero(peaks >= order.ranked.values[-1]))
    sought = target - float(order.edges[-1]) + (float(mass[known - 1]) if known else 0.0)
    at = int(mass.searchsorted(np.float32(sought)))
    at += _MARGIN + at // 8
    return peaks[at] if at < len(peaks) else None


@cache
def _shares(parts: int) -> Float32:
    """``(parts,)``: how many entries lie between the largest ones of parts, of which the falling ones are known."""
    reached = -parts * np.log1p(-(np.arange(parts) + 0.5) / parts)  # entries, so that so many parts have one or more
    shares: Float32 = np.diff(reached, prepend=0.0).astype(np.float32)
    return shares


def around(order: SortedRow, target: float) -> tuple[np.float32 | None, np.float32 | None]:
    """A higher and a lower score between which the place of a mass probably lies; None where the sample has none.

    Every n-th entry is the sample: where the mass lies deep it lies everywhere.
    """
    deep, every = order.known, max(len(order.row) // _SAMPLE, 1)
    least, mass = (order.ranked.values[-1], order.edges[-1]) if deep is None else (deep.least, deep.edges[-1])
    scores = np.sort(order.row[::every])[::-1]
    weights = order.cooled(scores - np.float32(order.top))
    np.exp(weights, out=weights)
    weights[: np.count_nonzero(scores >= least)] = 0  # what is known needs no guess
    sums = weights.cumsum(dtype=np.float64)
    rest = (order.total() - mass) / sums[-1] if sums[-1] else every
    at = int((mass + rest * sums).searchsorted(target))
    spread = 6 + at // 12
    high = scores[at - spread] if 0 <= at - spread < len(scores) else None
    return high, scores[at + spread] if at + spread < len(scores) else None
