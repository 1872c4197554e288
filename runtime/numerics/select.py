"""The place of a mass in the sorted order of a whole vocabulary, without sorting it.

Two borders around the place are narrowed by the mass above a key between them: one comparison and one dot product per pass.
Only the entries between the last two borders are sorted.
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

_BLOCK = 1024  # entries per partial sum: longer float32 sums lose digits
_FEW = 512  # entries that are sorted
_NEAR = 0.03  # offset of a border from the expected place, as a share of the remaining mass
_ROUNDS = 10  # passes after which the remaining entries are sorted, however many: there are many ties
_ONES = np.ones(_BLOCK, np.float32)
_NEGATIVE_INFINITY = np.array(-np.inf, np.float32).view(np.int32)


class RankedToken(NamedTuple):
    """The place of a token in the sorted order."""

    rank: int  # from 0
    token: int
    before: float  # mass of the entries before it
    mass: float  # of the token itself


def masked(row: Float32, allowed: npt.NDArray[np.bool_]) -> Float32:
    """A copy of a row ``(vocab,)`` with -inf where it is not allowed.

    The minimum of the row and of +inf or -inf, made from the bits of the mask: `numpy.where` mispredicts a branch at each
    entry of a mask that is neither thin nor dense (49,152 entries: 36 to 238 us, instead of 22 us).
    """
    bits = np.left_shift(allowed, 31, dtype=np.int32)
    bits ^= _NEGATIVE_INFINITY  # a set bit of the mask clears the sign
    limits = bits.view(np.float32)
    least: Float32 = np.minimum(row, limits, out=limits)
    return least


def mass_where(weights: Float32, chosen: npt.NDArray[np.bool_] | None = None) -> float:
    """The sum of ``(vocab,)`` weights, or of the chosen ones, in blocks that are added in float64."""
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
    """The sum of ``(vocab,)`` weights times values, in the same blocks."""
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
) -> RankedToken:
    """The first entry, by descending keys and ties by id, where the cumulative mass exceeds `target` (`left`: reaches it).

    Args:
        keys: ``(vocab,)`` sort keys; -inf for excluded entries.
        weights: ``(vocab,)`` masses, none below 0; 0 where the key is -inf, and for the first entries if they are `known`.
        target: Less than the total mass; at or above it the last entry with a mass is found.
        left: Whether reaching the target is enough.
        known: The mass of first entries that were summed more precisely; the place is beyond them.
        total: The total mass, if known.
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
            break  # no number lies between the borders: all remaining entries have one key
        side = -side
        if bracket.count > before // 2:
            bracket.narrow(bracket.middle())
    return bracket.place()


class _Bracket:
    """Two borders around the place: ``low < key <= high``."""

    def __init__(self, keys: Keys, weights: Float32, target: float, known: float, total: float | None, *, left: bool) -> None:
        self._keys, self._weights, self._target, self._known, self._left = keys, weights, target, known, left
        total = known + mass_where(weights) if total is None else total
        self.high, self.above, self.rank = keys.max(), known, 0  # mass and number of the entries above it
        self.low, self.upto, self.last = keys.dtype.type(-np.inf), total, len(keys)
        self._ids: npt.NDArray[np.int64] | None = None  # ids of the remaining entries; None: all
        self._passed = 0  # number of entries above them

    @property
    def count(self) -> int:
        """Number of entries between the borders."""
        return self.last - self.rank

    def narrow(self, border: Key) -> bool:
        """Replaces a border by a key between them; False where the key does not lie between."""
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
        """Keeps only the entries between the borders, where these are far fewer."""
        if self.count * 4 > len(self._keys):
            return
        among = np.flatnonzero((self._keys > self.low) & (self._keys <= self.high))
        if not self._weights[among].any():  # the target is the total mass, see `place`
            return
        self._ids = among if self._ids is None else self._ids[among]
        self._keys, self._weights = self._keys[among], self._weights[among]
        self._known, self._passed = self.above, self.rank

    def near(self, aside: float) -> Key:
        """The expected key of the place for a mass spread evenly between the borders, shifted by `aside`."""
        share = (self._target - self.above) / max(self.upto - self.above, 1e-300) + aside
        if not np.isfinite(self.low) or not 0.0 < share < 1.0:
            return self.middle()
        return self._keys.dtype.type(self.high - share * (self.high - self.low))

    def middle(self) -> Key:
        """The key half way between the borders."""
        low = self.low
        if not np.isfinite(low):
            finite = self._keys[self._keys > low]
            low = np.nextafter(finite.min(), self._keys.dtype.type(-np.inf))
        return self._keys.dtype.type(low + (self.high - low) / 2)

    def place(self) -> RankedToken:
        """The place, from the remaining entries in sorted order."""
        keys, weights = self._keys, self._weights
        ids = np.flatnonzero((keys > self.low) & (keys <= self.high))
        if not weights[ids].any() and self._ids is None:  # the target is the total mass but for rounding: the last entry
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
        return RankedToken(self.rank + i, int(token), float(edges[i]) - float(own[i]), float(own[i]))
