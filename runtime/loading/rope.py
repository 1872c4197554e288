"""Rotary positions of a configuration: one spelling for both libraries, the types proven on each backend, and their limits.

Cached keys are already rotated. The frequencies of some types change once a text is longer than a limit, which would make all
cached keys wrong; the context therefore ends at that limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from runtime.errors import ModelLoadError

# Types of transformers; below its limit (if any), each type rotates a token by its position alone
HF = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
_PLAIN = ("default",)
_SHARED = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")  # for mlx-lm's classes that call `initialize_rope`
MLX = {  # by model_type: proven equal to transformers' by `tests/runtime/backends/test_rope.py`
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _SHARED),
    "gemma3_text": ("default", "linear"),
    "phi3": ("default", "longrope"),
    **dict.fromkeys(("gemma2", "lfm2", "falcon_h1"), _PLAIN),
}
# Types whose frequencies change with the length of the text, and the field with the longest length before the change
LENGTH_LIMITS = {
    "dynamic": "max_position_embeddings",
    "longrope": "original_max_position_embeddings",
}
_OLDER = {"su": "longrope", "mrope": "default"}  # names in older configurations

Config = Mapping[str, Any]


def rope_types(config: Config) -> tuple[str, ...]:
    """The rope types of a configuration, sorted; empty where it has none."""
    return tuple(sorted({_kind(rope) for rope in _ropes(config)}))


def length_limit(config: Config) -> tuple[str, int] | None:
    """The rope type with the lowest limit, and the longest text (tokens) with fixed frequencies; None without a limit."""
    text, found = text_config(config), []
    for rope in _ropes(config):
        kind = _kind(rope)
        if kind in LENGTH_LIMITS:
            name = LENGTH_LIMITS[kind]
            lengths = (text.get(name), rope.get(name), text.get("max_position_embeddings"))  # in the order of transformers
            found += [(length, kind) for length in lengths if isinstance(length, int) and length > 0][:1]
    return None if not found else min(found)[::-1]


def check_ropes(config: Config, backend: str, where: str) -> None:
    """Refuses a rope type that is not proven.

    Raises:
        ModelLoadError: Names the rope type.
    """
    kind = str(text_config(config).get("model_type", config.get("model_type")))
    proven = HF if backend == "hf" else MLX.get(kind, _PLAIN)
    for rope in rope_types(config):
        if rope not in HF:
            raise ModelLoadError(f"{where}: rope type {rope!r} is not one that transformers has ({', '.join(HF)})")
        if rope not in proven:
            raise ModelLoadError(
                f"{where}: rope type {rope!r} of {kind} was not proven equal to transformers with mlx; use backend='hf'"
            )
    if backend == "mlx":
        for rope_parameters in _ropes(config):
            _check_mlx(rope_parameters, kind, where)


def is_proven(config: Config, backend: str) -> bool:
    """Whether `check_ropes` accepts a configuration."""
    try:
        check_ropes(config, backend, "")
    except ModelLoadError:
        return False
    return True


def for_mlx(config: Config) -> dict[str, Any]:
    """A normalised config with which mlx-lm computes the same ropes as transformers, below the limit."""
    full = dict(config)
    if not set(rope_types(config)) - {"default"}:
        return full
    edge = length_limit(config)
    if isinstance(full.get("rope_scaling"), Mapping):
        full["rope_scaling"] = _scaling(full, full["rope_scaling"], edge)
    rope = full.get("rope_parameters")
    if isinstance(rope, Mapping) and not any(isinstance(value, Mapping) for value in rope.values()):
        full["rope_parameters"] = {**(full.get("rope_scaling") or {}), "rope_theta": rope.get("rope_theta")}
        full["rope_parameters"].setdefault("rope_type", "default")
    if edge is not None and edge[0] == "longrope":
        full["original_max_position_embeddings"] = edge[1]
        factor = next((rope.get("factor") for rope in _ropes(config) if _kind(rope) == "longrope"), None)
        if factor:  # mlx-lm takes the ratio of two lengths
            full["max_position_embeddings"] = round(factor * edge[1])
    return full


def _scaling(config: Config, rope: Config, edge: tuple[str, int] | None) -> dict[str, Any] | None:
    kind = _kind(rope)
    scaling = {key: value for key, value in rope.items() if value is not None}
    if kind in ("default", "dynamic"):  # "dynamic" equals "default" below its limit
        return None
    if kind in ("longrope", "yarn", "llama3"):
        name = "original_max_position_embeddings"  # looked up in the order of transformers
        scaling[name] = config.get(name) or rope.get(name) or config.get("max_position_embeddings")
    if kind == "longrope" and edge is not None:
        scaling["long_factor"] = rope["short_factor"]  # mlx-lm always uses the long factors
    return {**scaling, "rope_type": kind, "type": kind}


def _check_mlx(rope: Config, kind: str, where: str) -> None:
    """Refuses fields that mlx-lm's ropes ignore.

    Raises:
        ModelLoadError: Names the key.
    """
    way_out = "with mlx it has no effect; use backend='hf'"
    name = _kind(rope)
    if kind not in ("phi3", "qwen3_5", "glm4") and rope.get("partial_rotary_factor") not in (None, 1, 1.0) and kind in MLX:
        raise ModelLoadError(f"{where}: partial_rotary_factor {rope['partial_rotary_factor']} of {kind}: {way_out}")
    if name == "longrope" and rope.get("attention_factor") is not None:
        raise ModelLoadError(f"{where}: attention_factor of rope type 'longrope': {way_out}")
    if name == "yarn":
        factor = rope.get("factor")
        usual = 0.1 * math.log(factor) + 1 if isinstance(factor, int | float) and factor > 1 else 1.0
        found = rope.get("attention_factor")
        both = rope.get("mscale") is not None and rope.get("mscale_all_dim") is not None
        one = rope.get("mscale") is not None or rope.get("mscale_all_dim") is not None
        for key, wrong in (
            ("attention_factor", found is not None and (one or not math.isclose(found, usual, rel_tol=1e-6))),
            ("mscale", one and not both),
            ("truncate", rope.get("truncate", True) is not True),
        ):
            if wrong:
                raise ModelLoadError(f"{where}: {key} of rope type 'yarn': {way_out}")


def text_config(config: Config) -> Config:
    """The part about text: ``text_config`` of a multimodal model, or else the whole configuration."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _ropes(config: Config) -> Iterator[Config]:
    """Yields the rope fields of each spelling and each kind of layer."""
    text = text_config(config)
    for key in ("rope_parameters", "rope_scaling"):
        rope = text.get(key)
        if isinstance(rope, Mapping) and rope:
            inner = [value for value in rope.values() if isinstance(value, Mapping)]
            yield from inner or [rope]


def rope_tables(config: Config) -> tuple[tuple[float, ...], ...]:
    """The distinct tables of numbers among the rope fields, such as longrope's factors for short and for long texts."""
    return tuple(dict.fromkeys(tuple(value) for rope in _ropes(config) for value in rope.values() if _is_table(value)))


def with_other_table(config: Config, table: tuple[float, ...]) -> dict[str, Any]:
    """A copy of a configuration in which one of its `rope_tables` has other numbers."""

    def change(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: change(item) for name, item in value.items()}
        return [2 * number + 1 for number in value] if _is_table(value) and tuple(value) == table else value

    return {name: change(value) if name.startswith(("rope", "text_config")) else value for name, value in config.items()}


def _is_table(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 1 and all(isinstance(number, int | float) for number in value)


def _kind(rope: Config) -> str:
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    return _OLDER.get(kind, kind)


def same_rope(config: Config, new: Config, old: Config) -> bool:
    """Whether the older spelling equals the newer one, base of the frequencies included."""
    older = {"rope_theta": config.get("rope_theta"), **old, "rope_type": old.get("rope_type", old.get("type"))}
    older.pop("type", None)
    newer = {"rope_type": "default", **new}
    newer.pop("type", None)
    return older.keys() >= newer.keys() - {"partial_rotary_factor"} and all(newer.get(k) == v for k, v in older.items())


def spell_at_top(config: dict[str, Any], rope: Config) -> None:
    """Copies ``rope_parameters`` to the older keys, which transformers reads where both are present."""
    full, sliding = rope.get("full_attention"), rope.get("sliding_attention")
    if isinstance(full, Mapping) or isinstance(sliding, Mapping):
        if isinstance(sliding, Mapping) and "rope_theta" in sliding:
            config["rope_local_base_freq"] = sliding["rope_theta"]
        rope = full if isinstance(full, Mapping) else {}
    if "rope_theta" in rope:
        config["rope_theta"] = rope["rope_theta"]
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope["partial_rotary_factor"]
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default" and config.get("rope_scaling") is None:
        rest = {key: value for key, value in rope.items() if key not in ("rope_theta", "partial_rotary_factor")}
        config["rope_scaling"] = {**rest, "rope_type": kind, "type": kind}


def differs_by_layer(config: Config) -> bool:
    """Whether sliding layers have another base, so that one flat ``rope_parameters`` would be wrong."""
    sliding = "sliding_attention" in (config.get("layer_types") or ())
    return sliding or "rope_local_base_freq" in config or str(config.get("model_type")).startswith("gemma3")


def rope_parameters_of(config: Config) -> dict[str, Any]:
    """``rope_parameters`` from the older keys."""
    scaling = config.get("rope_scaling")
    rope = dict(scaling) if isinstance(scaling, Mapping) else {}
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    rope.pop("type", None)
    if config.get("partial_rotary_factor") is not None:
        rope["partial_rotary_factor"] = config["partial_rotary_factor"]
    return {**rope, "rope_type": kind, "rope_theta": config["rope_theta"]}
