"""What can still be drawn: a row of scores and a range of its falling order.

Every cut there is (top-k, top-p, min-p, typical, XTC) leaves a range of that order, so that a cut of a large vocabulary is
two places, not a copy of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.records import Float32
from runtime.sampling.falling import HEAD, Falling
from runtime.sampling.select import Place


@dataclass(frozen=True, slots=True)
class View:
    """A pool at one moment; stays as it is."""

    order: Falling
    first: Place | None
    last: Place | None

    @property
    def mass(self) -> float:
        """Of what is left, where the likeliest of all weighs 1: the normaliser."""
        below = self.first.before if self.first else 0.0
        return (self.last.before + self.last.mass if self.last else self.order.total) - below

    @property
    def count(self) -> int:
        """How many are left."""
        alive = self.last.rank + 1 if self.last else int(np.count_nonzero(self.order.row > -np.inf))
        return alive - (self.first.rank if self.first else 0)

    def holds(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of `ids` are left."""
        left: npt.NDArray[np.bool_] = self.order.row[ids] > -np.inf
        if self.first is not None:
            left &= ~self.order.before(ids, self.first.token)
        if self.last is not None:
            left &= self.order.before(ids, self.last.token) | (ids == self.last.token)
        return left

    def logprobs(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Their log-probabilities among what is left; -inf where they are not."""
        order = self.order
        scores = order.row[ids].astype(np.float64) - order.top
        with np.errstate(over="ignore"):
            scores /= order.temperature
        return np.where(self.holds(ids), scores - np.log(self.mass), -np.inf)


class Pool:
    """The scores that the stages work on, one after the other.

    Args:
        logprobs: ``(vocab,)`` raw log-probabilities; never written.
        shift: Added to them, they are the raw logits.
        traced: Keep every row that a `view` was taken of.
        head: How much of the order is sorted at first.
        plain: Nothing is cut, so that the sum of the row may be taken for the 1 that it is but for rounding.
    """

    __slots__ = ("_head", "_order", "_own", "_plain", "_traced", "first", "last", "row", "shift", "temperature")

    def __init__(
        self, logprobs: Float32, shift: float = 0.0, *, traced: bool = False, head: int = HEAD, plain: bool = False
    ) -> None:
        self.row = logprobs
        self.shift = shift
        self.temperature = 1.0
        self.first: Place | None = None
        self.last: Place | None = None
        self._own = False
        self._traced = traced
        self._head = head
        self._plain = plain
        self._order: Falling | None = None

    @property
    def order(self) -> Falling:
        """The falling order of the row."""
        if self._order is None:
            plain = self._plain and not self._own and self.temperature == 1.0
            self._order = Falling(self.row, self.temperature, self._head, plain=plain)
        return self._order

    @property
    def view(self) -> View:
        """The pool as it is now."""
        return View(self.order, self.first, self.last)

    @property
    def below(self) -> float:
        """The mass before the range."""
        return self.first.before if self.first else 0.0

    @property
    def upto(self) -> float:
        """The mass up to the end of the range."""
        return self.last.before + self.last.mass if self.last else self.order.total

    @property
    def mass(self) -> float:
        """The mass of the range."""
        return self.upto - self.below

    # ---- what stages do --------------------------------------------------------------------------------------------

    def add(self, ids: npt.NDArray[np.int64], amounts: npt.NDArray[np.floating]) -> None:
        """Adds to the scores of `ids`, each of which stands there once."""
        self._settle()
        self.row[ids] += amounts

    def replace(self, ids: npt.NDArray[np.int64], scores: npt.NDArray[np.floating]) -> None:
        """Other scores for `ids`; see `raw_scores`."""
        self._settle()
        self.row[ids] = scores - self.shift

    def raw_scores(self, ids: npt.NDArray[np.int64]) -> Float32:
        """What `ids` have on the scale of raw logits."""
        scores: Float32 = (self.row[ids] / np.float32(self.temperature)) + np.float32(self.shift)
        return scores

    def allow(self, mask: npt.NDArray[np.bool_]) -> None:
        """Takes away what the mask ``(vocab,)`` does not allow."""
        self._settle(copy=False)
        self.row = np.where(mask, self.row, np.float32(-np.inf))
        self._own = True

    def heat(self, temperature: float) -> None:
        """Divides the scores."""
        if temperature == 1.0:
            return
        self._restrict()
        self.temperature *= temperature
        self.shift /= temperature
        self._order = None

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _settle(self, *, copy: bool = True) -> None:
        """Before scores change: a row of our own in which all that was done is written down."""
        self._restrict()
        if self.temperature != 1.0:
            self.row = self.row / np.float32(max(self.temperature, 1e-30))
            self.temperature, self._own = 1.0, True
        elif copy and (not self._own or self._traced):
            self.row, self._own = self.row.copy(), True
        self._order = None

    def _restrict(self) -> None:
        """What was cut gets no score, so that the range is the whole row again."""
        if self.first is None and self.last is None:
            return
        left = self.view.holds(np.arange(len(self.row)))
        self.row = np.where(left, self.row, np.float32(-np.inf))
        self.first = self.last = None
        self._own, self._order = True, None
