"""Bare forwards with transformers."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import Float32, Ids
from benchmarks.peers.bare import BareRows
from benchmarks.peers.in_place import InPlaceCache
from benchmarks.peers.transformers_model import TransformersModel


class BareTorch(BareRows):
    """transformers' model with per-row KV in place.

    Args:
        folder: The model.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._peer = TransformersModel(folder)
        self.clear()

    @property
    def tokens_computed(self) -> int:
        """Input ids that the model was called with."""
        return self._peer.tokens_computed

    def forward(self, rows: list[Ids]) -> Float32:
        return self._peer.logprobs_after(self._peer.tensor(rows), self._cache)

    def choose(self, rows: list[int]) -> None:
        self._cache.choose(rows)

    def clear(self) -> None:
        self._cache = InPlaceCache(self._peer.layers)

    def close(self) -> None:
        """Drops the model."""
        self._peer.close()
