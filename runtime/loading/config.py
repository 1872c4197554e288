"""config.json in one spelling for every library: transformers 5 and mlx_lm read different keys for the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runtime.errors import ModelLoadError

# Every library's names for the sizes of a model, with the largest that is believed
_LIMITS = {
    ("hidden_size", "n_embd", "d_model"): 1 << 18,
    ("num_hidden_layers", "n_layer", "num_layers"): 4096,
    ("num_attention_heads", "n_head"): 1 << 14,
    ("num_key_value_heads",): 1 << 14,
    ("head_dim",): 1 << 14,
    ("vocab_size",): 1 << 24,
    ("max_position_embeddings", "n_positions"): 1 << 31,
    ("intermediate_size", "n_inner"): 1 << 22,
    ("sliding_window",): 1 << 31,
}


def normalised(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with rope in both spellings and the keys mlx_lm wants; nothing that asks for code of the model's own.

    transformers 5 writes ``rope_parameters: {rope_theta, rope_type, ...}`` (per layer type for gemma 3), older folders
    and mlx_lm have ``rope_theta``, ``rope_scaling`` and ``rope_local_base_freq`` at the top. mlx_lm falls back to a base
    of 10,000 without a word: 6 nats off on SmolLM2.
    """
    result: dict[str, Any] = _plain_floats(dict(config))
    result.pop("auto_map", None)
    if "model_file" in result:
        result["model_file"] = None  # mlx_lm lays this over the file on disk: a key left out would keep its value
    if isinstance(result.get("text_config"), Mapping):
        result["text_config"] = normalised(result["text_config"])
    rope = result.get("rope_parameters")
    if isinstance(rope, Mapping) and rope:
        _rope_to_top(result, rope)
    elif "rope_theta" in result and not _rope_per_layer_type(result):
        result["rope_parameters"] = _rope_from_top(result)
    if result.get("model_type") in ("lfm2", "lfm2_moe") and "hidden_size" in result:
        result.setdefault("block_dim", result["hidden_size"])
    pattern = _sliding_pattern(result.get("layer_types"))
    if pattern is not None:
        result.setdefault("sliding_window_pattern", pattern)
    return result


def check_sizes(config: Mapping[str, Any], where: str) -> None:
    """Refuses sizes that no model has.

    Raises:
        ModelLoadError: Names the key and the number.
    """
    for names, limit in _LIMITS.items():
        for name in names:
            value = config.get(name)
            if value is None or (value == 0 and name == "sliding_window"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
                raise ModelLoadError(f"{where}: {name} is {str(value)[:40]}, a whole number from 1 to {limit:,} is possible")
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if hidden and heads and not config.get("head_dim") and hidden % heads:
        raise ModelLoadError(f"{where}: hidden_size {hidden:,} is no multiple of num_attention_heads {heads:,}")
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        check_sizes(inner, f"{where}, text_config")


def _plain_floats(value: Any) -> Any:
    """A deep copy in which ``{"__float__": "Infinity"}``, as transformers 5 writes it, is the number again."""
    if isinstance(value, Mapping):
        tagged = value.get("__float__")
        if len(value) == 1 and tagged in ("Infinity", "-Infinity", "NaN"):
            return float(tagged)
        return {key: _plain_floats(item) for key, item in value.items()}
    return [_plain_floats(item) for item in value] if isinstance(value, list) else value


def _rope_to_top(config: dict[str, Any], rope: Mapping[str, Any]) -> None:
    """Copies ``rope_parameters`` to the older keys, where those are missing."""
    full, sliding = rope.get("full_attention"), rope.get("sliding_attention")
    if isinstance(full, Mapping) or isinstance(sliding, Mapping):
        if isinstance(sliding, Mapping) and "rope_theta" in sliding:
            config.setdefault("rope_local_base_freq", sliding["rope_theta"])
        rope = full if isinstance(full, Mapping) else {}
    if "rope_theta" in rope:
        config.setdefault("rope_theta", rope["rope_theta"])
    if "partial_rotary_factor" in rope:
        config.setdefault("partial_rotary_factor", rope["partial_rotary_factor"])
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default" and config.get("rope_scaling") is None:
        rest = {key: value for key, value in rope.items() if key not in ("rope_theta", "partial_rotary_factor")}
        config["rope_scaling"] = {**rest, "rope_type": kind, "type": kind}


def _rope_per_layer_type(config: Mapping[str, Any]) -> bool:
    """Whether one flat ``rope_parameters`` would be wrong: sliding layers turn by another base."""
    sliding = "sliding_attention" in (config.get("layer_types") or ())
    return sliding or "rope_local_base_freq" in config or str(config.get("model_type")).startswith("gemma3")


def _rope_from_top(config: Mapping[str, Any]) -> dict[str, Any]:
    """``rope_parameters`` from the older keys."""
    scaling = config.get("rope_scaling")
    rope = dict(scaling) if isinstance(scaling, Mapping) else {}
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    rope.pop("type", None)
    if config.get("partial_rotary_factor") is not None:
        rope["partial_rotary_factor"] = config["partial_rotary_factor"]
    return {**rope, "rope_type": kind, "rope_theta": config["rope_theta"]}


def _sliding_pattern(layer_types: object) -> int | None:
    """Every how many layers full attention comes, where sliding and full ones take regular turns."""
    if not isinstance(layer_types, Sequence) or isinstance(layer_types, str) or "sliding_attention" not in layer_types:
        return None
    if "full_attention" not in layer_types:
        return len(layer_types) + 1
    period = layer_types.index("full_attention") + 1
    regular = ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(len(layer_types))]
    return period if list(layer_types) == regular else None
