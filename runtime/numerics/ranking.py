"""Which entries of a large row are the largest, without sorting it; what was found once serves the draw and the record."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

PARTS = 256  # of a row, whose largest entries are enough to guess by
STRIPES = 64  # rows of a vocabulary laid out as a rectangle, for a first guess at its top

_FEW_COLUMNS = 16  # a part of so much of them is picked out of the rectangle
_FEW = 4  # a part of so much of a row is sorted
_TOLD = 3  # times as many entries as there are peaks; of more, peaks do not tell
_SAMPLE = 2048  # entries of a flat row, about
_THIN, _DENSE = 0.025, 0.1  # shares of a mask; the latter is where numpy changes its way
_MADE_DENSE = 0.12  # so much of a mask that is set makes it dense
_REST = 0.75  # of what is to be left out, so that what the sample does not tell seldom takes another search

Row = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]
_NO_IDS: npt.NDArray[np.int64] = np.empty(0, np.int64)
_NO_VALUES: Row = np.empty(0, np.float32)
_LINES = np.arange(STRIPES)[:, None]


class Reached(NamedTuple):
    """All entries of a row that reach a value."""

    least: np.float32
    ids: npt.NDArray[np.int64]  # ascending, where they are equals, beside the scores as they stand in the row
    found: Row  # theirs
    scores: Row  # the same, falling


class Look(NamedTuple):
    """How much of a row's order is looked for at first."""

    head: int = 64  # most distributions are settled among so many
    times: float = 0.0  # as many as equally likely ones would be (e to the entropy) are looked for too
    fewest: int = 0  # that are, if they are more than the head; 0: nothing is looked up beyond it
    share: float = 0.0  # of the mass, which those of a flat row reach together; 0: unknown


SHALLOW = Look()


class Ranked:
    """The entries of a row by falling value, ties by id, known as far as they were asked for.

    Args:
        row: ``(vocab,)``, -inf for what is not there; never written. Or what makes it, when it is asked for.
        mass: The sum of exp over the row, where it is known.
        entropy: Of the distribution, in nats, where it is known and all entries are there.
        peaks: See there, where they are known.
        heated: A temperature, and what all entries weigh once they are divided by it; see `scoring.heated_masses`.
        head: The first ids and their values, where they are known.
    """

    __slots__ = ("_alive", "_kin", "_peaks", "_row", "complete", "entropy", "heated", "ids", "mass", "reached", "values")

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
        self.ids, self.values = head  # the first ones, and theirs
        self.complete = False  # whether they are all
        self.reached: Reached | None = None  # more than those, by their values alone
        self._alive: int | None = None
        self._peaks = peaks
        self._kin: Ranked | None = None  # a row that differs in few entries

    @property
    def row(self) -> Row:
        if not isinstance(self._row, np.ndarray):
            self._row = self._row()
        return self._row

    def edited(self, row: Row | Callable[[], Row], ids: npt.NDArray[np.int64], scores: Row, mass: float | None) -> Ranked:
        """The order of a copy in which `ids`, each named once, have other values, from what is known of this one."""
        other = Ranked(row, mass)
        if self.complete or not len(self.ids):
            return other
        other._kin = self
        border = self.values[-1]  # nothing lies above it but what does here, and what was raised
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
        """An entry's value, and how many lie strictly above; a row that is not made yet is not made for one that is known."""
        known = _NO_IDS if isinstance(self._row, np.ndarray) else (self.ids == token).nonzero()[0]
        value: np.float32 = self.values[known[0]] if len(known) else self.row[token]
        if self.complete or (len(self.values) and value >= self.values[-1]):
            return value, int((-self.values).searchsorted(-value))
        return value, int(np.count_nonzero(self.row > value))

    def reach(self, count: int, look: Look = SHALLOW) -> None:
        """Makes so many known, or as many as there are; what `look` expects to be asked for beyond, by its values alone."""
        if self.complete or len(self.ids) >= count or (look.fewest and self._reach_deep(count, look)):
            return
        count = min(count, len(self.row))
        self.ids = likeliest(self.row, count, self.peaks)
        self.values = self.row[self.ids]
        self.complete = count == len(self.row) or len(self.ids) < count

    def _reach_deep(self, count: int, look: Look) -> bool:
        """`reach` in one search with more by their values alone; False where those are not expected, or too many or too few."""
        _, times, fewest, share = look
        likely = fewest if self.entropy is None else times * math.exp(min(self.entropy, 20.0))
        least = None
        if likely > count and (parts := len(self.peaks)) >= PARTS:
            wanted = max(likely, fewest)
            if wanted < _TOLD * parts:
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
        """The value of one of the `sample` that about so many entries reach; of entries that lie anywhere, and not of many."""
        sample = self.sample
        at = int(len(sample) * math.exp(-count / len(sample)))  # so many parts have none of so many entries
        found: np.float32 = np.partition(sample, at)[at]
        return found

    def value_reached_by(self, share: float) -> np.float32 | None:
        """A value that entries which have a share of the mass together probably reach, in a row where it lies everywhere.

        By what those weigh that do not reach it: they are many, so that every n-th of them tells. None where those that do
        are too many to be sorted.
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
        """The largest entries of many small parts of the row: a sample of it that is dense where its large entries are."""
        if self._peaks is None:
            width = len(self.row) // STRIPES
            self._peaks = self.row[: width * STRIPES].reshape(STRIPES, width).max(axis=0)
        return self._peaks

    @property
    def sample(self) -> Row:
        """About the same, for guesses."""
        return self.peaks if self._kin is None else self._kin.sample

    @property
    def alive(self) -> int:
        """How many entries are there."""
        if self._alive is None:
            whole = self.entropy is not None  # which is a number of rows that hold numbers only
            self._alive = len(self.row) if whole else int(np.count_nonzero(self.row > -np.inf))
        return self._alive


class RankRequest(NamedTuple):
    """What is asked of rows that are ranked where they were computed."""

    width: int  # how many of the likeliest; fewer come where the last ones are equals, whose order is not known
    # for each row the one at which draws will ask for the weight of all of it; 1 where they will not
    temperatures: tuple[float, ...]
    whole: tuple[int, ...] = ()  # the rows of which every entry is wanted


class RankedRows(NamedTuple):
    """Rows that were ranked where they were computed; one that was not wanted whole crosses when more of it is asked for."""

    rows: list[Ranked]  # n of them
    shift: Row  # ``(n,)`` their normalisers
    finite: npt.NDArray[np.bool_]  # ``(n,)`` which held numbers only; what is said of the others means nothing

    def part(self, rows: slice) -> RankedRows:
        """Some of them."""
        return RankedRows(self.rows[rows], self.shift[rows], self.finite[rows])


def ranked_rows(
    rows: Row,
    mass: Numbers,
    entropy: Numbers | None,
    peaks: Row | None,
    temperatures: Numbers | None = None,
    heated: Numbers | None = None,
) -> list[Ranked]:
    """`Ranked` of ``(n, vocab)`` rows, with what is known of each: columns of n."""
    nothing = [None] * len(rows)
    entropies = nothing if entropy is None else entropy.tolist()
    hot = nothing if temperatures is None or heated is None else zip(temperatures.tolist(), heated.tolist(), strict=True)
    return list(map(Ranked, rows, mass.tolist(), entropies, nothing if peaks is None else peaks, hot))


def _among(ids: npt.NDArray[np.int64], others: npt.NDArray[np.int64], vocab: int) -> npt.NDArray[np.bool_]:
    """Which of a few ids are among some others; `numpy.isin` would sort them."""
    marks = np.empty(vocab, np.bool_)
    marks[ids] = False
    marks[others] = True
    return marks[ids]


def likeliest(row: Row, k: int, peaks: Row | None = None) -> npt.NDArray[np.int64]:
    """The `k` likeliest ids of one row ``(vocab,)``, falling, ties by id; what has -inf comes only where `k` is all.

    The row is laid out as a rectangle. The k-th largest of its columns' largest entries is a value that at least `k` entries
    reach, and few more, all of them in columns whose largest one does.

    Args:
        row: The values.
        k: How many.
        peaks: `Ranked.peaks`, where they are known.
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
        elif k * _FEW_COLUMNS > width:  # a pass over the row costs less than picking so many columns out of it
            ids = (row >= border).nonzero()[0]
        else:
            columns = (_LINES * width + (peaks >= border).nonzero()[0]).ravel()
            some = np.concatenate([columns, np.arange(width * STRIPES, vocab)])  # ascending
            ids = some[row[some] >= border]
    order = (-row[ids]).argsort(kind="stable")
    found: npt.NDArray[np.int64] = ids[order[:k]]
    return found


def places_of(mask: npt.NDArray[np.bool_], count: int) -> npt.NDArray[np.int64]:
    """Which entries ``(n,)`` are set, about `count` of them.

    In a thin mask numpy jumps from one to the next and mispredicts each jump; a dense one is looked at evenly. What lies
    between is made dense by others behind it.
    """
    n = len(mask)
    if not _THIN < count / n <= _DENSE:
        return mask.nonzero()[0]
    more = _all_set(int(_MADE_DENSE * n) + 1)
    return np.concatenate([mask, more]).nonzero()[0][: -len(more)]


@cache
def _all_set(n: int) -> npt.NDArray[np.bool_]:
    return np.ones(n, np.bool_)
