"""Where mlx-lm's numbers differ from transformers': put right on the loaded model, or refused.

Each line was measured (mlx-lm 0.32.2 against transformers 5.23, float32).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from runtime.backends.mlx import gemma2
from runtime.errors import UnsupportedFeatureError
from runtime.loading.rope import for_mlx

PROVEN = frozenset(  # by our own tests
    {
        *("llama", "qwen2", "qwen3", "gpt2", "gemma2", "gemma3_text", "mistral", "phi3"),
        *("mamba", "lfm2", "falcon_h1"),
    }
)


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """A normalised config (`runtime.loading.config`) with what mlx-lm's model classes want besides.

    Raises:
        UnsupportedFeatureError: Layers in an order that mlx-lm's class cannot express.
    """
    full = for_mlx(config)
    if full.get("model_type") == "gpt2":
        full.setdefault("n_ctx", full["n_positions"])
    if full.get("model_type") == "gemma3_text":
        _check_pattern(full)
    return full


def hidden_window(config: Mapping[str, Any]) -> int | None:
    """A sliding window in all layers that mlx-lm ignores: its llama class, which serves mistral, and its phi3 know none."""
    return config.get("sliding_window") if config.get("model_type") in ("mistral", "phi3") else None


def class_lookup(config: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for mlx-lm's `load_model`: its gpt2 cannot read weights under transformers' names, so ours renames them."""
    if config.get("model_type") != "gpt2":
        return {}
    from mlx_lm.models import gpt2

    def sanitize(self: Any, weights: dict[str, mx.array]) -> Any:
        return gpt2.Model.sanitize(self, {name.removeprefix("transformer."): a for name, a in weights.items()})

    renaming = type("Model", (gpt2.Model,), {"sanitize": sanitize})
    return {"get_model_classes": lambda config: (renaming, gpt2.ModelArgs)}  # noqa: ARG005  # called by that name


def correct(model: Any, config: Mapping[str, Any]) -> None:
    """Changes a loaded model in place where its class rounds what transformers does not."""
    if config.get("model_type") == "gemma3_text":
        _exact_embedding_scale(model.model, int(config["hidden_size"]))
    if config.get("model_type") == "gemma2":
        gemma2.put_right(model, config)


class SelectRows:
    """Lets only the wanted positions through a model's head: logits of a long prefill are large and mostly unused.

    Args:
        model: An mlx-lm model; the module below its head gets a subclass of its own class.
    """

    def __init__(self, model: Any) -> None:
        self.rows: mx.array | None = None
        self._body = next((getattr(model, n) for n in ("model", "backbone", "transformer") if hasattr(model, n)), None)
        if isinstance(self._body, Module):
            _override_call(self._body, lambda out: out if self.rows is None else out[:, self.rows])
        else:
            self._body = None

    def hidden(self, tokens: mx.array, cache: list[Any] | None) -> mx.array:
        """The body's own output, after the final norm, ``(rows, length, hidden)``; all positions.

        Raises:
            UnsupportedFeatureError: The model is not made of a body and a head.
        """
        if self._body is None:
            raise UnsupportedFeatureError("mlx-lm gives no hidden states of this architecture; use backend='hf'")
        self.rows = None
        found: mx.array = self._body(tokens, cache=cache)
        return found

    def __bool__(self) -> bool:
        """Whether the model could be fitted with it."""
        return self._body is not None


def _check_pattern(config: Mapping[str, Any]) -> None:
    """mlx-lm's gemma3 knows only "every n-th layer is full"."""
    kinds, pattern = (
        config.get("layer_types") or [],
        config.get("sliding_window_pattern") or len(config.get("layer_types") or []) + 1,
    )
    expected = ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(len(kinds))]
    if list(kinds) != expected or pattern > len(kinds) > 0:
        raise UnsupportedFeatureError(f"mlx-lm's gemma3 needs every n-th layer full, not {kinds}; use backend='hf'")


def _exact_embedding_scale(body: Any, hidden_size: int) -> None:
    """mlx-lm rounds sqrt(hidden_size) to bfloat16 whatever the dtype (0.015 nat off at hidden size 80)."""
    rounded = mx.array(hidden_size**0.5, mx.bfloat16).astype(mx.float32).item()

    def rescale(embedded: mx.array) -> mx.array:
        exact = mx.array(hidden_size**0.5, embedded.dtype).astype(mx.float32).item()
        ratio = exact / rounded
        return embedded if ratio == 1.0 else embedded * mx.array(ratio, embedded.dtype)

    _override_call(body.embed_tokens, rescale)


def _override_call(module: Any, after: Any) -> None:
    """Gives one module object a subclass whose call passes its result through `after`."""
    base = type(module)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return after(base.__call__(self, *args, **kwargs))

    module.__class__ = type(base.__name__, (base,), {"__call__": call})
