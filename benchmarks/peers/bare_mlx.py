"""Bare forwards with mlx_lm."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from benchmarks.measure import Float32, Ids
from benchmarks.peers.bare import BareRows
from benchmarks.peers.numbers import log_softmax


class BareMlx(BareRows):
    """mlx_lm's model with its own growing KV cache, one row per particle.

    Args:
        folder: The model.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.tokens_computed = 0
        self._model, _ = load_model(folder)
        self.clear()

    def forward(self, rows: list[Ids]) -> Float32:
        tokens = mx.array(np.array(rows, np.int32))
        self.tokens_computed += tokens.size
        logits = np.array(self._model(tokens, cache=self._cache)[:, -1].astype(mx.float32))
        return log_softmax(logits)  # numpy's is several times faster than MLX's on a processor

    def choose(self, rows: list[int]) -> None:
        chosen = mx.array(rows)
        for layer in self._cache:
            layer.keys, layer.values = layer.keys[chosen], layer.values[chosen]

    def clear(self) -> None:
        self._cache = make_prompt_cache(self._model)

    def close(self) -> None:
        """Drops the model."""
        del self._model, self._cache
