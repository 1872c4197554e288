"""Tokens that are filled in after the graph that begins with them was built."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from runtime.backends.packs.tree import Int64


class Blank:
    """``(size,) int32`` token ids in memory that Python may write, until the graph is evaluated.

    MLX reads an array that is there when it evaluates what depends on it, not when that is written down. (An array and a numpy
    view of it share their memory: MLX's documentation, "Conversion to NumPy and other frameworks".)
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.array = mx.array(np.zeros(size, np.int32))  # there at once: `mx.zeros` would wait behind what computes
        self._view = np.array(self.array, copy=False)

    def fill(self, tokens: Int64) -> None:
        """The ids, before the evaluation is begun."""
        self._view[:] = tokens
