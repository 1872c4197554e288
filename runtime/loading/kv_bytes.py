"""Keys, values and recurrent state of a model by its configuration: how many numbers, and what they take at rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.backends.facts import group_width

_LEAST_GROUP = {"mlx": 32, "hf": 1}  # numbers: rows of quantised KV are filled up to a multiple of it
_CACHED = ("full_attention", "sliding_attention", "chunked_attention", "attention")  # layers that keep keys and values
_PURELY_RECURRENT = ("mamba", "mamba2", "rwkv", "falcon_mamba")
_WIDTHS = {"f32": 4, "f16": 2, "bf16": 2}


def kv_numbers(config: Mapping[str, Any]) -> int:
    """Keys and values of one token, in all layers that keep such. Sliding layers keep all of them: the window is a mask."""
    layers, heads, widths = _kv_shape(config)
    return layers * heads * sum(widths)


def attends(config: Mapping[str, Any]) -> bool:
    """Whether any layer keeps keys and values."""
    return kv_numbers(config) > 0


def kv_row_bytes(config: Mapping[str, Any], backend: str, kv_dtype: str, width: int) -> int:
    """Bytes of one token's keys and values in a form.

    Args:
        config: ``config.json``.
        backend: "hf" or "mlx".
        kv_dtype: As `LoadOptions.kv_dtype` has it.
        width: Bytes of a number that is computed with, which "auto" means.
    """
    if kv_dtype not in ("q8", "q4"):
        return kv_numbers(config) * _WIDTHS.get(kv_dtype, width)
    layers, heads, widths = _kv_shape(config)
    least, bits = _LEAST_GROUP.get(backend, 1), int(kv_dtype[1:])
    full = [-(-each // least) * least for each in widths]
    return layers * heads * sum(each * bits // 8 + each // group_width(each) * 8 for each in full if each)


def state_numbers(config: Mapping[str, Any]) -> int:
    """Of one recurrent state, in all layers that have one: what a convolution still sees, and what other layers sum up."""
    text = text_config(config)
    layers = _layers(text) - (_attention_layers(text) if _kinds(text) else 0)
    heads = number_of(text, "mamba_n_heads", "mamba_num_heads")
    if heads:  # Mamba 2, alone or beside attention in every layer
        inner = number_of(text, "mamba_d_ssm") or heads * number_of(text, "mamba_d_head", "mamba_head_dim")
        return layers * _mamba2(inner, text, "mamba_d_state", "mamba_n_groups", "mamba_d_conv")
    if text.get("model_type") == "mamba2":
        inner = number_of(text, "num_heads") * number_of(text, "head_dim")
        return layers * _mamba2(inner, text, "state_size", "n_groups", "conv_kernel")
    inner = number_of(text, "intermediate_size")
    if text.get("model_type") in ("mamba", "falcon_mamba"):
        return layers * inner * (number_of(text, "state_size") + number_of(text, "conv_kernel"))
    if number_of(text, "linear_num_value_heads"):  # gated delta rule
        values = number_of(text, "linear_num_value_heads") * number_of(text, "linear_value_head_dim")
        key = number_of(text, "linear_key_head_dim")
        seen = 2 * number_of(text, "linear_num_key_heads") * key + values
        return layers * (values * key + seen * number_of(text, "linear_conv_kernel_dim"))
    return layers * number_of(text, "hidden_size") * number_of(text, "conv_L_cache")  # short convolutions


def _mamba2(inner: int, text: Mapping[str, Any], state: str, groups: str, kernel: str) -> int:
    size = number_of(text, state)
    return inner * size + (inner + 2 * number_of(text, groups) * size) * number_of(text, kernel)


def _kv_shape(config: Mapping[str, Any]) -> tuple[int, int, tuple[int, int]]:
    """Layers, heads, and the widths of a key and of a value."""
    text = text_config(config)
    layers = _attention_layers(text)
    heads = number_of(text, "num_attention_heads", "n_head")
    hidden = number_of(text, "hidden_size", "n_embd", "d_model")
    if number_of(text, "kv_lora_rank"):  # a compressed cache, which transformers keeps unfolded
        key = number_of(text, "qk_nope_head_dim") + number_of(text, "qk_rope_head_dim")
        return layers, heads, (key, number_of(text, "v_head_dim"))
    width = number_of(text, "head_dim") or (hidden // heads if heads else 0)
    return layers, number_of(text, "num_key_value_heads") or heads, (width, width)


def _layers(text: Mapping[str, Any]) -> int:
    return number_of(text, "num_hidden_layers", "n_layer", "num_layers")


def _kinds(text: Mapping[str, Any]) -> list[Any]:
    for name in ("layer_types", "layers_block_type"):
        found = text.get(name)
        if isinstance(found, list) and found:
            return found
    return []


def _attention_layers(text: Mapping[str, Any]) -> int:
    if text.get("model_type") in _PURELY_RECURRENT:
        return 0
    kinds = _kinds(text)
    return sum(kind in _CACHED for kind in kinds) if kinds else _layers(text)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part about text, of a model that reads more than text."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def number_of(config: Mapping[str, Any], *names: str) -> int:
    """The first of these that is a whole number; 0 where none is."""
    found = (config.get(name) for name in names)
    return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), 0)
