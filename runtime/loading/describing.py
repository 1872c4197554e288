"""What a model folder says of itself in its config and in the headers of its weights; no weights are read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from runtime.backends.facts import CONTEXT_KEYS
from runtime.errors import ModelLoadError
from runtime.loading.architectures import libraries_knowing
from runtime.loading.check import quantised_with
from runtime.loading.rope import border, proven


@dataclass(frozen=True, slots=True)
class Weights:
    """What the headers of safetensors files say.

    Attributes:
        parameters: Numbers in all; those packed into words are counted one by one.
        bytes: Of the tensors.
        dtype: That most bytes have, as safetensors spells it ("F32", "BF16", "U32").
    """

    parameters: int
    bytes: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Description:
    """A model as its configuration describes it.

    Attributes:
        architecture: ``model_type``.
        context: Tokens, where it says how many.
        quantisation: "4 bit (mlx)", the method's name for a foreign one, None for plain weights.
        backends: Which of "hf" and "mlx" can run it, as far as the architecture, its rope type and the weights go.
    """

    architecture: str
    context: int | None
    quantisation: str | None
    backends: tuple[str, ...]


def describe(config: Mapping[str, Any]) -> Description:
    """What a ``config.json`` describes; nothing in it is believed to be of the right type."""
    kind = str(config.get("model_type", ""))
    method, bits = quantised_with(config)
    libraries = libraries_knowing(kind)
    backends = [name for name, library in (("hf", "transformers"), ("mlx", "mlx_lm")) if library in libraries]
    if method == "mlx":
        backends = [name for name in backends if name == "mlx"]
    elif method is not None:
        backends = []
    backends = [name for name in backends if proven(config, name)]
    context = context_of(config)
    named = f"{bits} bit (mlx)" if method == "mlx" else method
    return Description(kind, context, named, tuple(backends))


def weights_of(files: Iterable[Path], config: Mapping[str, Any]) -> Weights:
    """Counts the tensors of safetensors files by their headers.

    Raises:
        ModelLoadError: A file is damaged.
    """
    found = config.get("quantization") if quantised_with(config)[0] == "mlx" else None
    packed = found if isinstance(found, Mapping) else None
    parameters, sizes = 0, Counter[str]()
    for path in files:
        try:
            with safe_open(path, framework="np") as file:
                for name in file.keys():  # noqa: SIM118  # no mapping: it only has this method
                    part = file.get_slice(name)
                    dtype, count = str(part.get_dtype()), math.prod(part.get_shape())
                    sizes[dtype] += count * _width(dtype)
                    if packed is None:
                        parameters += count
                    elif name.endswith(".scales"):  # one for each group of packed numbers, however many bits those have
                        parameters += count * _group(packed, name.removesuffix(".scales"))
                    elif dtype != "U32" and not name.endswith(".biases"):
                        parameters += count
        except (SafetensorError, OSError, ValueError) as fault:
            raise ModelLoadError(f"{path}: damaged safetensors file ({fault}); fetch it again") from fault
    most = max(sizes, key=sizes.__getitem__, default="")
    return Weights(parameters, sum(sizes.values()), most)


def _group(quantization: Mapping[str, Any], layer: str) -> int:
    """How many numbers of a layer share a scale."""
    own = quantization.get(layer)
    size = (own if isinstance(own, Mapping) and "group_size" in own else quantization).get("group_size")
    return size if isinstance(size, int) and size > 0 else 1


def _width(dtype: str) -> int:
    """Bytes of one number: the digits of the dtype's name are its bits ("F8_E4M3" has 8)."""
    digits = "".join(char for char in dtype.partition("_")[0] if char.isdigit())
    return max(int(digits) // 8, 1) if digits else 1


def context_of(config: Mapping[str, Any]) -> int | None:
    """Tokens that a model was made for, as `runtime.backends.facts.whole_context`, where its configuration says so."""
    inner = config.get("text_config")
    texts = (config, inner) if isinstance(inner, Mapping) else (config,)
    found = (text.get(key) for text in texts for key in CONTEXT_KEYS)
    named = next((value for value in found if isinstance(value, int) and not isinstance(value, bool) and value > 0), None)
    edge = border(config)
    return named if edge is None or named is None else min(named, edge[1])
