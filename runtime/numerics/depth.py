"""Estimates of how deep in a sorted row a mass is reached, from samples of the row. They only narrow a search."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.numerics.ranking import PARTS

if TYPE_CHECKING:
    from runtime.numerics.sorted_row import SortedRow
    from runtime.records import Float32

_SAMPLE = 2048  # entries of a sample of a flat row
_MARGIN = 6  # peaks added to an estimate
_FEW = 64.0  # if the mass takes at least n further entries, n up to this,
_PER_ENTRY = 8  # then this many times n probably reach it, since weights decrease


class Deep(NamedTuple):
    """`Reached`, with the weights of `scores` and their cumulative sums."""

    least: np.float32
    ids: npt.NDArray[np.int64]
    found: Float32
    scores: Float32
    weights: npt.NDArray[np.float64]
    edges: npt.NDArray[np.float64]


def likely_depth(order: SortedRow, target: float) -> np.float32 | None:
    """A score that the entry at the mass `target` probably reaches, by the peaks of the row; None where it lies deeper."""
    peaks = order.ranked.sample
    if len(peaks) < PARTS:
        return None
    fewest = max(target - float(order.edges[-1]), 0.0) / max(float(order.weights[-1]), 1e-300)  # entries needed at least
    if fewest <= _FEW:
        return order.ranked.peak_reached_by(len(order.ids) + _PER_ENTRY * fewest)
    return _depth_by_mass(order, np.sort(peaks)[::-1], target)


def _depth_by_mass(order: SortedRow, peaks: Float32, target: float) -> np.float32 | None:
    """`likely_depth` for many entries: each peak represents a known number of them if they lie in random order."""
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
    """``(parts,)``: the number of entries that each of the sorted peaks of a row's parts represents."""
    reached = -parts * np.log1p(-(np.arange(parts) + 0.5) / parts)  # number of entries that hit 0.5, 1.5, ... parts
    shares: Float32 = np.diff(reached, prepend=0.0).astype(np.float32)
    return shares


def around(order: SortedRow, target: float) -> tuple[np.float32 | None, np.float32 | None]:
    """Scores above and below the probable place of a mass; None beyond the sample.

    The sample is every n-th entry: a mass that is reached deep in the order lies everywhere in the row.
    """
    deep, every = order.known, max(len(order.row) // _SAMPLE, 1)
    least, mass = (order.ranked.values[-1], order.edges[-1]) if deep is None else (deep.least, deep.edges[-1])
    scores = np.sort(order.row[::every])[::-1]
    weights = order.cooled(scores - np.float32(order.top))
    np.exp(weights, out=weights)
    weights[: np.count_nonzero(scores >= least)] = 0  # known entries are summed exactly
    sums = weights.cumsum(dtype=np.float64)
    rest = (order.total() - mass) / sums[-1] if sums[-1] else every
    at = int((mass + rest * sums).searchsorted(target))
    spread = 6 + at // 12
    high = scores[at - spread] if 0 <= at - spread < len(scores) else None
    return high, scores[at + spread] if at + spread < len(scores) else None
