"""The two layouts of adapter folders, peft's and mlx-lm's, each read into one header."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

from resources.files import read_regular
from runtime.adapters.adapter import Adapter, AdapterKind, LowRank, ModuleShape
from runtime.adapters.uses import MOST_INVOCATION
from runtime.errors import AdapterError
from runtime.loading.paths import ADAPTER_CONFIG
from runtime.loading.safetensors import tensor_forms
from runtime.records import Float32


@dataclass(frozen=True, slots=True)
class TensorPair:
    """The two tensors of a module's product, by name, with their rank, shape and scaling."""

    a: str  # name of the tensor A
    b: str  # name of the tensor B
    transposed: bool  # A is ``(in, rank)`` and B ``(rank, out)``, as mlx-lm writes them
    rank: int
    shape: ModuleShape
    scaling: float
    base: str | None = None  # name of the tensor that copies the module's own weights


@dataclass(frozen=True, slots=True)
class AdapterHeader:
    """An adapter folder, described by its configuration and the header of its weights, without the numbers."""

    folder: Path
    weights: Path  # a safetensors file
    layout: str  # "peft" or "mlx"
    base: str  # the model that it names as its base; empty if it names none
    invocation: tuple[int, ...]  # token ids that activate an activated LoRA; empty for a plain one
    modules: Mapping[str, TensorPair]  # tensors by module path

    @property
    def kind(self) -> AdapterKind:
        """The kind: "lora" (plain) or "alora" (activated)."""
        return "alora" if self.invocation else "lora"

    @property
    def parameters(self) -> int:
        """The number of its parameters."""
        return sum(pair.rank * sum(pair.shape) for pair in self.modules.values())

    def read(self) -> Adapter:
        """Reads the numbers.

        Raises:
            AdapterError: The file is damaged, or changed since its header was read.
        """
        tensors = read_tensors(self.weights)
        modules: dict[str, LowRank] = {}
        for path, pair in self.modules.items():
            a, b = tensors.get(pair.a), tensors.get(pair.b)
            if a is None or b is None:
                raise AdapterError(f"{self.weights} has changed: {pair.a} or {pair.b} is not there any more; add it again")
            a, b = (a.T, b.T) if pair.transposed else (a, b)
            if a.shape != (pair.rank, pair.shape[0]) or b.shape != (pair.shape[1], pair.rank):
                raise AdapterError(f"{self.weights} has changed: {path} has other shapes now; add it again")
            modules[path] = LowRank(a, b, pair.scaling, None if pair.base is None else tensors.get(pair.base))
        return Adapter.of(modules)


def pairs_of(
    weights: Path, shapes: Mapping[str, tuple[int, ...]], names: tuple[str, str], *, transposed: bool
) -> dict[str, tuple[str, str, int, ModuleShape]]:
    """Groups tensors into pairs: module path -> (name of A, name of B, rank, shape of the module).

    Args:
        weights: The file, for messages.
        shapes: Shapes of its tensors, by name.
        names: Suffixes of the names of A and B.
        transposed: Whether A is ``(in, rank)`` and B ``(rank, out)``.

    Raises:
        AdapterError: A tensor is of another kind or lacks its partner, or the shapes of a pair contradict each other.
    """
    found: dict[str, tuple[str, str, int, ModuleShape]] = {}
    for name, shape in shapes.items():
        path = next((name.removesuffix(end) for end in names if name.endswith(end)), None)
        if path is None:
            raise AdapterError(
                f"{weights}: {name} {shape} is no part of a LoRA product ({names[0]}, {names[1]}): adapters that train biases, "
                "magnitudes (DoRA), embeddings or whole modules are not supported"
            )
        a, b = path + names[0], path + names[1]
        if a not in shapes or b not in shapes:
            raise AdapterError(f"{weights}: {name} stands alone, {b if name == a else a} is missing; fetch the adapter again")
        left, right = shapes[a], shapes[b]
        if len(left) != 2 or len(right) != 2:
            raise AdapterError(f"{path}: {a} {left} and {b} {right} are no matrices; only linear modules are supported")
        rank_in, rank_out = (left[1], right[0]) if transposed else (left[0], right[1])
        inner, outer = (left[0], right[1]) if transposed else (left[1], right[0])
        if rank_in != rank_out or rank_in < 1:
            raise AdapterError(f"{path}: {a} {left} and {b} {right} do not share a rank")
        found[path] = a, b, rank_in, (inner, outer)
    return found


def _number(where: Path, name: str, value: Any, *, above: float = -math.inf) -> float:
    """A finite number of a configuration.

    Raises:
        AdapterError: Not a finite number, or not above `above`.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= above:
        limit = "" if above == -math.inf else f" above {above:g}"
        raise AdapterError(f"{where}: {name} must be a finite number{limit}, not {value!r:.60}")
    return float(value)


MAX_BYTES = 64 << 30  # of a weights file, which is read whole; adapters of the largest models have a few GB
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
PEFT_WEIGHTS = "adapter_model.safetensors"
PEFT_ENDINGS = (".lora_A.weight", ".lora_B.weight")
PEFT_BASE = ".base_layer.weight"  # peft's copy of the weights of a head or an embedding
PEFT_PREFIX = "base_model.model."

# Settings of LoraConfig that are handled here, or that have no effect on the computation
_HARMLESS = frozenset(
    {"peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode"}
    | {"r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "fan_in_fan_out", "use_rslora", "bias"}
    | {"rank_pattern", "alpha_pattern", "layers_to_transform", "layers_pattern", "init_lora_weights", "loftq_config"}
    | {"megatron_core", "eva_config", "corda_config", "lora_ga_config", "qalora_group_size", "alora_invocation_tokens"}
    | {"alora_invocation_string", "invocation_string", "ensure_weight_tying", "runtime_config"}
)
# Initialisations that change the base's weights: such an adapter is correct only with the changed weights
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


def read_peft_header(folder: Path, config: Mapping[str, Any]) -> AdapterHeader:
    """Reads a folder in peft's layout.

    Raises:
        AdapterError: Not a plain or activated LoRA (the message names the setting), or damaged.
    """
    where, weights = folder / ADAPTER_CONFIG, folder / PEFT_WEIGHTS
    _check_peft_settings(where, config)
    shapes = tensor_shapes(weights)
    copies = {name for name in shapes if name.endswith(PEFT_BASE) and name.removesuffix(PEFT_BASE) + PEFT_ENDINGS[0] in shapes}
    found = pairs_of(weights, {n: s for n, s in shapes.items() if n not in copies}, PEFT_ENDINGS, transposed=False)
    modules: dict[str, TensorPair] = {}
    for tensor_path, (a, b, rank, shape) in found.items():
        path, copy = tensor_path.removeprefix(PEFT_PREFIX), tensor_path + PEFT_BASE
        if copy in copies and shapes[copy] != shape[::-1]:
            raise AdapterError(f"{weights}: {copy} {shapes[copy]} and the product of shape {shape[::-1]} do not fit together")
        scaling = _scaling(where, config, path, rank)
        modules[path] = TensorPair(a, b, False, rank, shape, scaling, copy if copy in copies else None)
    return AdapterHeader(
        folder=folder,
        weights=weights,
        layout="peft",
        base=str(config.get("base_model_name_or_path") or ""),
        invocation=_invocation(where, config),
        modules=modules,
    )


def _check_peft_settings(where: Path, config: Mapping[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise AdapterError(f"{where}: peft_type is {config.get('peft_type')!r}; only LORA adapters are supported")
    if config.get("bias", "none") != "none":
        raise AdapterError(f"{where}: bias={config['bias']!r} trains biases too, which is not supported; only bias='none' is")
    for name, value in config.items():
        if name not in _HARMLESS and value not in (None, False, [], {}, ""):
            raise AdapterError(f"{where}: {name}={value!r:.80} changes what the adapter computes and is not supported")
    initialisation = config.get("init_lora_weights")
    if isinstance(initialisation, str) and initialisation.startswith(_CHANGES_BASE):
        raise AdapterError(
            f"{where}: init_lora_weights={initialisation!r} changed the base model's weights as well; save it with peft's "
            "path_initial_model_for_weight_conversion, which makes a plain LoRA of it"
        )


def _scaling(where: Path, config: Mapping[str, Any], path: str, rank: int) -> float:
    """The scaling: alpha / rank, or alpha / sqrt(rank) if rank-stabilised; peft's patterns may set both by module."""
    named = _by_pattern(where, "rank_pattern", config, path, config.get("r", rank))
    if _number(where, "r", named, above=0) != rank:
        raise AdapterError(f"{where}: r is {named} for {path}, but its tensors have rank {rank}")
    alpha = _number(where, "lora_alpha", _by_pattern(where, "alpha_pattern", config, path, config.get("lora_alpha", 8)))
    return alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank


def _by_pattern(where: Path, name: str, config: Mapping[str, Any], path: str, otherwise: Any) -> Any:
    patterns = config.get(name) or {}
    if not isinstance(patterns, Mapping):
        raise AdapterError(f"{where}: {name} is a mapping, not {patterns!r:.60}")
    for pattern, value in patterns.items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", path):
                return value
        except re.error as fault:
            raise AdapterError(f"{where}: {name} {pattern!r:.60} is no pattern ({fault})") from fault
    return otherwise


def _invocation(where: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    tokens = config.get("alora_invocation_tokens")
    if tokens is None:
        return ()
    whole = isinstance(tokens, list) and all(isinstance(t, int) and not isinstance(t, bool) and t >= 0 for t in tokens)
    if not whole or not tokens:
        raise AdapterError(f"{where}: alora_invocation_tokens is a list of token ids, not {tokens!r:.80}")
    if len(tokens) > MOST_INVOCATION:
        raise AdapterError(
            f"{where}: alora_invocation_tokens has {len(tokens):,} ids, at most {MOST_INVOCATION:,} are looked for"
        )
    return tuple(tokens)


MLX_WEIGHTS = "adapters.safetensors"
MLX_ENDINGS = (".lora_a", ".lora_b")


def read_mlx_header(folder: Path, config: Mapping[str, Any]) -> AdapterHeader:
    """Reads a folder in mlx-lm's layout.

    Raises:
        AdapterError: Fine-tuned by another method than LoRA, or damaged.
    """
    where, kind = folder / ADAPTER_CONFIG, config.get("fine_tune_type", "lora")
    if kind != "lora":
        raise AdapterError(f"{where}: fine_tune_type is {kind!r}; only 'lora' is supported")
    parameters = config.get("lora_parameters")
    if not isinstance(parameters, Mapping) or "scale" not in parameters:
        raise AdapterError(f"{where}: lora_parameters has no scale; mlx-lm writes rank and scale there")
    scale = _number(where, "lora_parameters.scale", parameters["scale"])
    weights = folder / MLX_WEIGHTS
    found = pairs_of(weights, tensor_shapes(weights), MLX_ENDINGS, transposed=True)
    return AdapterHeader(
        folder=folder,
        weights=weights,
        layout="mlx",
        base=str(config.get("model") or ""),
        invocation=(),
        modules={path: TensorPair(a, b, True, rank, shape, scale) for path, (a, b, rank, shape) in found.items()},
    )


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of a file's tensors by name, from its header alone.

    Raises:
        AdapterError: The file is damaged or has no tensors, or a tensor is not floating-point.
    """
    try:
        forms = tensor_forms([path])
    except (SafetensorError, OSError, ValueError) as fault:
        raise AdapterError(f"{path}: damaged safetensors file ({fault}); fetch it again") from fault
    if not forms:
        raise AdapterError(f"{path}: holds no tensors; fetch it again")
    for name, (dtype, _) in forms.items():
        _check_dtype(path, name, dtype)
    return {name: shape for name, (_, shape) in forms.items()}


def read_tensors(path: Path) -> dict[str, Float32]:
    """All tensors of a file by name, as float32.

    Raises:
        AdapterError: The file is damaged, or a tensor (named in the message) has NaN or infinity.
    """
    try:
        found: list[tuple[str, dict[str, Any]]] = deserialize(read_regular(path, MAX_BYTES))  # type: ignore[no-untyped-call]  # safetensors has no hints for it
    except (SafetensorError, OSError, ValueError) as fault:
        raise AdapterError(f"{path}: damaged safetensors file ({fault}); fetch it again") from fault
    tensors: dict[str, Float32] = {}
    for name, tensor in found:
        _check_dtype(path, name, tensor["dtype"])
        raw = np.frombuffer(tensor["data"], _DTYPES[tensor["dtype"]])
        wide = raw.astype(np.uint32) << 16 if tensor["dtype"] == "BF16" else raw
        array = wide.view(np.float32) if tensor["dtype"] == "BF16" else wide.astype(np.float32)
        if not np.isfinite(array).all():
            raise AdapterError(f"{path}: {name} holds NaN or infinity; the adapter is of no use")
        tensors[name] = array.reshape(tensor["shape"])
    return tensors


def _check_dtype(path: Path, name: str, dtype: str) -> None:
    if dtype not in _DTYPES:
        raise AdapterError(f"{path}: {name} is of dtype {dtype}; adapters are of float32, float16 or bfloat16")
