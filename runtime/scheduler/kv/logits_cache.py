"""A small LRU of full next-token distributions: a path whose KV is held needs no forward for its last row."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np

from runtime.records import Float32
from runtime.scheduler.prefill.distributions import Distribution


@dataclass(slots=True)
class Block:
    """Rows that lie in one array, as a forward made them: they are kept without a copy, and go together."""

    nbytes: int
    keys: set[Hashable] = field(default_factory=set)


class LogitsCache:
    """Whole distributions by path, least recently used out first, with what else lies in the same array of logits.

    Args:
        budget: Bytes; 0 keeps nothing.
        room: Asked for the bytes of each array before it is kept; False leaves it out.
    """

    def __init__(self, budget: int, room: Callable[[int], bool] = lambda _: True) -> None:
        self._budget = budget
        self._room = room
        self._most: int | None = None  # rows
        self._rows: OrderedDict[Hashable, Distribution] = OrderedDict()
        self._blocks: dict[int, Block] = {}  # by the array's identity, which a kept row keeps alive
        self.pinned: dict[Hashable, Distribution] = {}  # that somebody else keeps, and counts
        self.bytes = 0
        self.hits = 0

    def get(self, key: Hashable) -> Distribution | None:
        """What follows the path, which then counts as just used."""
        row = self._rows.get(key)
        if row is not None:
            self._rows.move_to_end(key)
        else:
            row = self.pinned.get(key)
        self.hits += row is not None
        return row

    def peek(self, key: Hashable) -> Distribution | None:
        """The same; nothing is refreshed or counted."""
        row = self._rows.get(key)
        return self.pinned.get(key) if row is None else row

    def put(self, key: Hashable, row: Distribution) -> None:
        """Keeps a distribution; a copy of it where the array it lies in is too large to keep."""
        if row.nbytes > self._budget:
            return
        if key in self._rows:
            self.drop(key)
        whole = _whole(row.raw)
        if self._most is not None or whole.nbytes > self._budget:
            row = row.alone()
            whole = row.raw
        block = self._blocks.get(id(whole))
        if block is None:
            if self.bytes + whole.nbytes > self._budget:
                self._shrink(self._budget - whole.nbytes)
            if not self._room(whole.nbytes):
                return
            block = self._blocks[id(whole)] = Block(whole.nbytes)
            self.bytes += whole.nbytes
        block.keys.add(key)
        self._rows[key] = row
        if self._most is not None:
            self._shrink(self._budget)

    def limit(self, rows: int) -> None:
        """At most so many rows from now on, whatever their bytes; 0 keeps none."""
        self._most = rows
        self._shrink(self._budget)

    def drop(self, key: Hashable) -> None:
        """Forgets one row, if it is there."""
        row = self._rows.pop(key, None)
        if row is not None:
            place = id(_whole(row.raw))
            self._blocks[place].keys.discard(key)
            if not self._blocks[place].keys:
                self.bytes -= self._blocks.pop(place).nbytes

    def set_budget(self, budget: int) -> None:
        """Another budget in bytes; the least recently used rows beyond it go."""
        self._budget = budget
        self._shrink(budget)

    def clear(self) -> None:
        """Forgets every row."""
        self._rows.clear()
        self._blocks.clear()
        self.bytes = 0

    def _shrink(self, size: int) -> None:
        while self._rows and (self.bytes > size or (self._most is not None and len(self._rows) > self._most)):
            oldest = next(iter(self._rows.values()))
            for key in tuple(self._blocks[id(_whole(oldest.raw))].keys):
                self.drop(key)


def _whole(row: Float32) -> Float32:
    """The array whose memory a row keeps alive."""
    while isinstance(row.base, np.ndarray):
        row = row.base
    return row
