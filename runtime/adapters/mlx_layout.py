"""mlx-lm's layout: adapter_config.json with lora_parameters beside adapters.safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.adapters.layout import AdapterHeader, Pair, number, pairs_of
from runtime.adapters.tensors import tensor_shapes
from runtime.errors import AdapterError

WEIGHTS = "adapters.safetensors"
ENDINGS = (".lora_a", ".lora_b")


def read_header(folder: Path, config: Mapping[str, Any]) -> AdapterHeader:
    """What the folder holds.

    Raises:
        AdapterError: Fine-tuned otherwise than by LoRA, or damaged.
    """
    where, kind = folder / "adapter_config.json", config.get("fine_tune_type", "lora")
    if kind != "lora":
        raise AdapterError(f"{where}: fine_tune_type is {kind!r}; only 'lora' is supported")
    parameters = config.get("lora_parameters")
    if not isinstance(parameters, Mapping) or "scale" not in parameters:
        raise AdapterError(f"{where}: lora_parameters has no scale; mlx-lm writes rank and scale there")
    scale = number(folder, "lora_parameters.scale", parameters["scale"])
    weights = folder / WEIGHTS
    found = pairs_of(weights, tensor_shapes(weights), ENDINGS, transposed=True)
    return AdapterHeader(
        folder=folder,
        weights=weights,
        layout="mlx",
        base=str(config.get("model") or ""),
        invocation=(),
        modules={path: Pair(a, b, True, rank, shape, scale) for path, (a, b, rank, shape) in found.items()},
    )
