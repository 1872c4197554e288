"""What cancelled jobs had worked out, for whoever asks for the same again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

MOST_BYTES = 64 << 20


class Interrupted:
    """Parts of answers by what was asked for: the oldest go first. Owner thread only.

    Args:
        most: Bytes; 0 keeps nothing.
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._parts: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def keep(self, key: Hashable, part: Any, nbytes: int) -> None:
        """Keeps a part in place of what stands under its key; one that is too large is left out."""
        self.take(key)
        if nbytes > self._most:
            return
        self._parts[key] = part, nbytes
        self._bytes += nbytes
        while self._bytes > self._most:
            self.take(next(iter(self._parts)))

    def take(self, key: Hashable) -> Any:
        """A part, which is not kept any longer; None where there is none."""
        part, nbytes = self._parts.pop(key, (None, 0))
        self._bytes -= nbytes
        return part

    def clear(self) -> None:
        """Drops everything."""
        self._parts.clear()
        self._bytes = 0
