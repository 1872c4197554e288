"""A small LRU of full next-token distributions: a path whose KV is held needs no forward for its last row."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from runtime.records import Float32


class VectorCache:
    """Whole ``(vocab,) float32`` rows by path, least recently used out first.

    Args:
        budget: Bytes; 0 keeps nothing.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._rows: OrderedDict[Hashable, Float32] = OrderedDict()
        self.bytes = 0
        self.hits = 0

    def get(self, key: Hashable) -> Float32 | None:
        """The row, which then counts as just used."""
        row = self._rows.get(key)
        if row is not None:
            self._rows.move_to_end(key)
            self.hits += 1
        return row

    def put(self, key: Hashable, row: Float32) -> None:
        """Keeps a row of its own memory; read-only from here on."""
        if row.nbytes > self._budget:
            return
        old = self._rows.pop(key, None)
        self.bytes += row.nbytes - (old.nbytes if old is not None else 0)
        row = row.copy() if row.base is not None else row
        row.flags.writeable = False
        self._rows[key] = row
        self._shrink()

    def set_budget(self, budget: int) -> None:
        """Another budget in bytes; the least recently used rows beyond it go."""
        self._budget = budget
        self._shrink()

    def _shrink(self) -> None:
        while self.bytes > self._budget:
            self.bytes -= self._rows.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        """Forgets every row."""
        self._rows.clear()
        self.bytes = 0
