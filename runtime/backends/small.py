"""Configurations of small random copies of an architecture, for the self-test at load.

A copy has few and narrow layers, two of each kind, and a small vocabulary. Every length in the configuration (a window, a
chunk, the context, the border between two sets of rotary frequencies) is so short that some dozen tokens lie on both sides
of it. Everything that decides how tokens attend to each other stays as it is: kinds and order of layers, groups of heads, rope
types, masks, caps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

VOCABULARY = 96
_EACH = 2  # layers of each kind
_HEAD = 32  # numbers of a head
_STEP = 24  # tokens between two lengths; the first is twice that, as kernels change for longer calls too
_MOST_WEIGHTS = 100_000_000  # most numbers of a copy with the model's own widths

_LENGTH = re.compile(
    r"position|window|chunk|context|seq|^n_ctx$|max_length$|_len$|floor_scale|n_floor|local_attention|block_size|distance|extent"
)
_NO_LENGTH = re.compile(r"layer|pattern|embedding_type|feed_forward|conv")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_GROUPS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
_INNER = re.compile(r"intermediate|inner|ffn|ff_dim|d_ssm|mlp_dim")
_PERIOD = re.compile(r"period|interval|pattern|sparse_step")
_SHARED = "num_kv_shared_layers"  # the number of last layers that attend to the keys of earlier ones
_EXPERTS = re.compile(r"^(num_experts|num_local_experts|n_routed_experts|moe_num_experts)$")
_CHOSEN = re.compile(r"experts_per_tok|top_?k|moe_k|n_group|topk_group")
_OWN_HEADS = re.compile(r"rotary_dim|mrope|(qk|v|rope|global)_.*head_dim|v_head_dim|d_kv|head_size")
_RATIO = re.compile(r"hidden_size|n_embd|d_model|heads?$|n_head|intermediate|inner|ffn|ff_dim|d_ssm|lru_width|block_dim")

Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Small:
    """One way to make an architecture small.

    Attributes:
        config: The configuration, in the form that the library's class takes.
        context: Its context length in tokens.
        lengths: Lengths in tokens, within that context, at which the computation may change.
    """

    config: Config
    context: int
    lengths: tuple[int, ...]


def small_copies(config: Mapping[str, Any], context: int) -> Iterator[Small]:
    """Copies to try in order, the narrowest first; the others suit architectures with other dependencies between widths.

    Args:
        config: The complete configuration of a text model.
        context: The loaded model's context length in tokens.
    """
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        for small in small_copies(inner, context):
            yield replace(small, config={**config, "text_config": small.config})
    if _first(config, _HIDDEN) is None or _first(config, _LAYERS) is None:
        return
    for narrow in (_narrow, _divided, dict):
        made = _clean(_fewer_layers(narrow(dict(config))), padding=None if narrow is _narrow else 0)
        if narrow is dict and _weights(made) > _MOST_WEIGHTS:
            return
        images = _images(made, context)
        lengths = tuple(sorted(image for image in images.values() if image <= images[context]))
        yield Small(_walk(made, images.__getitem__), images[context], lengths)


def _first(config: Mapping[str, Any], names: Sequence[str]) -> tuple[str, int] | None:
    return next(((name, config[name]) for name in names if _whole(config.get(name))), None)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _fewer_layers(config: Config) -> Config:
    """Two layers of each kind, in their order; where kinds are periodic, two periods of two layers."""
    found = _first(config, _LAYERS)
    if found is None:
        return config
    name, count = found
    per_layer = [key for key, value in config.items() if isinstance(value, list | tuple) and len(value) == count]
    periods = {key: value for key, value in config.items() if _PERIOD.search(key) and _whole(value) and value > 1}
    longest, shared = max(periods.values(), default=0), config.get(_SHARED) or 0
    if 2 * longest <= count and longest > 1:
        chosen = [0, longest - 1, longest, 2 * longest - 1]
        shorter = dict.fromkeys(periods, 2)
        shorter |= {key: min(value, 1) for key, value in config.items() if key.endswith("offset") and _whole(value)}
    else:
        seen: dict[str, int] = {}
        chosen, shorter = [], {}
        for layer in range(count):
            kind = repr([layer >= count - shared, *(config[key][layer] for key in per_layer)])
            seen[kind] = seen.get(kind, 0) + 1
            if seen[kind] <= _EACH and len(chosen) < 6 * _EACH:
                chosen.append(layer)
        if shared:
            shorter[_SHARED] = sum(layer >= count - shared for layer in chosen)
    lists: Config = {key: [config[key][layer] for layer in chosen] for key in per_layer}
    for key, value in config.items():
        if isinstance(value, Mapping) and value and all(str(layer).isdecimal() for layer in value):
            places = {type(layer)(chosen.index(int(layer))): item for layer, item in value.items() if int(layer) in chosen}
            lists[key] = places
    return {**config, **lists, **shorter, name: len(chosen)}


def _narrow(config: Config) -> Config:
    """Two or four heads; every width that equals the model's becomes the width of those heads."""
    hidden, heads = _first(config, _HIDDEN), _first(config, _HEADS)
    if hidden is None or heads is None:
        return _divided(config)
    groups = _first(config, _GROUPS) or heads
    own = _first(config, ("head_dim",))
    width = own[1] if own else hidden[1] // heads[1]
    head = width if any(_OWN_HEADS.search(key) for key in _keys(config)) else min(width, _HEAD)
    new_groups = min(groups[1], 2)
    new_heads = new_groups * (2 if heads[1] > groups[1] else 1)
    wide = new_heads * head
    made: Config = {}
    for key, value in config.items():
        if _whole(value) and value == hidden[1] and key not in (heads[0], groups[0]) and not _length(key):
            made[key] = wide
        elif _whole(value) and _INNER.search(key):
            made[key] = min(max(8 * round(wide * value / hidden[1] / 8), 16), 4 * wide)
        else:
            made[key] = value
    made = {**made, heads[0]: new_heads, **({groups[0]: new_groups} if groups is not heads else {})}
    if own:
        made["head_dim"] = head
    made |= _state_heads(config, wide)
    return _fewer_experts(_cut_lists(made, width, head))


def _state_heads(config: Config, wide: int) -> Config:
    """Four heads of a state space, together as wide as its layer."""
    inner = wide * (_first(config, ("mamba_expand", "expand")) or ("", 2))[1]
    sizes = {"mamba_n_heads": 4, "mamba_num_heads": 4, "mamba_d_head": inner // 4, "mamba_head_dim": inner // 4}
    sizes |= {"mamba_d_ssm": inner, "mamba_n_groups": 1}
    return {key: size for key, size in sizes.items() if _whole(config.get(key))}


def _divided(config: Config) -> Config:
    """All widths and counts of heads divided by one number."""
    names = [key for key, value in config.items() if _whole(value) and _RATIO.search(key) and "head_dim" not in key]
    hidden = _first(config, _HIDDEN)
    factor = 1
    while hidden is not None and hidden[1] // (2 * factor) >= 32:
        if any(config[name] % (2 * factor) for name in names if config[name] >= 2 * factor):
            break
        factor *= 2
    return _fewer_experts({**config, **{name: max(config[name] // factor, 1) for name in names}})


def _fewer_experts(config: Config) -> Config:
    fewer = {key: min(value, 4) for key, value in config.items() if _EXPERTS.search(key) and _whole(value)}
    chosen = {
        key: min(value, 1 if "group" in key else 2) for key, value in config.items() if _CHOSEN.search(key) and _whole(value)
    }
    return {**config, **fewer, **chosen}


def _cut_lists(value: Any, before: int, after: int) -> Any:
    """Shortens lists with a number for each pair of a head's dimensions, such as longrope's factors, to the smaller head."""
    if isinstance(value, dict):
        return {key: _cut_lists(item, before, after) for key, item in value.items()}
    numbers = isinstance(value, list) and len(value) > 4 and all(isinstance(item, int | float) for item in value)
    if numbers and 2 * len(value) <= before and len(value) * after % before == 0:
        return value[:: before // after]
    return value


def _clean(config: Config, padding: int | None) -> Config:
    """A small vocabulary, and no keys about stored weights."""
    dropped = ("quantization", "quantization_config", "dtype", "torch_dtype", "transformers_version", "_name_or_path")
    made: Config = {}
    for key, value in config.items():
        if key in dropped:
            continue
        if key.startswith("vocab_size"):
            made[key] = VOCABULARY
        elif key == "pad_token_id":
            made[key] = padding  # random texts have no padding; some classes require the id
        elif key.endswith(("_token_id", "_token_index")):
            made[key] = _token(value)
        elif key == "initializer_range":
            made[key] = 0.2  # large, so that a wrong mask or position shows in the numbers
        else:
            made[key] = value
    return made


def _token(value: Any) -> Any:
    if isinstance(value, list):
        return [_token(item) for item in value]
    return min(value, VOCABULARY - 1) if _whole(value) else value


def _weights(config: Mapping[str, Any]) -> int:
    hidden, layers = _first(config, _HIDDEN), _first(config, _LAYERS)
    return 0 if hidden is None or layers is None else 12 * hidden[1] ** 2 * layers[1]


def _images(config: Mapping[str, Any], context: int) -> dict[int, int]:
    """The short length for each length of the configuration; longer lengths stay longer."""
    found = {context}
    _walk(config, found.add)
    return {value: _STEP * rank for rank, value in enumerate(sorted(found), 2)}


def _walk(value: Any, change: Callable[[int], Any], key: str = "") -> Any:
    """A copy with `change` applied to every length."""
    if isinstance(value, Mapping):
        return {name: _walk(item, change, str(name)) for name, item in value.items()}
    if _whole(value) and value > 1 and _length(key):
        return change(value)
    return value


def _length(key: str) -> bool:
    return bool(_LENGTH.search(key)) and not _NO_LENGTH.search(key)


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _keys(item)
