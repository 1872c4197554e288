"""mlx-lm's Gemma 2 with its missing sliding window, and with masks for batch rows.

Measured (mlx-lm 0.32.2 against transformers 5.23, float32): equal up to the window, several nats off beyond it. mlx-lm takes
a mask for several rows as one for heads, or refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx_lm.models import gemma2
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache, RotatingKVCache

_WINDOW = 4096  # of every published Gemma 2; not among mlx-lm's arguments


def correct(model: Any, config: Mapping[str, Any]) -> None:
    """Corrects a loaded model in place.

    Args:
        model: An mlx-lm `gemma2.Model`.
        config: Its config.json; missing keys have the values of the published models.
    """
    layers = model.model.layers
    window = int(config.get("sliding_window") or _WINDOW)
    kinds = config.get("layer_types") or ["full_attention" if n % 2 else "sliding_attention" for n in range(len(layers))]
    windows = [window if kind == "sliding_attention" else None for kind in kinds]

    class Body(gemma2.GemmaModel):  # type: ignore[misc]  # mlx-lm has no types
        def __call__(self, inputs: mx.array, cache: list[Any] | None = None) -> mx.array:
            h = self.embed_tokens(inputs) * self.args.hidden_size**0.5  # (rows, length, hidden)
            caches = [None] * len(windows) if cache is None else cache
            masks: dict[int | None, Any] = {}
            for layer, kept, width in zip(self.layers, caches, windows, strict=True):
                if width not in masks:
                    masks[width] = create_attention_mask(h, kept, window_size=width, return_array=True)
                h = layer(h, masks[width], kept)
            normed: mx.array = self.norm(h)
            return normed

    class Model(gemma2.Model):  # type: ignore[misc]  # likewise
        def make_cache(self) -> list[Any]:
            return [KVCache() if width is None else RotatingKVCache(max_size=width) for width in windows]

    for layer in layers:
        layer.self_attn.__class__ = _Attention
    model.model.__class__ = Body
    model.__class__ = Model


class _Attention(gemma2.Attention):  # type: ignore[misc]  # likewise
    def __call__(self, x: mx.array, mask: mx.array | None = None, cache: Any = None) -> mx.array:
        """Adds the axis to a mask ``(rows, 1, length, seen)`` that scores ``(rows, kv_heads, repeats, length, seen)`` need."""
        if mask is not None and mask.ndim == 4 and self.repeats > 1:
            mask = mask[:, :, None]
        out: mx.array = super().__call__(x, mask, cache)
        return out
