"""Headers of safetensors files, checked before any library reads weights."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from resources.files import open_regular
from runtime.errors import ModelLoadError
from runtime.loading.config import quantised_with

MAX_HEADER_BYTES = 32 << 20  # headers of the largest models have a few MB
MAX_NAME, MAX_DIMENSIONS, MAX_SIDE = 512, 8, 1 << 40
# Accepted types of weights; packed weights are integers, with scales in further tensors
DTYPES = frozenset(
    {
        *("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0"),
        *("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"),
    }
)


def check_safetensors(path: Path) -> int:
    """Checks the header with safetensors' strict reader (mlx's own accepts malformed files), then each tensor in it.

    Returns:
        The number of tensors.

    Raises:
        ModelLoadError: The file is damaged or has no tensors, or a tensor has an unusable name, type or shape.
    """
    try:
        header = _header(path)
        with safe_open(path, framework="np"):
            entries = json.loads(header, object_pairs_hook=_once)
    except (SafetensorError, OSError, ValueError, RecursionError) as fault:
        raise ModelLoadError(f"{path}: damaged safetensors file ({str(fault)[:200]}); fetch it again") from fault
    entries.pop("__metadata__", None)
    if not entries:
        raise ModelLoadError(f"{path}: holds no tensors; fetch it again")
    for name, entry in entries.items():
        _check_tensor(path, name, entry)
    return len(entries)


def _header(path: Path) -> bytes:
    """The JSON header, which follows its length in eight bytes."""
    with open_regular(path) as stream:
        size = int.from_bytes(stream.read(8), "little")
        if size > MAX_HEADER_BYTES:
            raise ValueError(f"its header has {size:,} bytes; at most {MAX_HEADER_BYTES:,} are read")
        header = stream.read(size)
    if len(header) < size:
        raise ValueError(f"its header has {size:,} bytes, the file {len(header):,}")
    return header


def _check_tensor(path: Path, name: str, entry: dict[str, Any]) -> None:
    """Checks name, type and shape of a tensor; the strict reader has checked its place in the file."""
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise ModelLoadError(f"{path}: {name[:60]!r} is no tensor's name: damaged safetensors file; fetch it again")
    if entry["dtype"] not in DTYPES:
        raise ModelLoadError(
            f"{path}: the tensor {name} is {entry['dtype']}, which cannot be read; choose another version of the model"
        )
    shape = entry["shape"]
    if len(shape) > MAX_DIMENSIONS or any(side > MAX_SIDE for side in shape):
        raise ModelLoadError(
            f"{path}: the tensor {name} has the shape {str(shape)[:60]}: damaged safetensors file; fetch it again"
        )


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Builds an object and refuses duplicate keys, because readers differ in which duplicate they use."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key[:60]!r} stands there twice")
        found[key] = value
    return found


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Size of a model's weights."""

    parameters: int  # numbers in all; each packed number counts as one
    bytes: int  # of all tensors together
    dtype: str  # the type of most bytes, as safetensors spells it ("F32", "BF16", "U32")


def weights_of(files: Iterable[Path], config: Mapping[str, Any]) -> WeightSizes:
    """Counts the tensors of safetensors files by their headers.

    Raises:
        ModelLoadError: A file is damaged.
    """
    found = config.get("quantization") if quantised_with(config)[0] == "mlx" else None
    packed = found if isinstance(found, Mapping) else None
    parameters, sizes = 0, Counter[str]()
    for path in files:
        try:
            for name, (dtype, shape) in tensor_forms([path]).items():
                count = math.prod(shape)
                sizes[dtype] += count * _width(dtype)
                if packed is None:
                    parameters += count
                elif name.endswith(".scales"):  # one scale per group of packed numbers, whatever their width
                    parameters += count * _group(packed, name.removesuffix(".scales"))
                elif dtype != "U32" and not name.endswith(".biases"):
                    parameters += count
        except (SafetensorError, OSError, ValueError) as fault:
            raise ModelLoadError(f"{path}: damaged safetensors file ({fault}); fetch it again") from fault
    most = max(sizes, key=sizes.__getitem__, default="")
    return WeightSizes(parameters, sum(sizes.values()), most)


def tensor_forms(files: Iterable[Path]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype, as safetensors spells it, and shape of each tensor of checked files."""
    found = {}
    for path in files:
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118  # it is no mapping and has only this method
                part = file.get_slice(name)
                found[name] = str(part.get_dtype()), tuple(part.get_shape())
    return found


def _group(quantization: Mapping[str, Any], layer: str) -> int:
    """Numbers of a layer that share a scale."""
    own = quantization.get(layer)
    size = (own if isinstance(own, Mapping) and "group_size" in own else quantization).get("group_size")
    return size if isinstance(size, int) and size > 0 else 1


def _width(dtype: str) -> int:
    """Bytes of a number; the digits in a dtype's name are its bits ("F8_E4M3" has 8)."""
    digits = "".join(char for char in dtype.partition("_")[0] if char.isdigit())
    return max(int(digits) // 8, 1) if digits else 1
