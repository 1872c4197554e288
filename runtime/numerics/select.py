"""Finding a place in the falling order of a whole vocabulary without sorting it.

A border is narrowed by the mass above it, one pass of comparing and one dot product each; only what lies between the last
two borders is sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from runtime.records import Float32

Keys = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Key = Any  # a number of the keys' dtype

_BLOCK = 1024  # entries per partial sum: float32 sums of more lose digits
_FEW = 512  # entries that are sorted
_NEAR = 0.03  # how far aside of the expected place the later ones lie, as a share of what is left
_ROUNDS = 10  # after which what is left is sorted, however much: many equal keys
_ONES = np.ones(_BLOCK, np.float32)
_NEGATIVE_INFINITY = np.array(-np.inf, np.float32).view(np.int32)


class Place(NamedTuple):
    """A token's place in the falling order."""

    rank: int  # from 0
    token: int
    before: float  # mass of those before it
    mass: float  # its own


def masked(row: Float32, allowed: npt.NDArray[np.bool_]) -> Float32:
    """A copy of a row ``(vocab,)`` with -inf where it is not allowed.

    The smaller of the row and of +inf or -inf, made of the mask's bits: `numpy.where` mispredicts a branch at each entry of a
    mask that is neither thin nor dense (49,152 entries: 36 to 238 us, and 22 us so).
    """
    bits = np.left_shift(allowed, 31, dtype=np.int32)
    bits ^= _NEGATIVE_INFINITY  # whose sign the mask's bit takes away
    limits = bits.view(np.float32)
    least: Float32 = np.minimum(row, limits, out=limits)
    return least


def mass_where(weights: Float32, chosen: npt.NDArray[np.bool_] | None = None) -> float:
    """The sum of ``(vocab,)`` weights, or of the chosen ones, in blocks that are added up in float64."""
    whole = len(weights) // _BLOCK * _BLOCK
    counted: npt.NDArray[np.float32]
    if chosen is None:
        counted, rest = _ONES, _ONES[: len(weights) - whole]
    else:
        floats = chosen.view(np.uint8).astype(np.float32)
        counted, rest = floats[:whole].reshape(-1, _BLOCK), floats[whole:]
    blocks = np.vecdot(weights[:whole].reshape(-1, _BLOCK), counted)
    return float(np.add.reduce(blocks, dtype=np.float64)) + float(np.vecdot(weights[whole:], rest))


def spread_mass(weights: Float32, values: Float32) -> float:
    """The sum of ``(vocab,)`` weights times values, in such blocks."""
    whole = len(weights) // _BLOCK * _BLOCK
    blocks = np.vecdot(weights[:whole].reshape(-1, _BLOCK), values[:whole].reshape(-1, _BLOCK))
    return float(blocks.sum(dtype=np.float64)) + float(np.dot(weights[whole:], values[whole:]))


def place_of_mass(
    keys: Keys,
    weights: Float32,
    target: float,
    *,
    left: bool = False,
    known: float = 0.0,
    total: float | None = None,
    guesses: Sequence[Key] = (),
) -> Place:
    """The first entry, by falling keys and ties by id, at which the mass so far exceeds `target` (`left`: reaches it).

    Args:
        keys: ``(vocab,)`` what orders the entries; -inf for those that do not count.
        weights: ``(vocab,)`` their mass, none below 0; 0 where the key is -inf, and for the first ones if they are `known`.
        target: Less than the whole mass; at or above it the last entry with a mass is found.
        left: Which of the two.
        known: The mass of first entries that were summed better already; the place is none of theirs.
        total: The whole mass, where it is known.
        guesses: Keys between which the place probably lies.
    """
    bracket = _Bracket(keys, weights, target, known, total, left=left)
    for border in guesses:
        bracket.narrow(border)
    side = -1.0
    for _ in range(_ROUNDS):
        before = bracket.count
        if before <= _FEW:
            break
        bracket.shrink()
        if not bracket.narrow(bracket.near(side * _NEAR)) and not bracket.narrow(bracket.middle()):
            break  # neighbouring numbers: all that is left has one key
        side = -side
        if bracket.count > before // 2:
            bracket.narrow(bracket.middle())
    return bracket.place()


class _Bracket:
    """Two keys between which the place lies: ``low < key <= high``."""

    def __init__(self, keys: Keys, weights: Float32, target: float, known: float, total: float | None, *, left: bool) -> None:
        self._keys, self._weights, self._target, self._known, self._left = keys, weights, target, known, left
        total = known + mass_where(weights) if total is None else total
        self.high, self.above, self.rank = keys.max(), known, 0  # mass and number of the entries above it
        self.low, self.upto, self.last = keys.dtype.type(-np.inf), total, len(keys)
        self._ids: npt.NDArray[np.int64] | None = None  # of the entries that are still looked at; None is all
        self._passed = 0  # entries above those

    @property
    def count(self) -> int:
        """Entries between the two."""
        return self.last - self.rank

    def narrow(self, border: Key) -> bool:
        """Makes a border of its own of a key that lies between; False where it does not."""
        if not self.low < border < self.high:
            return False
        mask = self._keys > border
        mass, n = self._known + mass_where(self._weights, mask), self._passed + int(np.count_nonzero(mask))
        if mass < self._target or (mass == self._target and not self._left):
            self.high, self.above, self.rank = border, mass, n
        else:
            self.low, self.upto, self.last = border, mass, n
        return True

    def shrink(self) -> None:
        """Looks at nothing any more but what lies between the borders, where that is much less."""
        if self.count * 4 > len(self._keys):
            return
        among = np.flatnonzero((self._keys > self.low) & (self._keys <= self.high))
        if not self._weights[among].any():  # the whole mass was asked for, see `place`
            return
        self._ids = among if self._ids is None else self._ids[among]
        self._keys, self._weights = self._keys[among], self._weights[among]
        self._known, self._passed = self.above, self.rank

    def near(self, aside: float) -> Key:
        """Where the place would be if the mass lay evenly between the borders, and a little aside."""
        share = (self._target - self.above) / max(self.upto - self.above, 1e-300) + aside
        if not np.isfinite(self.low) or not 0.0 < share < 1.0:
            return self.middle()
        return self._keys.dtype.type(self.high - share * (self.high - self.low))

    def middle(self) -> Key:
        """Half way between the borders."""
        low = self.low
        if not np.isfinite(low):
            finite = self._keys[self._keys > low]
            low = np.nextafter(finite.min(), self._keys.dtype.type(-np.inf))
        return self._keys.dtype.type(low + (self.high - low) / 2)

    def place(self) -> Place:
        """What the sorted rest says."""
        keys, weights = self._keys, self._weights
        ids = np.flatnonzero((keys > self.low) & (keys <= self.high))
        if (
            not weights[ids].any() and self._ids is None
        ):  # the target is the whole mass, but for rounding: the last entry of all
            last = keys[weights > 0].min()
            mask = keys > last
            self.high, self.above, self.rank = last, self._known + mass_where(weights, mask), int(np.count_nonzero(mask))
            ids = np.flatnonzero(keys == last)
        if len(ids) <= _FEW or keys[ids].min() < keys[ids].max():
            ids = ids[np.argsort(-keys[ids], kind="stable")]
        own = weights[ids].astype(np.float64)
        edges = self.above + np.cumsum(own)
        i = int(np.searchsorted(edges, self._target, side="left" if self._left else "right"))
        if i == len(ids) or not own[i]:
            i = int(np.flatnonzero(own)[-1 if i == len(ids) else 0])
        token = ids[i] if self._ids is None else self._ids[ids[i]]
        return Place(self.rank + i, int(token), float(edges[i]) - float(own[i]), float(own[i]))
