"""The falling order of a row of scores, known as far as it was asked for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from runtime.records import Float32
from runtime.sampling.select import Place, mass_where, place_of_mass
from runtime.scoring import STRIPES, likeliest

LONG_HEAD = 256  # that are sorted when the first ones were too few
HEAD = 64  # most distributions are settled among this many
COLDEST = 1e-30  # below it float32 knows no temperature; the likeliest has all of the weight long before


class Falling:
    """Entries by falling score, ties by id. Weights are probabilities relative to the likeliest, which has 1.

    The first ones, the head, are sorted and exact in float64; what lies beyond is searched, not sorted.

    Args:
        row: ``(vocab,)`` scores, -inf for what cannot be drawn; never written.
        temperature: Divides the scores.
        head: How many are sorted at first.
        plain: The scores are log-probabilities.
    """

    __slots__ = ("_sample", "_tail", "_total", "complete", "edges", "ids", "row", "temperature", "weights")

    def __init__(self, row: Float32, temperature: float, head: int = HEAD, *, plain: bool = False) -> None:
        self.row = row
        self.temperature = temperature
        self.reach(head)
        self._total = float(np.exp(-np.float64(self.top))) if plain else None

    def reach(self, count: int) -> None:
        """Makes the head so long, or as long as there are entries."""
        row = self.row
        self._tail: Float32 | None = None
        self._sample: tuple[Float32, npt.NDArray[np.float64]] | None = None
        count = min(count, len(row))
        self.ids = likeliest(row, count)
        self.complete = count == len(row) or len(self.ids) < count
        self.weights = self.weights_of(self.ids)
        self.edges: npt.NDArray[np.float64] = np.cumsum(self.weights)

    def weights_of(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The weights of some entries."""
        scaled = self.row[ids].astype(np.float64)
        scaled -= self.top  # before the division: the likeliest stays at 0 however small the temperature
        if self.temperature != 1.0:
            with np.errstate(over="ignore"):
                scaled /= self.temperature
        weights: npt.NDArray[np.float64] = np.exp(scaled, out=scaled)
        return weights

    @property
    def top(self) -> float:
        """The highest score."""
        return float(self.row[self.ids[0]])

    def all_weights(self) -> Float32:
        """The weights of all entries ``(vocab,)``, in float32."""
        scaled = self.row - np.float32(self.top)
        if self.temperature != 1.0:
            with np.errstate(over="ignore"):
                scaled /= np.float32(max(self.temperature, COLDEST))
        weights: Float32 = np.exp(scaled, out=scaled)
        return weights

    @property
    def tail(self) -> Float32:
        """`all_weights` without the head's."""
        if self._tail is None:
            self._tail = self.all_weights()
            self._tail[self.ids] = 0
        return self._tail

    @property
    def total(self) -> float:
        """The sum of all weights."""
        if self._total is None:
            self._total = float(self.edges[-1]) + (0.0 if self.complete else mass_where(self.tail))
        return self._total

    def at_mass(self, target: float, *, left: bool = False) -> Place:
        """The first entry at which the mass so far exceeds `target` (`left`: reaches it)."""
        if self.complete or (target <= self.edges[-1] if left else target < self.edges[-1]):
            i = int(np.searchsorted(self.edges, target, side="left" if left else "right"))
            if i >= len(self.ids):  # the target is the whole mass, but for rounding
                i = int(np.flatnonzero(self.weights)[-1])
            return self.at_rank(i)
        if len(self.ids) < LONG_HEAD <= len(self.row) // STRIPES:
            self.reach(LONG_HEAD)  # cheaper than a search, and most often enough
            return self.at_mass(target, left=left)
        guesses = self._guesses(target)
        return place_of_mass(
            self.row, self.tail, target, left=left, known=float(self.edges[-1]), total=self.total, guesses=guesses
        )

    def _guesses(self, target: float) -> tuple[np.float32, ...]:
        """Scores between which the place of a mass probably lies.

        The largest entries of many small parts of the row are a sample that is dense where the mass is: an entry of rank r is
        the largest of its part with the probability exp(-r / parts).
        """
        if self._sample is None:
            parts = len(self.row) // STRIPES
            tops = np.sort(self.row[: parts * STRIPES].reshape(STRIPES, parts).max(axis=0))[::-1]
            with np.errstate(over="ignore"):
                weights = np.exp((tops - np.float32(self.top)) / np.float32(max(self.temperature, COLDEST)))
            weights[tops >= self.row[self.ids[-1]]] = 0
            weights /= 1 - (np.arange(parts, dtype=np.float32) / np.float32(parts))  # each stands for those it covers
            self._sample = tops, self.edges[-1] + np.cumsum(weights, dtype=np.float64)
        tops, edges = self._sample
        at = int(np.searchsorted(edges, target))
        spread = 6 + at // 12
        return tuple(tops[i] for i in (at - spread, at + spread) if 0 <= i < len(tops))

    def at_rank(self, rank: int) -> Place:
        """The entry that so many stand before; the last one where there are fewer."""
        if rank >= len(self.ids) and not self.complete:
            self.reach(rank + 1)
        rank = min(rank, len(self.ids) - 1)
        before = float(self.edges[rank - 1]) if rank else 0.0
        return Place(rank, int(self.ids[rank]), before, float(self.weights[rank]))

    def last_at_least(self, weight: float) -> Place:
        """The last entry whose weight is so much or more; the first one where there is none."""
        count = int(np.count_nonzero(self.weights >= weight))
        if count < len(self.ids) or self.complete:
            return self.at_rank(max(count - 1, 0))
        enough = self.tail >= np.float32(weight)
        ids = np.flatnonzero(enough)
        if not len(ids):
            return self.at_rank(count - 1)
        scores = self.row[ids]
        last = int(ids[scores == scores.min()][-1])
        own = float(self.tail[last])
        return Place(count + len(ids) - 1, last, float(self.edges[-1]) + mass_where(self.tail, enough) - own, own)

    def before(self, ids: npt.NDArray[np.int64], token: int) -> npt.NDArray[np.bool_]:
        """Which of `ids` stand before `token`."""
        own = self.row[token]
        scores = self.row[ids]
        found: npt.NDArray[np.bool_] = (scores > own) | ((scores == own) & (ids < token))
        return found
