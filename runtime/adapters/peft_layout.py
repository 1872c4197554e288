"""peft's layout: adapter_config.json beside adapter_model.safetensors."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.adapters.layout import AdapterHeader, Pair, number, pairs_of
from runtime.adapters.tensors import tensor_shapes
from runtime.adapters.uses import MOST_INVOCATION
from runtime.errors import AdapterError

WEIGHTS = "adapter_model.safetensors"
ENDINGS = (".lora_A.weight", ".lora_B.weight")
BASE = ".base_layer.weight"  # a copy that peft saves of a head's or an embedding's own weights
PREFIX = "base_model.model."

# Settings of LoraConfig that say how an adapter was made or trained, not what it computes.
_HARMLESS = frozenset(
    {"peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode"}
    | {"r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "fan_in_fan_out", "use_rslora", "bias"}
    | {"rank_pattern", "alpha_pattern", "layers_to_transform", "layers_pattern", "init_lora_weights", "loftq_config"}
    | {"megatron_core", "eva_config", "corda_config", "lora_ga_config", "qalora_group_size", "alora_invocation_tokens"}
    | {"alora_invocation_string", "invocation_string", "ensure_weight_tying", "runtime_config"}
)
# Ways to begin that take something away from the base's weights: what was trained adds to the rest alone.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


def read_header(folder: Path, config: Mapping[str, Any]) -> AdapterHeader:
    """What the folder holds.

    Raises:
        AdapterError: Not a plain or activated LoRA (the setting that says so is named), or damaged.
    """
    _check_settings(folder, config)
    weights = folder / WEIGHTS
    shapes = tensor_shapes(weights)
    copies = {name for name in shapes if name.endswith(BASE) and name.removesuffix(BASE) + ENDINGS[0] in shapes}
    found = pairs_of(weights, {n: s for n, s in shapes.items() if n not in copies}, ENDINGS, transposed=False)
    modules: dict[str, Pair] = {}
    for tensor_path, (a, b, rank, shape) in found.items():
        path, copy = tensor_path.removeprefix(PREFIX), tensor_path + BASE
        if copy in copies and shapes[copy] != shape[::-1]:
            raise AdapterError(f"{weights}: {copy} {shapes[copy]} and the product of shape {shape[::-1]} do not fit together")
        scaling = _scaling(folder, config, path, rank)
        modules[path] = Pair(a, b, False, rank, shape, scaling, copy if copy in copies else None)
    return AdapterHeader(
        folder=folder,
        weights=weights,
        layout="peft",
        base=str(config.get("base_model_name_or_path") or ""),
        invocation=_invocation(folder, config),
        modules=modules,
    )


def _check_settings(folder: Path, config: Mapping[str, Any]) -> None:
    where = folder / "adapter_config.json"
    if config.get("peft_type") != "LORA":
        raise AdapterError(f"{where}: peft_type is {config.get('peft_type')!r}; only LORA adapters are supported")
    if config.get("bias", "none") != "none":
        raise AdapterError(f"{where}: bias={config['bias']!r} trains biases too, which is not supported; only bias='none' is")
    for name, value in config.items():
        if name not in _HARMLESS and value not in (None, False, [], {}, ""):
            raise AdapterError(f"{where}: {name}={value!r:.80} changes what the adapter computes and is not supported")
    begun = config.get("init_lora_weights")
    if isinstance(begun, str) and begun.startswith(_CHANGES_BASE):
        raise AdapterError(
            f"{where}: init_lora_weights={begun!r} changed the base model's weights as well; save it with peft's "
            "path_initial_model_for_weight_conversion, which makes a plain LoRA of it"
        )


def _scaling(folder: Path, config: Mapping[str, Any], path: str, rank: int) -> float:
    """Alpha / rank, by the square root where it is rank-stabilised; both may differ by module, as peft's patterns say."""
    said = _by_pattern(folder, "rank_pattern", config, path, config.get("r", rank))
    if number(folder, "r", said, above=0) != rank:
        raise AdapterError(f"{folder / 'adapter_config.json'}: r is {said} for {path}, but its tensors have rank {rank}")
    alpha = number(folder, "lora_alpha", _by_pattern(folder, "alpha_pattern", config, path, config.get("lora_alpha", 8)))
    return alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank


def _by_pattern(folder: Path, name: str, config: Mapping[str, Any], path: str, otherwise: Any) -> Any:
    patterns = config.get(name) or {}
    if not isinstance(patterns, Mapping):
        raise AdapterError(f"{folder / 'adapter_config.json'}: {name} is a mapping, not {patterns!r:.60}")
    for pattern, value in patterns.items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", path):
                return value
        except re.error as fault:
            raise AdapterError(f"{folder / 'adapter_config.json'}: {name} {pattern!r:.60} is no pattern ({fault})") from fault
    return otherwise


def _invocation(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    tokens = config.get("alora_invocation_tokens")
    if tokens is None:
        return ()
    whole = isinstance(tokens, list) and all(isinstance(t, int) and not isinstance(t, bool) and t >= 0 for t in tokens)
    if not whole or not tokens:
        raise AdapterError(
            f"{folder / 'adapter_config.json'}: alora_invocation_tokens is a list of token ids, not {tokens!r:.80}"
        )
    if len(tokens) > MOST_INVOCATION:
        raise AdapterError(
            f"{folder / 'adapter_config.json'}: alora_invocation_tokens has {len(tokens):,} ids, "
            f"at most {MOST_INVOCATION:,} are looked for"
        )
    return tuple(tokens)
