"""Tensors of a safetensors file without any tensor library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize, safe_open

from resources.files import read_regular
from runtime.errors import AdapterError
from runtime.records import Float32

MAX_BYTES = 64 << 30  # read whole; adapters of the largest models have a few GB
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes, from the header alone.

    Raises:
        AdapterError: Damaged, empty, or a tensor that is not of floating-point numbers.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  # a file is no mapping
            for name, one in slices.items():
                _check_dtype(path, name, one.get_dtype())
            shapes = {name: tuple(one.get_shape()) for name, one in slices.items()}
    except (SafetensorError, OSError, ValueError) as fault:
        raise AdapterError(f"{path}: damaged safetensors file ({fault}); fetch it again") from fault
    if not shapes:
        raise AdapterError(f"{path}: holds no tensors; fetch it again")
    return shapes


def read_tensors(path: Path) -> dict[str, Float32]:
    """Every tensor, in float32.

    Raises:
        AdapterError: Damaged, or a tensor with NaN or infinity (it is named).
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
