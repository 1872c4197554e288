"""Converts adapter folders between the two layouts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import save_file

from runtime.adapters.adapter import LowRank
from runtime.adapters.folder import read_header
from runtime.adapters.layouts import (
    MLX_ENDINGS,
    MLX_WEIGHTS,
    PEFT_ENDINGS,
    PEFT_PREFIX,
    PEFT_WEIGHTS,
    AdapterHeader,
)
from runtime.errors import AdapterError
from runtime.loading.paths import ADAPTER_CONFIG
from runtime.records import Float32

Layout = Literal["peft", "mlx"]


def convert_adapter(source: str | Path, target: Path, layout: Layout) -> Path:
    """Writes an adapter in another layout: the same numbers, transposed and renamed.

    Both backends read both layouts; this is for peft and mlx-lm. mlx-lm has one rank and one scale for all modules: products
    of smaller rank are padded with zeros, differing scalings are multiplied into B.

    Args:
        source: An adapter folder, or an id on the shelf.
        target: The folder to create; missing or empty.
        layout: "peft" or "mlx".

    Returns:
        `target`.

    Raises:
        AdapterError: The source cannot be read, the target is not empty, or mlx-lm cannot express the adapter (activated).
    """
    header = read_header(source)
    if layout not in ("peft", "mlx"):
        raise AdapterError(f"an adapter's layout is 'peft' or 'mlx', not {layout!r}")
    if layout == "mlx" and header.invocation:
        raise AdapterError(
            f"{header.folder}: an activated adapter, which mlx-lm cannot express; both backends read it as it is"
        )
    modules = header.read().modules
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise AdapterError(f"{target} exists already; give a folder that does not")
    target.mkdir(parents=True, exist_ok=True)
    tensors, config = _as_mlx(header, modules) if layout == "mlx" else _as_peft(header, modules)
    weights = MLX_WEIGHTS if layout == "mlx" else PEFT_WEIGHTS
    save_file(tensors, target / weights, metadata={"format": "mlx" if layout == "mlx" else "pt"})
    (target / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2), "utf-8")
    return target


def _as_mlx(header: AdapterHeader, modules: Mapping[str, LowRank]) -> tuple[dict[str, Float32], dict[str, Any]]:
    rank = max(pair.rank for pair in modules.values())
    scale = next(iter(modules.values())).scaling or 1.0
    tensors: dict[str, Float32] = {}
    for path, pair in modules.items():
        rest = ((0, rank - pair.rank), (0, 0))
        tensors[path + MLX_ENDINGS[0]] = np.ascontiguousarray(np.pad(pair.a, rest).T)
        b = np.pad(pair.b.T, rest) * np.float32(pair.scaling / scale)
        tensors[path + MLX_ENDINGS[1]] = np.ascontiguousarray(b)  # safetensors writes memory as it is
    parameters = {"rank": rank, "scale": scale, "dropout": 0.0, "keys": sorted(modules)}
    return tensors, {"fine_tune_type": "lora", "model": header.base, "num_layers": -1, "lora_parameters": parameters}


def _as_peft(header: AdapterHeader, modules: Mapping[str, LowRank]) -> tuple[dict[str, Float32], dict[str, Any]]:
    tensors: dict[str, Float32] = {}
    for path, pair in modules.items():
        for name, part in zip(PEFT_ENDINGS, (pair.a, pair.b), strict=True):
            tensors[PEFT_PREFIX + path + name] = np.ascontiguousarray(part)
    first = next(iter(modules.values()))
    alphas = {path: pair.scaling * pair.rank for path, pair in modules.items()}
    alpha = first.scaling * first.rank
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": header.base or None,
        "inference_mode": True,
        "target_modules": sorted(modules),
        "bias": "none",
        "lora_dropout": 0.0,
        "r": first.rank,
        "lora_alpha": alpha,
        "rank_pattern": {re.escape(path): pair.rank for path, pair in modules.items() if pair.rank != first.rank},
        "alpha_pattern": {re.escape(path): own for path, own in alphas.items() if own != alpha},
        "alora_invocation_tokens": list(header.invocation) or None,
    }
    return tensors, config
