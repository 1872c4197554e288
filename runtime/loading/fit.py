"""Whether a model fits into this machine, worked out from its configuration before anything is fetched or loaded.

The parts were measured with SmolLM2-135M in an engine of its own (peak resident memory on Linux): libraries and tokenizer,
weights as the engine keeps them, keys and values twice (in the rows at work and in the cache that they are published to),
and what one chunk of a prompt takes: its logits, its attention, and a buffer that grows.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from runtime.loading.check import quantised_with
from runtime.loading.describing import context_of

CONTEXT = 8192  # tokens that are reckoned with where nobody says how many
CHUNK = 512  # tokens of a prompt in one forward at most, as LoadOptions.prefill_chunk_tokens has it
_LIBRARIES = {"hf": 520_000_000, "mlx": 430_000_000}  # bytes: torch and transformers, or mlx and mlx-lm, with a tokenizer
_METAL_SHARE = 0.7  # of a Mac's memory that Metal recommends to hold at most, about; the machine itself says it exactly
_WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_NAMES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
_CACHED_KINDS = ("full_attention", "sliding_attention", "chunked_attention")  # layers that keep keys and values


@dataclass(frozen=True, slots=True)
class Fit:
    """What a model would take, in bytes, and what there is.

    Attributes:
        backend: That it is reckoned for.
        context: Tokens that it is reckoned for.
        libraries: Of the engine itself.
        weights: As the engine keeps them.
        kv_per_token: Keys and values of one token, once.
        kv: Of the whole context.
        working: Of one chunk of a prompt.
        memory: What the machine has for it.
        free: Of that, what nobody uses at this moment.
        longest: The largest context that `memory` has room for, up to the model's own; 0 where the weights alone do not fit.
    """

    backend: str
    context: int
    libraries: int
    weights: int
    kv_per_token: int
    kv: int
    working: int
    memory: int
    free: int
    longest: int

    @property
    def total(self) -> int:
        """Everything together."""
        return self.libraries + self.weights + self.kv + self.working

    @property
    def fits(self) -> bool:
        """Into the machine's memory, with all else at rest."""
        return self.total <= self.memory


def estimate_fit(
    config: Mapping[str, Any],
    weights_bytes: int,
    *,
    dtype: str = "",
    backend: str = "hf",
    context: int | None = None,
    chunk: int = CHUNK,
) -> Fit:
    """What a model will take on this machine, within 15 % of what was measured.

    Args:
        config: Its ``config.json``.
        weights_bytes: Of its weights on disk.
        dtype: Of most of them, as safetensors spells it; what the config says where it is empty.
        backend: "hf" or "mlx".
        context: Tokens to reckon with; the model's own, up to `CONTEXT`, by default.
        chunk: ``prefill_chunk_tokens``.
    """
    wide = not _on_gpu(backend)  # on a processor all is float32
    stored = _WIDTHS.get(dtype) or _stored_width(config)
    width = 4 if wide else stored
    weights = _quantised(config, weights_bytes, wide=wide) if quantised_with(config)[0] else weights_bytes * width // stored
    most = context_of(config)
    tokens = context or min(most or CONTEXT, CONTEXT)
    per_token = kv_numbers(config) * width
    memory = psutil.virtual_memory()
    limit = int(memory.total * _METAL_SHARE) if _apple() else int(memory.total)
    fixed = _LIBRARIES.get(backend, _LIBRARIES["hf"]) + weights
    by_token = 2 * per_token + _attention_bytes(config, chunk)
    left = limit - fixed - _logits_bytes(config, chunk)
    return Fit(
        backend=backend,
        context=tokens,
        libraries=_LIBRARIES.get(backend, _LIBRARIES["hf"]),
        weights=weights,
        kv_per_token=per_token,
        kv=2 * per_token * tokens,
        working=_logits_bytes(config, chunk) + _attention_bytes(config, chunk) * tokens,
        memory=limit,
        free=int(memory.available),
        longest=max(min(left // max(by_token, 1), most or left), 0),
    )


def kv_numbers(config: Mapping[str, Any]) -> int:
    """Keys and values of one token, in all layers that keep such."""
    text = _text(config)
    layers = _whole(text, "num_hidden_layers", "n_layer", "num_layers")
    kinds = text.get("layer_types")
    if isinstance(kinds, list) and kinds:
        layers = sum(kind in _CACHED_KINDS for kind in kinds)
    elif text.get("model_type") in ("mamba", "mamba2", "rwkv", "falcon_mamba"):
        layers = 0
    heads = _whole(text, "num_attention_heads", "n_head")
    hidden = _whole(text, "hidden_size", "n_embd", "d_model")
    if _whole(text, "kv_lora_rank"):  # a compressed cache, which transformers keeps unfolded
        key = _whole(text, "qk_nope_head_dim") + _whole(text, "qk_rope_head_dim")
        return layers * heads * (key + _whole(text, "v_head_dim"))
    width = _whole(text, "head_dim") or (hidden // heads if heads else 0)
    return layers * (_whole(text, "num_key_value_heads") or heads) * width * 2


def _logits_bytes(config: Mapping[str, Any], chunk: int) -> int:
    """Of one chunk: as they come, and once more while they are made log-probabilities."""
    return 2 * chunk * _whole(_text(config), "vocab_size") * 4


def _attention_bytes(config: Mapping[str, Any], chunk: int) -> int:
    """Of one chunk against one token of context: every head's score of one layer, before and after its softmax."""
    text = _text(config)
    attends = kv_numbers(config) > 0
    return 2 * chunk * _whole(text, "num_attention_heads", "n_head") * 4 if attends else 0


def _quantised(config: Mapping[str, Any], weights_bytes: int, *, wide: bool) -> int:
    """Packed weights stay as they are; on a processor their scales become float32, where they are not stored so."""
    found = config.get("quantization")
    bits, group = (found.get("bits"), found.get("group_size")) if isinstance(found, Mapping) else (None, None)
    stored = _stored_width(config)
    if not wide or stored >= 4 or not isinstance(bits, int) or not isinstance(group, int) or bits < 1 or group < 1:
        return weights_bytes
    pair = 2 * 8 / group  # bits of a scale and a bias of one byte each, for each number
    return int(weights_bytes * (bits + 4 * pair) / (bits + stored * pair))


def _stored_width(config: Mapping[str, Any]) -> int:
    text = _text(config)
    named = text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
    return _NAMES.get(str(named), 2)


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _whole(config: Mapping[str, Any], *names: str) -> int:
    found = (config.get(name) for name in names)
    return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), 0)


def _apple() -> bool:
    return sys.platform == "darwin" and platform.machine() == "arm64"


def _on_gpu(backend: str) -> bool:
    """Whether the engine would compute on a GPU, where weights stay as they are stored."""
    return _apple() or (backend == "hf" and Path("/dev/nvidia0").exists())
