"""An adapter as plain numbers, and the tensors of a safetensors file without any tensor library."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError, deserialize, safe_open

from resources.files import read_regular
from runtime.errors import AdapterError
from runtime.records import Float32

Kind = Literal["lora", "alora"]
ModuleShape = tuple[int, int]  # numbers in, numbers out


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """What one module of the model gets: ``scaling * b @ (a @ x)``.

    Attributes:
        a: ``(rank, in) float32``.
        b: ``(out, rank) float32``.
        scaling: alpha / rank, or as the layout has it.
        base: ``(out, in) float32``: the module's own weights, where the file has a copy of them (peft keeps one of a head).
            A backend refuses the adapter if they are not the model's.
    """

    a: Float32
    b: Float32
    scaling: float
    base: Float32 | None = None

    @property
    def rank(self) -> int:
        """Of the product."""
        return len(self.a)

    @property
    def shape(self) -> ModuleShape:
        """Of the module it is made for."""
        return self.a.shape[1], self.b.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """The weights of an adapter by the path of the module they belong to.

    Attributes:
        modules: Low-rank products by module path.
        digest: SHA-256 of the numbers: equal for equal adapters, whatever file they came from.
    """

    modules: Mapping[str, LowRank]
    digest: str

    @classmethod
    def of(cls, modules: Mapping[str, LowRank]) -> Adapter:
        """With the digest of its numbers."""
        return cls(modules, digest_of(modules))


def digest_of(modules: Mapping[str, LowRank]) -> str:
    """SHA-256 hex over module paths, shapes, scalings and numbers."""
    found = hashlib.sha256()
    for path in sorted(modules):
        pair = modules[path]
        found.update(f"{path}{pair.a.shape}{pair.b.shape}{pair.scaling!r}".encode())
        found.update(np.ascontiguousarray(pair.a).data)
        found.update(np.ascontiguousarray(pair.b).data)
    return found.hexdigest()


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
