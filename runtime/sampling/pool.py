"""The tokens that can still be drawn: a row of scores and a range of its sorted order.

Every cut (top-k, top-p, min-p, typical, XTC) leaves a range of that order, so it stores two places instead of copying the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from runtime.numerics.ranking import SHALLOW, Look, Ranked
from runtime.numerics.scoring import scratch
from runtime.numerics.select import RankedToken, masked
from runtime.numerics.sorted_row import SortedRow
from runtime.records import Float32


@dataclass(slots=True)  # creating a frozen one takes three times as long
class View:
    """The state of a pool after a stage; later stages do not change it."""

    order: SortedRow
    first: RankedToken | None
    last: RankedToken | None

    @property
    def mass(self) -> float:
        """The total weight of the range, the normaliser; the likeliest token of the row weighs 1."""
        return _upto(self.order, self.first, self.last) - (self.first.before if self.first else 0.0)

    @property
    def count(self) -> int:
        """How many tokens are left."""
        alive = self.last.rank + 1 if self.last else self.order.alive
        return alive - (self.first.rank if self.first else 0)

    def holds(self, ids: npt.NDArray[np.int64], scores: Float32 | None = None) -> npt.NDArray[np.bool_]:
        """``(len(ids),)``: which of `ids` are left; `scores` are their scores in the order's row, if known."""
        row = self.order.row
        scores = row[ids] if scores is None else scores
        left = np.ones(len(ids), np.bool_) if self.order.alive == len(row) else scores > -np.inf
        if self.first is not None:
            own = row[self.first.token]
            left &= (scores < own) | ((scores == own) & (ids >= self.first.token))
        if self.last is not None:
            own = row[self.last.token]
            left &= (scores > own) | ((scores == own) & (ids <= self.last.token))
        return left

    def logprobs(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Log-probabilities of `ids` among the tokens that are left; -inf for others."""
        order = self.order
        scores = order.row[ids].astype(np.float64) - order.top
        with np.errstate(over="ignore"):
            scores /= order.temperature
        return np.where(self.holds(ids), scores - np.log(self.mass), -np.inf)


def _upto(order: SortedRow, first: RankedToken | None, last: RankedToken | None) -> float:
    """The mass up to the end of a range; exact where the mass before the range will be subtracted."""
    if last:
        return last.before + last.mass
    return order.exact_total if first else order.total()


def _written(row: Float32, ids: npt.NDArray[np.int64], scores: Float32) -> Float32:
    """A copy of the row with other scores for some ids, in scratch memory that the next pool reuses."""
    own = scratch("pool", len(row))
    np.copyto(own, row)
    own[ids] = scores
    return own


class CandidatePool:
    """The scores that the stages change and cut, one after the other.

    Args:
        logprobs: ``(vocab,)`` raw log-probabilities, never written; a `Ranked` where their order is needed elsewhere too.
        shift: Raw logits less log-probabilities.
        traced: Whether rows are kept for views: changes are written to copies.
        look: How much of the row is sorted at first.
    """

    __slots__ = (
        "_changed", "_edited", "_last", "_look", "_mass", "_now", "_order", "_own", "_ranked", "_share", "_traced", "_written",
        "first", "shift", "temperature",
    )  # fmt: skip

    def __init__(self, logprobs: Float32 | Ranked, shift: float = 0.0, *, traced: bool = False, look: Look = SHALLOW) -> None:
        self._ranked = logprobs if isinstance(logprobs, Ranked) else Ranked(logprobs)
        self._written: Float32 | None = None  # the scores, where they differ from the ranked row
        self._changed: tuple[npt.NDArray[np.int64], Float32] | None = None  # ids and scores that are not in `_written` yet
        self.shift = shift
        self.temperature = 1.0
        self.first: RankedToken | None = None
        self._last: RankedToken | None = None
        self._share: float | None = None  # share of the mass that a pending cut keeps
        self._own = False  # whether the row is no longer the ranked one
        self._traced = traced
        self._look = look
        self._mass = self._ranked.mass  # mass of the current row, if known
        self._edited: list[npt.NDArray[np.int64]] | None = []  # ids with other scores than the ranked row; None: most
        self._now: Ranked | None = None
        self._order: SortedRow | None = None

    @property
    def _row(self) -> Float32:
        """The scores ``(vocab,)`` without `_changed`."""
        return self._ranked.row if self._written is None else self._written

    @property
    def row(self) -> Float32:
        """The current scores ``(vocab,)``."""
        if self._changed is not None:
            self._written, self._changed = _written(self._row, *self._changed), None
        return self._row

    @property
    def last(self) -> RankedToken | None:
        """The last entry of the range; None: the last of the order."""
        if self._share is not None:
            self._apply_share()
        return self._last

    @last.setter
    def last(self, place: RankedToken | None) -> None:
        self._share, self._last = None, place

    @property
    def order(self) -> SortedRow:
        """The row, sorted by descending score."""
        if self._order is None:
            self._order = SortedRow(self._current, self.temperature, self._look)
        return self._order

    @property
    def view(self) -> View:
        return View(self.order, self.first, self.last)

    @property
    def below(self) -> float:
        """The mass before the range."""
        return self.first.before if self.first else 0.0

    @property
    def upto(self) -> float:
        """The mass up to the end of the range."""
        return _upto(self.order, self.first, self.last)

    @property
    def mass(self) -> float:
        return self.upto - self.below

    @property
    def alive(self) -> bool:
        """Whether any token is left."""
        values = self._current.values
        return bool(len(values)) and bool(values[0] > -np.inf)

    @property
    def _current(self) -> Ranked:
        """The order of the current row as far as it is known, for any temperature."""
        if self._now is None:
            if not self._own:
                self._now = self._ranked
            elif not self._edited:
                self._now = Ranked(self.row, self._mass)
            else:
                self._ranked.reach(self._look.head)
                if self._changed is not None:
                    self._now = self._ranked.edited(partial(_written, self._row, *self._changed), *self._changed, self._mass)
                else:
                    ids = self._edited[0] if len(self._edited) == 1 else np.unique(np.concatenate(self._edited))
                    self._now = self._ranked.edited(self.row, ids, self.row[ids], self._mass)
            if not len(self._now.ids):
                self._now.reach(self._look.head, self._look)
        return self._now

    # ---- used by stages --------------------------------------------------------------------------------------------

    def add(self, ids: npt.NDArray[np.int64], amounts: npt.NDArray[np.floating]) -> None:
        """Adds to the scores of `ids`, which are distinct."""
        self._settle()
        self._change(ids, self._row[ids] + amounts)

    def replace(self, ids: npt.NDArray[np.int64], scores: npt.NDArray[np.floating]) -> None:
        """Sets the scores of `ids`, on the scale of `raw_scores`."""
        self._settle()
        self._change(ids, scores - self.shift)

    def _change(self, ids: npt.NDArray[np.int64], scores: Float32) -> None:
        if self._mass is not None:
            before = float(np.exp(self._row[ids]).sum(dtype=np.float64))
            with np.errstate(over="ignore"):
                after = float(np.exp(scores).sum(dtype=np.float64))
            rest = self._mass - before
            sound = rest > self._mass / 2 and np.isfinite(after)  # a smaller rest has lost its digits
            self._mass = rest + after if sound else None
        if self._own:
            self._row[ids] = scores
        else:  # the row is copied only if more than the head of the order is needed
            self._changed, self._own = (ids, scores), True
        if self._edited is not None:
            self._edited.append(ids)

    def keep_share(self, share: float) -> None:
        """Keeps the likeliest tokens up to and including the one that reaches this share of the mass.

        The place is searched only when it is needed: a later cut may keep less (see `keep_to`).
        """
        if self._share is not None:
            self._apply_share()
        self._share = share
        if self._traced:  # the view of this stage needs it
            self._apply_share()

    def _apply_share(self) -> None:
        share, self._share = self._share, None
        assert share is not None  # checked by the callers
        mass = self.order.total(share) if self._last is None and self.first is None else self.mass
        last = self.order.at_mass(self.below + share * mass, left=True)
        if self._last is None or last.rank < self._last.rank:
            self._last = last

    def keep_to(self, last: RankedToken) -> None:
        """Keeps the entries up to and including `last`."""
        alone = self._share is not None and self._last is None and self.first is None
        if alone and last.before + last.mass < (self._share or 0.0) * float(self.order.edges[-1]):
            self._share = None  # it would keep more: the known edges are lower bounds of the mass
        own = self.last
        if own is None or last.rank < own.rank:
            self._last = last

    def raw_scores(self, ids: npt.NDArray[np.int64]) -> Float32:
        """The scores of `ids` on the scale of raw logits; -inf where they were cut."""
        self._restrict()
        scores = self.row[ids]
        if self.temperature != 1.0:
            scores /= np.float32(self.temperature)
        scores += np.float32(self.shift)
        return scores

    def allow(self, mask: npt.NDArray[np.bool_]) -> None:
        """Removes the tokens that the mask ``(vocab,)`` does not allow."""
        self._settle(copy=False)
        self._written = masked(self._row, mask)
        self._own, self._mass, self._edited = True, None, None

    def heat(self, temperature: float) -> None:
        if temperature == 1.0:
            return
        self._restrict()
        self.temperature *= temperature
        self.shift /= temperature
        self._order = None

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _settle(self, *, copy: bool = True) -> None:
        """Applies pending changes and the temperature to the row, before scores change."""
        self._restrict()
        if self.temperature != 1.0:
            self._written = self.row / np.float32(max(self.temperature, 1e-30))
            self.temperature, self._own, self._mass, self._edited = 1.0, True, None, None
        elif copy and self._traced:
            self._written, self._own = self.row.copy(), True
        elif self._changed is not None:
            self._written = self.row
        self._order = self._now = None

    def _restrict(self) -> None:
        """Sets the scores of cut tokens to -inf, so that the range is the whole row again."""
        if self.first is None and self.last is None:
            return
        left = self.view.holds(np.arange(len(self.row)))
        self._written = masked(self.row, left)
        self.first = self.last = None
        self._own, self._order, self._now, self._mass, self._edited = True, None, None, None, None
