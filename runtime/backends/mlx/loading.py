"""Loads a model folder, or copies a ready model, as an mlx-lm model with corrections: no foreign code."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model as load_mlx_model

from runtime.backends import facts
from runtime.backends.mlx.corrections import class_lookup, correct, corrected_config, without_small_groups
from runtime.backends.mlx.memory import DeviceLimits, free_beside
from runtime.errors import ModelLoadError
from runtime.loading.config import quantisation_words, sizes
from runtime.loading.model_folder import ModelFolder, library_faults
from runtime.loading.progress import reporting_progress
from runtime.loading.rope import LENGTH_LIMITS, check_ropes, rope_types
from runtime.options.load import LoadOptions

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """An mlx-lm model and facts from its source."""

    model: Any
    config: Mapping[str, Any]
    name: str
    dtype: mx.Dtype
    weights_digest: str
    text_digest: str
    has_template: bool
    quantisation: str | None
    limits: DeviceLimits  # in force
    free: int  # bytes for KV from which the limits were computed
    folder: bool = True  # False: a copy of the caller's ready model, over the same arrays


def load_model(source: ModelFolder | tuple[Any, Any], options: LoadOptions) -> LoadedModel:
    """Loads and evaluates the model.

    Raises:
        ModelLoadError: No such device, or an architecture that mlx-lm does not have.
    """
    os.environ.pop("MLX_LM_TRUST_REMOTE_CODE", None)
    _set_device(options.device)
    if isinstance(source, tuple):
        return _ready_model(*source, options)
    with library_faults(source, "mlx-lm"):
        config = corrected_config(source)
        try:
            model, config = load_mlx_model(
                source.path, model_config=without_small_groups(config), lazy=True, **class_lookup(config)
            )
        except ValueError as fault:
            raise _misfit(source, config, str(fault)) or fault from fault
    dtype = _cast(model, options.dtype)
    limits, free = _limited(model, options)
    correct(model, config)
    quantisation = quantisation_words(config)
    if quantisation is not None:
        log.info("%s is quantised: %s", source.name, quantisation)
    return LoadedModel(
        model=model,
        config=config,
        name=source.name,
        dtype=dtype,
        weights_digest=source.weights_digest,
        text_digest=source.text_digest,
        has_template=source.chat_template is not None,
        quantisation=quantisation,
        limits=limits,
        free=free,
    )


def full_config(loaded: LoadedModel) -> dict[str, Any]:
    """The configuration with the defaults of mlx-lm's class."""
    return {**loaded.config, **{key: value for key, value in vars(loaded.model.args).items() if not key.startswith("_")}}


def _misfit(source: ModelFolder, config: Mapping[str, Any], words: str) -> ModelLoadError | None:
    """Our error for mlx-lm's message about weights that do not fit; None for other messages."""
    shape = re.match(r"Expected shape \((.*?)\) but received shape \((.*?)\) for parameter (\S+)", words)
    count = re.match(r"(Missing|Received) ([\d,]+) parameters(?: not in model)?:\s*(\S+?)[,.]?\s", words + " ")
    if shape:
        said = f"the tensor {shape[3]} is ({shape[2]}) in the weights and ({shape[1]}) by config.json"
    elif count:
        more = f" (and {int(count[2].replace(',', '')) - 1:,} more)" if count[2] != "1" else ""
        lack = count[1] == "Missing"
        said = f"its weights lack {count[3]}{more}" if lack else f"its weights hold {count[3]}{more}, which nothing uses"
    else:
        return None
    return ModelLoadError(f"{source.path}: {said} (config.json: {sizes(config)}); fetch the model again")


def random_copy(loaded: LoadedModel, config: Mapping[str, Any]) -> LoadedModel:
    """The same architecture with random weights in float32, in the sizes of a configuration in the form of `full_config`."""
    model = type(loaded.model)(type(loaded.model.args).from_dict(dict(config)))
    rng = np.random.default_rng(20_260_103)
    for module in model.modules():
        if isinstance(module, Linear | Embedding):  # larger than the library's, so that a wrong position shows
            scale = 1.6 / module.weight.shape[-1] ** 0.5
            module.weight = mx.array(rng.normal(0, scale, module.weight.shape).astype(np.float32))
    model.set_dtype(mx.float32)
    correct(model, config)
    return replace(loaded, model=model, config=config, dtype=mx.float32, quantisation=None)


def check_fits(source: ModelFolder | tuple[Any, Any], options: LoadOptions) -> tuple[str, ...]:
    """Refuses the options `offload` and `weights`, which MLX does not have, and changes of a ready model.

    Returns:
        Warnings, where they were set for all models, and the model fits without offload.

    Raises:
        UnsupportedFeatureError: One was set for this model.
    """
    found: list[str] = []
    if options.weights != "auto":
        form = f"weights={options.weights!r}"
        why = f"{form} is for hf on a processor; MLX runs quantised folders: `elsewise models convert SOURCE`"
        found.append(facts.ignored_option(options, "weights", why))
    if options.offload != "none":
        weights = 0 if isinstance(source, tuple) else sum(path.stat().st_size for path in source.weights)
        free = free_beside(0)
        why = (
            f"offload='disk': MLX keeps all weights in memory; this model's take {weights:,} bytes as stored, and "
            f"{free:,} are free here: use backend='hf', or import a quantised model"
        )
        soft = options if 2 * weights < free else replace(options, soft_options=())  # float32 takes twice the bytes of 16 bits
        found.append(facts.ignored_option(soft, "offload", why))
    if isinstance(source, tuple):
        found += facts.ignored_by_ready_model(options, dtype=str(_dtype_of(source[0])).rpartition(".")[2])
    return tuple(found)


def _limited(model: Any, options: LoadOptions) -> tuple[DeviceLimits, int]:
    """Evaluates the weights under the limits that are in force as long as the model is loaded."""
    weights = sum(int(a.nbytes) for _, a in flat_parameters(model))  # known before they are read
    limits, free = DeviceLimits(), free_beside(weights)
    limits.apply(weights, facts.kv_budget(options, free))
    try:
        for _, array in reporting_progress(flat_parameters(model)):
            mx.eval(array)  # reads the files: until now the arrays were lazy
    except BaseException:
        limits.reset()
        raise
    return limits, free


def _set_device(wanted: str) -> None:
    """Sets MLX's default device for the process; "auto" is the GPU, if there is one."""
    if wanted == "cpu":
        mx.set_default_device(mx.cpu)
    elif wanted in ("mps", "gpu"):
        if not mx.metal.is_available():
            raise ModelLoadError(f"device {wanted!r} needs Metal, which is not here; use device='cpu'")
        mx.set_default_device(mx.gpu)
    elif wanted != "auto":
        raise ModelLoadError(f"device {wanted!r} is not one MLX has: use auto, cpu or mps")


def _cast(model: Any, wanted: str) -> mx.Dtype:
    """Casts the weights. Auto: float32 on the CPU, where 16 bits are far slower; the stored dtype on a GPU."""
    if wanted != "auto":
        model.set_dtype(getattr(mx, wanted))
    elif mx.default_device() == mx.cpu:
        model.set_dtype(mx.float32)
    return _dtype_of(model)


def _dtype_of(model: Any) -> mx.Dtype:
    """The dtype of the norms and scales, which is that of the activations."""
    floats = [a for _, a in flat_parameters(model) if mx.issubdtype(a.dtype, mx.floating)]
    return next((a.dtype for a in floats if a.ndim == 1), floats[0].dtype)


def flat_parameters(model: Any) -> list[tuple[str, mx.array]]:
    """Every weight by its dotted name, sorted."""
    flat: Any = tree_flatten(model.parameters())
    return sorted(flat, key=lambda pair: pair[0])


def count_parameters(model: Any) -> int:
    """The number of parameters; of a quantised matrix the unpacked ones, without scales and biases."""
    total = sum(int(array.size) for _, array in flat_parameters(model))
    for module in model.modules():
        if "scales" in module:
            held = [module[name].size for name in ("weight", "scales", "biases") if name in module]
            total += module.weight.size * 32 // module.bits - sum(held)
    return total


def _ready_model(model: Any, tokenizer: Any, options: LoadOptions) -> LoadedModel:
    config = {k: v for k, v in vars(model.args).items() if not k.startswith("_")}
    check_ropes(config, "mlx", type(model).__name__)
    changing = next((kind for kind in rope_types(config) if kind in LENGTH_LIMITS), None)
    if changing is not None:
        raise ModelLoadError(f"rope type {changing!r} of a ready mlx-lm model is not that of transformers; load its folder")
    model = _own_modules(model, {})
    limits, free = _limited(model, options)
    correct(model, config)
    found = hashlib.sha256(facts.digest(config).encode())
    for name, array in flat_parameters(model):
        found.update(f"{name}{array.shape}{array.dtype}".encode())
        found.update(np.array(mx.contiguous(array).view(mx.uint8)).tobytes())
    return LoadedModel(
        model=model,
        config=config,
        name=str(config.get("model_type", type(model).__name__)),
        dtype=_dtype_of(model),
        weights_digest=found.hexdigest(),
        text_digest=facts.text_digest_of(tokenizer),
        has_template=bool(getattr(tokenizer, "chat_template", None)),
        quantisation=None,
        limits=limits,
        free=free,
        folder=False,
    )


def _own_modules(held: Any, copied: dict[int, Any]) -> Any:
    """Copies modules, but not their arrays: the copies may be changed without effect on the caller's model.

    Args:
        held: A module, or anything that one holds.
        copied: The copies so far, by the original's id: a module may be held twice.
    """
    if isinstance(held, Module):
        if id(held) not in copied:
            made = copied[id(held)] = copy(held)
            for name, one in held.items():
                made[name] = _own_modules(one, copied)
        return copied[id(held)]
    if type(held) is dict:
        return {name: _own_modules(one, copied) for name, one in held.items()}
    if type(held) in (list, tuple):
        return type(held)(_own_modules(one, copied) for one in held)
    return held
