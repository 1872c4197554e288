"""A small LRU of full next-token distributions: a path whose KV is held needs no forward for its last row."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from runtime.records import Float32


class VectorCache:
    """Whole ``(vocab,) float32`` rows by path, least recently used out first.

    Args:
        budget: Bytes; 0 keeps nothing.
        room: Asked for the bytes of each row before it is copied; False leaves it out.
    """

    def __init__(self, budget: int, room: Callable[[int], bool] = lambda _: True) -> None:
        self._budget = budget
        self._room = room
        self._most: int | None = None  # rows
        self._rows: OrderedDict[Hashable, Float32] = OrderedDict()
        self._shifts: dict[Hashable, float] = {}  # of the rows that are held
        self.bytes = 0
        self.hits = 0

    def get(self, key: Hashable) -> Float32 | None:
        """The row, which then counts as just used."""
        row = self._rows.get(key)
        if row is not None:
            self._rows.move_to_end(key)
            self.hits += 1
        return row

    def shift(self, key: Hashable) -> float:
        """The normaliser of a row that is held."""
        return self._shifts[key]

    def put(self, key: Hashable, row: Float32, shift: float) -> None:
        """Keeps a row of its own memory, read-only from here on, and what its raw logits have more."""
        if row.nbytes > self._budget:
            return
        self.drop(key)
        self._shrink(self._budget - row.nbytes)
        if not self._room(row.nbytes):
            return
        row = row.copy() if row.base is not None else row
        row.flags.writeable = False
        self._rows[key], self._shifts[key] = row, shift
        self.bytes += row.nbytes
        self._shrink(self._budget)

    def limit(self, rows: int) -> None:
        """At most so many rows from now on, whatever their bytes; 0 keeps none."""
        self._most = rows
        self._shrink(self._budget)

    def drop(self, key: Hashable) -> None:
        """Forgets one row, if it is there."""
        row = self._rows.pop(key, None)
        self._shifts.pop(key, None)
        self.bytes -= 0 if row is None else row.nbytes

    def set_budget(self, budget: int) -> None:
        """Another budget in bytes; the least recently used rows beyond it go."""
        self._budget = budget
        self._shrink(budget)

    def _shrink(self, size: int) -> None:
        while self.bytes > size or (self._most is not None and len(self._rows) > self._most):
            self.drop(next(iter(self._rows)))

    def clear(self) -> None:
        """Forgets every row."""
        self._rows.clear()
        self._shifts.clear()
        self.bytes = 0
