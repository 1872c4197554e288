"""A cache for transformers' models that writes each row's new keys and values where they belong, and copies nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

SPARE = 64  # tokens of room beyond the first ones; doubled when it is used up


class InPlaceLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is not followed by mypy
    """Keys and values of one full-attention layer for rows of one length: ``(rows, kv_heads, capacity, head_dim)``."""

    is_compileable = False
    is_sliding = False
    is_croppable = False

    def __init__(self) -> None:
        super().__init__()
        self.length = 0  # tokens held per row

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = _room(key_states, SPARE), _room(value_states, SPARE)
        self.is_initialized = True

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,  # noqa: ARG002  # what other cache classes want to know
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes ``(rows, kv_heads, n, head_dim)`` behind what is held; answers with everything held."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self.length = self.length, self.length + key_states.shape[2]
        if self.length > self.keys.shape[2]:
            self.keys, self.values = _room(self.keys, self.length), _room(self.values, self.length)
        self.keys[:, :, start : self.length] = key_states
        self.values[:, :, start : self.length] = value_states
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def choose(self, rows: torch.Tensor) -> None:
        """Only these rows, in this order; one may be there several times."""
        self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


class InPlaceCache(Cache):  # type: ignore[misc]  # the same
    """One such layer for each layer of a model."""

    def __init__(self, layers: int) -> None:
        super().__init__(layers=[InPlaceLayer() for _ in range(layers)])

    def choose(self, rows: Sequence[int]) -> None:
        """Only these rows, in this order."""
        for layer in self.layers:
            layer.choose(torch.tensor(rows, device=layer.device))


def _room(held: torch.Tensor, more: int) -> torch.Tensor:
    """The same with room for `more` tokens besides."""
    rows, heads, length, width = held.shape
    grown = held.new_empty(rows, heads, length + more, width)
    grown[:, :, :length] = held
    return grown
