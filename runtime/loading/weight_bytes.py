"""What the weights of a model take in memory, by its configuration and their bytes on disk."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from runtime.loading.check import quantised_with
from runtime.loading.kv_bytes import number_of, text_config
from runtime.loading.perplexity import PLAIN

_STORED = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_NAMES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
_PACKED = {"bfloat16": 2.0, "int8": 1.0, "int4": 0.5 + 4 / 32}  # bytes of a weight; int4: two numbers of 2 for each 32
_BLOCK = 512  # FBGEMM fills the width of a float16 matrix up to a multiple of it
_TIED = ("gemma", "gpt2", "lfm2", "mamba")  # families whose head is their embeddings where the configuration does not say


def stored_numbers(config: Mapping[str, Any], weights_bytes: int, dtype: str) -> tuple[int, int]:
    """How many numbers plain weights are, and the bytes of each on disk.

    Args:
        config: ``config.json``.
        weights_bytes: On disk.
        dtype: As safetensors spells it; what the config says where it is empty.
    """
    text = text_config(config)
    named = text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
    stored = _STORED.get(dtype) or _NAMES.get(str(named), 2)
    return weights_bytes // stored, stored


def held_bytes(config: Mapping[str, Any], weights_bytes: int, numbers: int, *, stored: int, width: int, packed: str) -> int:
    """Weights as an engine keeps them.

    Args:
        config: ``config.json``.
        weights_bytes: On disk.
        numbers: How many they are.
        stored: Bytes of each on disk; of quantised ones, of their scales.
        width: Bytes of each in memory; likewise.
        packed: In which form linear ones are held; "float32": as all others.
    """
    if quantised_with(config)[0]:
        return _quantised(config, weights_bytes, stored, width)
    return numbers * width if packed == PLAIN else _packed(config, numbers, packed)


def _packed(config: Mapping[str, Any], numbers: int, form: str) -> int:
    """Embeddings in float32, the head in float16 where the processor has it, all else in a form."""
    text = text_config(config)
    hidden, inner = number_of(text, "hidden_size", "n_embd", "d_model"), number_of(text, "intermediate_size")
    embedding = min(number_of(text, "vocab_size") * hidden, numbers)
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    if not isinstance(tied, bool):
        tied = str(text.get("model_type")).startswith(_TIED)
    linear = max(numbers - (1 if tied else 2) * embedding, 0)
    head = 2 * embedding * _filled(hidden) if has_float16() else 4 * embedding * (not tied)
    if form == "float16":
        down = min(number_of(text, "num_hidden_layers", "n_layer") * hidden * inner, linear)  # those that read the wide side
        return int(4 * embedding + head + 2 * ((linear - down) * _filled(hidden) + down * _filled(inner)))
    return int(4 * embedding + head + linear * _PACKED.get(form, 4.0))


def _filled(width: int) -> float:
    return -(-width // _BLOCK) * _BLOCK / width if width > 0 else 1.0


def has_float16() -> bool:
    """Whether torch can multiply float16 weights here, guessed without loading it."""
    return platform.machine().lower() in ("x86_64", "amd64")


def _quantised(config: Mapping[str, Any], weights_bytes: int, stored: int, width: int) -> int:
    """Packed weights stay as they are; their scales get the width that all else is computed in."""
    found = config.get("quantization")
    bits, group = (found.get("bits"), found.get("group_size")) if isinstance(found, Mapping) else (None, None)
    if stored == width or not isinstance(bits, int) or not isinstance(group, int) or bits < 1 or group < 1:
        return weights_bytes
    pair = 2 * 8 / group  # bits of a scale and a bias of one byte each, for each number
    return int(weights_bytes * (bits + width * pair) / (bits + stored * pair))
