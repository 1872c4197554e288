"""The largest entries of a large row without sorting it all, shared by the draw and the record."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

PARTS = 256  # least number of peaks for an estimate
STRIPES = 64  # rows of a vocabulary laid out as a rectangle, whose column maxima are the peaks

_FEW_COLUMNS = 16  # up to 1 / 16 of the columns are gathered from the rectangle
_FEW = 4  # up to 1 / 4 of a row is sorted
_PER_PEAK = 3  # entries per peak up to which peaks allow an estimate
_SAMPLE = 2048  # entries of a sample of a flat row, about
_THIN, _DENSE = 0.025, 0.1  # shares of set entries; from the latter numpy uses another algorithm
_MADE_DENSE = 0.12  # share of set entries that makes a mask dense
_REST = 0.75  # part of the remaining mass that is left out, so that errors of the sample seldom cause another search

Row = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]
_NO_IDS: npt.NDArray[np.int64] = np.empty(0, np.int64)
_NO_VALUES: Row = np.empty(0, np.float32)
_LINES = np.arange(STRIPES)[:, None]


class Reached(NamedTuple):
    """All entries of a row that reach a value."""

    least: np.float32
    ids: npt.NDArray[np.int64]  # ties ascending
    found: Row  # their scores
    scores: Row  # the same, descending


class Deep(NamedTuple):
    """`Reached`, with the weights of `scores` and their cumulative sums."""

    least: np.float32
    ids: npt.NDArray[np.int64]
    found: Row
    scores: Row
    weights: Numbers
    edges: Numbers


class Look(NamedTuple):
    """How much of a row's order is searched at first."""

    head: int = 64  # entries that are sorted; enough for most distributions
    times: float = 0.0  # finds further entries, sorted by value without their ids, if times * exp(entropy) exceeds the head
    fewest: int = 0  # least number of further entries; 0: none
    share: float = 0.0  # share of the mass that the entries of a flat row should reach; 0: unknown


SHALLOW = Look()


class Ranked:
    """The entries of a row by descending value, ties by id, sorted as far as requested.

    Args:
        row: ``(vocab,)``, -inf for excluded entries; never written. Or a function that makes it on first use.
        mass: The sum of exp over the row, if known.
        entropy: Entropy of the distribution in nats, if known and no entry is excluded.
        peaks: The value of the property `peaks`, if known.
        heated: A temperature and the total weight of the row divided by it; see `scoring.heated_masses`.
        head: The first ids and their values, if known.
    """

    __slots__ = ("_alive", "_base", "_peaks", "_row", "complete", "entropy", "heated", "ids", "mass", "reached", "values")

    def __init__(
        self,
        row: Row | Callable[[], Row],
        mass: float | None = None,
        entropy: float | None = None,
        peaks: Row | None = None,
        heated: tuple[float, float] | None = None,
        head: tuple[npt.NDArray[np.int64], Row] = (_NO_IDS, _NO_VALUES),
    ) -> None:
        self._row = row
        self.mass = mass
        self.entropy = entropy
        self.heated = heated
        self.ids, self.values = head  # of the sorted entries
        self.complete = False  # whether all entries are sorted
        self.reached: Reached | None = None  # first entries, more than the head, sorted by value without their ids
        self._alive: int | None = None
        self._peaks = peaks
        self._base: Ranked | None = None  # a row that differs in few entries

    @property
    def row(self) -> Row:
        if not isinstance(self._row, np.ndarray):
            self._row = self._row()
        return self._row

    def edited(self, row: Row | Callable[[], Row], ids: npt.NDArray[np.int64], scores: Row, mass: float | None) -> Ranked:
        """The order of a copy of the row in which the distinct `ids` have other values, derived from the known order."""
        other = Ranked(row, mass)
        if self.complete or not len(self.ids):
            return other
        other._base = self
        border = self.values[-1]  # only known and raised entries lie above it
        same = self.values > border
        same &= ~_among(self.ids, ids, len(self.row))
        raised = scores > border
        if not raised.any():
            other.ids, other.values = self.ids[same], self.values[same]
            return other
        candidates, values = np.concatenate([self.ids[same], ids[raised]]), np.concatenate([self.values[same], scores[raised]])
        order = np.lexsort((candidates, -values))
        other.ids, other.values = candidates[order], values[order]
        return other

    def place_of(self, token: int) -> tuple[np.float32, int]:
        """An entry's value, and the number of entries strictly above it. Does not compute the row for a known entry."""
        known = _NO_IDS if isinstance(self._row, np.ndarray) else (self.ids == token).nonzero()[0]
        value: np.float32 = self.values[known[0]] if len(known) else self.row[token]
        if self.complete or (len(self.values) and value >= self.values[-1]):
            return value, int((-self.values).searchsorted(-value))
        return value, int(np.count_nonzero(self.row > value))

    def reach(self, count: int, look: Look = SHALLOW) -> None:
        """Sorts the first `count` entries, or all; may find further ones, as `look` expects, sorted without their ids."""
        if self.complete or len(self.ids) >= count or (look.fewest and self._reach_deep(count, look)):
            return
        count = min(count, len(self.row))
        self.ids = likeliest(self.row, count, self.peaks)
        self.values = self.row[self.ids]
        self.complete = count == len(self.row) or len(self.ids) < count

    def _reach_deep(self, count: int, look: Look) -> bool:
        """`reach` together with further entries; False if none are expected, or too many or too few are found."""
        _, times, fewest, share = look
        likely = fewest if self.entropy is None else times * math.exp(min(self.entropy, 20.0))
        least = None
        if likely > count and (parts := len(self.peaks)) >= PARTS:
            wanted = max(likely, fewest)
            if wanted < _PER_PEAK * parts:
                least = self.peak_reached_by(wanted)
            elif share:
                least = self.value_reached_by(share)
        if least is None:
            return False
        mask = self.row >= least
        held = int(np.count_nonzero(mask))
        if not count <= held <= len(self.row) // _FEW:
            return False
        ids = places_of(mask, held)
        found = self.row[ids]
        scores = np.sort(found)[::-1]
        self.reached = Reached(least, ids, found, scores)
        first = found >= scores[count - 1]
        self.ids = ids[first][(-found[first]).argsort(kind="stable")[:count]]
        self.values = scores[:count]
        return True

    def peak_reached_by(self, count: float) -> np.float32:
        """A value of `sample` that about `count` entries reach, for entries in random order and a small count."""
        sample = self.sample
        at = int(len(sample) * math.exp(-count / len(sample)))  # number of parts that `count` entries miss
        found: np.float32 = np.partition(sample, at)[at]
        return found

    def value_reached_by(self, share: float) -> np.float32 | None:
        """A value of a flat row: the entries that reach it probably have `share` of the mass together.

        Estimated from the weights of the many entries below it, of which every n-th is the sample. None if too many entries to
        be sorted reach it.
        """
        every = len(self.row) // _SAMPLE + 1
        sample = np.sort(self.row[::every])
        rest = np.exp(sample).cumsum()
        mass = 1.0 if self.mass is None else self.mass
        at = int(rest.searchsorted(np.float32(_REST * (1.0 - share) * mass / every)))
        if at == len(sample) or (len(sample) - at) * _FEW > len(sample):
            return None
        found: np.float32 = sample[at]
        return found

    @property
    def peaks(self) -> Row:
        """``(vocab // STRIPES,)`` the maxima of small parts of the row: a sample that is dense among its large entries."""
        if self._peaks is None:
            width = len(self.row) // STRIPES
            self._peaks = self.row[: width * STRIPES].reshape(STRIPES, width).max(axis=0)
        return self._peaks

    @property
    def sample(self) -> Row:
        """Peaks for estimates: those of the row this one was derived from, where there is one."""
        return self.peaks if self._base is None else self._base.sample

    @property
    def alive(self) -> int:
        """The number of entries that are not excluded."""
        if self._alive is None:
            whole = self.entropy is not None  # known only for rows without excluded entries
            self._alive = len(self.row) if whole else int(np.count_nonzero(self.row > -np.inf))
        return self._alive


class RankRequest(NamedTuple):
    """A request to rank rows on the device that computed them."""

    width: int  # number of likeliest entries; fewer are returned if the last ones are ties of unknown order
    temperatures: tuple[float, ...]  # per row: the one at which draws need its total weight; 1: they do not
    whole: tuple[int, ...] = ()  # rows that are needed completely


class RankedRows(NamedTuple):
    """Rows that were ranked on their device; a row is copied from it when more than its head is needed."""

    rows: list[Ranked]  # n of them
    shift: Row  # ``(n,)`` normalisers
    finite: npt.NDArray[np.bool_]  # ``(n,)`` which rows were finite; the values of the others are undefined

    def part(self, rows: slice) -> RankedRows:
        """The rows of a slice."""
        return RankedRows(self.rows[rows], self.shift[rows], self.finite[rows])


def ranked_rows(
    rows: Row,
    mass: Numbers,
    entropy: Numbers | None,
    peaks: Row | None,
    temperatures: Numbers | None = None,
    heated: Numbers | None = None,
) -> list[Ranked]:
    """`Ranked` of ``(n, vocab)`` rows; the other arguments have a value, or a row of peaks, for each."""
    nothing = [None] * len(rows)
    entropies = nothing if entropy is None else entropy.tolist()
    hot = nothing if temperatures is None or heated is None else zip(temperatures.tolist(), heated.tolist(), strict=True)
    return list(map(Ranked, rows, mass.tolist(), entropies, nothing if peaks is None else peaks, hot))


def _among(ids: npt.NDArray[np.int64], others: npt.NDArray[np.int64], vocab: int) -> npt.NDArray[np.bool_]:
    """Which of `ids` are among `others`, without the sort of `numpy.isin`."""
    marks = np.empty(vocab, np.bool_)
    marks[ids] = False
    marks[others] = True
    return marks[ids]


def likeliest(row: Row, k: int, peaks: Row | None = None) -> npt.NDArray[np.int64]:
    """The `k` likeliest ids of one row ``(vocab,)``, descending, ties by id; includes entries of -inf only if `k` is all.

    The row is laid out as a rectangle. At least `k` entries reach the k-th largest column maximum, and few more, all of them
    in columns whose maximum reaches it.

    Args:
        row: The values.
        k: Number of ids.
        peaks: `Ranked.peaks`, if known.
    """
    vocab = len(row)
    width = vocab // STRIPES
    if k > width:
        border = np.partition(row, vocab - min(k, vocab))[-min(k, vocab)]
        ids = (row >= border if border > -np.inf or k >= vocab else row > border).nonzero()[0]
    else:
        peaks = Ranked(row).peaks if peaks is None else peaks
        border = np.partition(peaks, width - k)[-k]
        if border == -np.inf:
            ids = (row > border).nonzero()[0]
        elif k * _FEW_COLUMNS > width:  # a pass over the row costs less than gathering that many columns
            ids = (row >= border).nonzero()[0]
        else:
            columns = (_LINES * width + (peaks >= border).nonzero()[0]).ravel()
            some = np.concatenate([columns, np.arange(width * STRIPES, vocab)])  # ascending
            ids = some[row[some] >= border]
    order = (-row[ids]).argsort(kind="stable")
    found: npt.NDArray[np.int64] = ids[order[:k]]
    return found


def places_of(mask: npt.NDArray[np.bool_], count: int) -> npt.NDArray[np.int64]:
    """Indices of the set entries of a mask ``(n,)``, about `count` of them.

    numpy branches at each set entry of a mask that is not dense and mispredicts it; in a dense mask it does not branch. A mask
    that is neither thin nor dense is made dense by set entries appended to it.
    """
    n = len(mask)
    if not _THIN < count / n <= _DENSE:
        return mask.nonzero()[0]
    more = _all_set(int(_MADE_DENSE * n) + 1)
    return np.concatenate([mask, more]).nonzero()[0][: -len(more)]


@cache
def _all_set(n: int) -> npt.NDArray[np.bool_]:
    return np.ones(n, np.bool_)
