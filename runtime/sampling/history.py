"""The tokens of a stream so far, prompt included, counted as it grows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runtime.records import Float32, Int32


class History:
    """Token ids, and how often each occurs in a window of the last ones. Appending takes constant time.

    Args:
        ids: The tokens so far.
        window: Length of the window in tokens; 0: all.
    """

    __slots__ = ("_counts", "_ids", "_n", "_places", "_tokens", "_unique", "window")

    def __init__(self, ids: Int32 | Sequence[int], window: int = 0) -> None:
        given = np.asarray(ids, np.int32)
        self.window = window
        self._n = len(given)
        self._ids: Int32 = np.concatenate([given, np.empty(max(self._n, 64), np.int32)])
        found, counts = np.unique(given[-window:] if window else given, return_counts=True)
        self._unique = len(found)
        self._tokens = np.concatenate([found.astype(np.int64), np.empty(64, np.int64)])
        self._counts: Float32 = np.concatenate([counts.astype(np.float32), np.zeros(64, np.float32)])
        self._places = {token: place for place, token in enumerate(found.tolist())}

    def __len__(self) -> int:
        return self._n

    @property
    def ids(self) -> Int32:
        """All ids; a view that is valid until the next `append`."""
        return self._ids[: self._n]

    @property
    def counted(self) -> tuple[npt.NDArray[np.int64], Float32]:
        """The distinct ids of the window, and how often each occurs; views that are valid until the next `append`."""
        return self._tokens[: self._unique], self._counts[: self._unique]

    def append(self, token: int) -> None:
        if self._n == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty(self._n, np.int32)])
        self._ids[self._n] = token
        self._n += 1
        self._count(token)
        if self.window and self._n > self.window:
            self._discount(int(self._ids[self._n - 1 - self.window]))

    def _count(self, token: int) -> None:
        place = self._places.setdefault(token, self._unique)
        if place == self._unique:
            if place == len(self._tokens):
                self._tokens = np.concatenate([self._tokens, np.empty(place, np.int64)])
                self._counts = np.concatenate([self._counts, np.zeros(place, np.float32)])
            self._tokens[place], self._counts[place] = token, 0
            self._unique += 1
        self._counts[place] += 1

    def _discount(self, token: int) -> None:
        place = self._places[token]
        self._counts[place] -= 1
        if self._counts[place] == 0:  # the last entry moves here
            self._unique -= 1
            last = int(self._tokens[self._unique])
            self._tokens[place], self._counts[place] = last, self._counts[self._unique]
            self._places[last] = place
            del self._places[token]
