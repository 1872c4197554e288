"""A row of scores in descending order, computed as far as needed."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

from runtime.numerics.ranking import PARTS, SHALLOW, Deep, Look, Ranked, places_of
from runtime.numerics.scoring import COLDEST, heated_masses, scratch
from runtime.numerics.select import RankedToken, mass_where, place_of_mass, spread_mass
from runtime.records import Float32

_PART_SORTED = 4  # up to 1 / 4 of the row is sorted by value; deeper places are searched
_SAMPLE = 2048  # entries of a sample of a flat row
_MARGIN = 6  # peaks added to an estimate
_FEW = 64.0  # if the mass takes at least n further entries, n up to this,
_PER_ENTRY = 8  # then this many times n probably reach it, since weights decrease
_NEARLY_ALL = 1 - 1e-5
_MOST = 700.0  # exponent whose exp is within float64
LIGHTEST = np.float32(-1000.0)  # nats below the likeliest, where all weights are 0


class SortedRow:
    """Entries by descending score, ties by id. Weights are probabilities relative to the likeliest entry, which weighs 1.

    The first entries, the head, are sorted and exact in float64. Entries a little beyond it are sorted by score without their
    ids, which gives the mass before each. Deeper places are searched.

    Args:
        ranked: ``(vocab,)`` scores, -inf for excluded entries, with their order as far as it is known at any temperature.
        temperature: Divides the scores.
        look: How much of the row is sorted at first.

    Attributes:
        ids: Ids of the head.
        weights: Weights of the head.
        edges: The mass up to and including each entry of the head.
        complete: Whether the head has all entries.
        top: The highest score; NaN where there is none.
    """

    __slots__ = ("_deep", "_exact", "_tail", "_total", "complete", "edges", "ids", "ranked", "temperature", "top", "weights")

    def __init__(self, ranked: Ranked, temperature: float, look: Look = SHALLOW) -> None:
        self.temperature = temperature
        self.ranked = ranked
        self._deep: Deep | None = None
        if len(ranked.ids) * 2 <= look.head:  # else the known head is long enough
            ranked.reach(look.head, look)
        self.top = float(ranked.values[0]) if len(ranked.values) else math.nan
        self._take_head()
        self._total: float | None = None
        self._exact: float | None = None

    @property
    def row(self) -> Float32:
        """The scores ``(vocab,)``."""
        return self.ranked.row

    def reach(self, count: int) -> None:
        """Extends the head to `count` entries, or to all."""
        self.ranked.reach(count)
        if self.ids is not self.ranked.ids:
            self._take_head()

    def _take_head(self) -> None:
        self._tail: Float32 | None = None
        self.ids, self.complete = self.ranked.ids, self.ranked.complete
        self.weights = self._weigh(self.ranked.values)
        self.edges = self.weights.cumsum()

    def _weigh(self, scores: Float32) -> npt.NDArray[np.float64]:
        scaled = scores.astype(np.float64)
        scaled -= self.top  # before the division: the likeliest stays at 0 however small the temperature
        if self.temperature >= COLDEST:  # quotients of float32 numbers do not overflow float64
            if self.temperature != 1.0:
                scaled /= self.temperature
        else:
            with np.errstate(over="ignore"):
                scaled /= self.temperature
        weights: npt.NDArray[np.float64] = np.exp(scaled, out=scaled)
        return weights

    @property
    def alive(self) -> int:
        """The number of entries that are not excluded."""
        return self.ranked.alive

    def exact_weights(self) -> npt.NDArray[np.float64]:
        """Weights ``(vocab,)`` of all entries, in float64."""
        return self._weigh(self.row)

    def cooled(self, scores: Float32) -> Float32:
        """Divides scores relative to the top by the temperature, in place, in float32."""
        if self.temperature >= 1.0:
            if self.temperature > 1.0:
                scores /= np.float32(self.temperature)
            return scores
        with np.errstate(over="ignore"):
            scores /= np.float32(max(self.temperature, COLDEST))
        return scores

    @property
    def tail(self) -> Float32:
        """Weights ``(vocab,)`` of all entries in float32; 0 for those of the head."""
        if self._tail is None:
            scaled = self.cooled(self.row - np.float32(self.top))
            self._tail = np.exp(scaled, out=scaled)
            self._tail[self.ids] = 0
        return self._tail

    def total(self, share: float = 0.0) -> float:
        """The sum of all weights, of float32 precision where the row's normaliser gives it.

        Args:
            share: The share of the sum that will be searched for; close to 1, the exact sum is returned.
        """
        if share > _NEARLY_ALL:
            return self.exact_total
        if self._total is None:
            mass, heated = self.ranked.mass, self.ranked.heated
            if self.complete:
                self._total = self.exact_total
            elif self.temperature != 1.0:
                self._total = heated[1] if heated and heated[0] == self.temperature else self._heated_mass()
            elif mass is not None:
                self._total = mass * math.exp(min(-self.top, _MOST))
            else:
                self._total = self.exact_total
        return self._total

    @property
    def exact_total(self) -> float:
        """The sum as the search for a place adds it up: head and tail."""
        if self._exact is None:
            self._exact = float(self.edges[-1]) + (0.0 if self.complete else mass_where(self.tail))
        return self._exact

    def _heated_mass(self) -> float:
        temperature = np.array([max(self.temperature, COLDEST)])
        with np.errstate(over="ignore"):
            return float(heated_masses(self.row[None], self.ranked.values[:1], temperature)[0])

    @property
    def entropy(self) -> float:
        """The entropy of the distribution, in nats."""
        if self.temperature == 1.0 and self.ranked.entropy is not None:
            return self.ranked.entropy
        scaled = np.subtract(self.row, np.float32(self.top), out=scratch("entropy", len(self.row)))
        self.cooled(scaled)
        if self._tail is None:
            self._tail = np.exp(scaled)
            self._tail[self.ids] = 0
        with np.errstate(invalid="ignore"):
            spread = spread_mass(self._tail, scaled)
        if math.isnan(spread):  # from excluded entries, 0 * -inf
            spread = spread_mass(self._tail, np.maximum(scaled, LIGHTEST, out=scaled))
        with np.errstate(divide="ignore"):
            logs = np.maximum(np.log(self.weights), LIGHTEST)
        return float(np.log(self.total()) - (spread + float(np.dot(self.weights, logs))) / self.total())

    def at_mass(self, target: float, *, left: bool = False) -> RankedToken:
        """The first entry at which the cumulative mass exceeds `target` (`left`: reaches it)."""
        if self.complete or (target <= self.edges[-1] if left else target < self.edges[-1]):
            i = int(self.edges.searchsorted(target, "left" if left else "right"))
            if i >= len(self.ids):  # the target is the total mass but for rounding
                i = int(np.flatnonzero(self.weights)[-1])
            return self.at_rank(i)
        deep = self.reaching(target, left=left)
        if deep is not None:
            return self.at_known(deep, int(deep.edges.searchsorted(target, "left" if left else "right")))
        guesses = [guess for guess in around(self, target) if guess is not None]
        known, total = float(self.edges[-1]), self.total()
        return place_of_mass(self.row, self.tail, target, left=left, known=known, total=total, guesses=guesses)

    def reaching(self, target: float, *, left: bool, least: np.float32 | None = None) -> Deep | None:
        """The first entries, enough to exceed (`left`: reach) a mass and to include all that reach the score `least`.

        None where they are too many to be sorted, or all estimates of their end are wrong.
        """
        for attempt in range(4):
            deep = self.known
            if deep is not None and (least is None or deep.least <= least):
                mass = deep.edges[-1]
                if mass > target or (left and mass == target):
                    return deep
            low = None if attempt else likely_depth(self, target)
            if low is None and least is not None and not attempt:
                low = np.float32(least - self.temperature / 2)  # a longer search costs less than a second one
            elif low is None:
                low = around(self, target)[1]
            if low is None or attempt == 3 or self._down_to(low if least is None else min(low, least)) is None:
                break
        return None

    @property
    def known(self) -> Deep | None:
        """The first entries, sorted by score without their ids; None if not known."""
        reached = self.ranked.reached
        if self._deep is None and reached is not None:
            weights = self._weigh(reached.scores)
            self._deep = Deep(*reached, weights, weights.cumsum())
        return self._deep

    def _down_to(self, score: np.float32) -> Deep | None:
        """All entries that reach a score; None where they are too many to be sorted, or none does."""
        deep = self.known
        if deep is not None and deep.least <= score:
            return deep
        mask = self.row >= score
        if deep is not None:
            mask &= self.row < deep.least
        count = int(np.count_nonzero(mask))
        if not 0 < count + (0 if deep is None else len(deep.scores)) <= len(self.row) // _PART_SORTED:
            return None
        ids = places_of(mask, count)
        found = self.row[ids]
        scores = np.sort(found)[::-1]
        weights = self._weigh(scores)
        if deep is None:
            self._deep = Deep(score, ids, found, scores, weights, weights.cumsum())
        else:
            self._deep = Deep(
                score,
                np.concatenate([deep.ids, ids]),
                np.concatenate([deep.found, found]),
                np.concatenate([deep.scores, scores]),
                np.concatenate([deep.weights, weights]),
                np.concatenate([deep.edges, weights.cumsum() + deep.edges[-1]]),
            )
        return self._deep

    def at_known(self, deep: Deep, i: int) -> RankedToken:
        """The entry of rank `i` among `deep`."""
        own = deep.scores[i]
        equals = deep.ids[deep.found == own]  # ascending
        token = equals[i - int(np.searchsorted(-deep.scores, -own))] if len(equals) > 1 else equals[0]
        return RankedToken(i, int(token), float(deep.edges[i - 1]) if i else 0.0, float(deep.weights[i]))

    def at_rank(self, rank: int) -> RankedToken:
        """The entry of this rank, from 0; the last one where there are fewer."""
        if rank >= len(self.ids) and not self.complete:
            self.reach(rank + 1)
        rank = min(rank, len(self.ids) - 1)
        before = float(self.edges[rank - 1]) if rank else 0.0
        return RankedToken(rank, int(self.ids[rank]), before, float(self.weights[rank]))

    def last_at_least(self, weight: float) -> RankedToken:
        """The last entry whose weight is at least `weight`; the first one where there is none."""
        count = int(np.count_nonzero(self.weights >= weight))
        if count < len(self.ids) or self.complete:
            return self.at_rank(max(count - 1, 0))
        score = self.top + self.temperature * math.log(weight) if 0 < weight < 1 else self.top
        deep = self._down_to(np.float32(score - 1e-5 * (1 + abs(score)))) if weight > 0 else None  # with a margin for rounding
        if deep is not None:
            return self.at_known(deep, max(int(np.count_nonzero(deep.weights >= weight)) - 1, 0))
        enough = self.tail >= np.float32(weight)
        ids = np.flatnonzero(enough)
        if not len(ids):
            return self.at_rank(count - 1)
        scores = self.row[ids]
        last = int(ids[scores == scores.min()][-1])
        own = float(self.tail[last])
        return RankedToken(count + len(ids) - 1, last, float(self.edges[-1]) + mass_where(self.tail, enough) - own, own)


# ---- estimates of how deep in a row a mass is reached, from samples of the row; they only narrow a search ----


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
