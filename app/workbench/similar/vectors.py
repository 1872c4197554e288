"""Vectors of texts, remembered until the app ends: those that nobody asked for longest give way."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from runtime import Pooling

BUDGET: Final = 128 << 20  # bytes: those of 50,000 turns of a small model, of 8,000 of a large one


class Key(NamedTuple):
    """What makes a vector what it is."""

    numbers: str  # the model under its adapters, as its numbers are filed
    pooling: Pooling
    text: bytes  # digest

    @classmethod
    def of(cls, numbers: str, pooling: Pooling, text: str) -> Key:
        """Of a text, however long."""
        return cls(numbers, pooling, hashlib.sha256(text.encode(errors="surrogatepass")).digest())


@dataclass(frozen=True, slots=True)
class Vector:
    """What a model made of a text.

    Attributes:
        values: ``(hidden,) float32``, of length 1.
        tokens: That the text has, where it was too long and only its beginning was read; else 0.
    """

    values: npt.NDArray[np.float32]
    tokens: int = 0


class Vectors:
    """As many as fit into a budget. The window's loop only."""

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._held: OrderedDict[Key, Vector] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: Key) -> Vector | None:
        """The vector, if it is remembered."""
        found = self._held.get(key)
        if found is not None:
            self._held.move_to_end(key)
        return found

    def put(self, key: Key, vector: Vector) -> None:
        """Remembers it; the same again changes nothing."""
        if key in self._held:
            return
        self._held[key] = vector
        self._bytes += vector.values.nbytes
        while self._bytes > self._budget:
            self._bytes -= self._held.popitem(last=False)[1].values.nbytes
