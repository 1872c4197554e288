"""Writes a model's tensors to a safetensors file one at a time; the library's own writer needs all of them in memory."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from runtime.errors import ModelLoadError
from runtime.loading.config import MLX_GROUPS
from runtime.loading.gguf.decoder import Tensor, unpermuted
from runtime.loading.gguf.header import GgufHeader
from runtime.loading.gguf.quants import Form, affine, dequantise, form_of

_WORD_BITS = 32
_Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class SafetensorsEntry:
    """One array of the safetensors file, with four bytes per element: float32, or words of packed numbers."""

    name: str
    dtype: str  # as safetensors spells it
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * 4


def kept_form(header: GgufHeader, tensor: Tensor) -> Form | None:
    """The form in which a tensor can stay quantised; None where it becomes float32."""
    return form_of(header.tensors[tensor.source].format.name) if len(tensor.shape) == 2 else None


def parts_of(header: GgufHeader, tensor: Tensor, *, quantised: bool) -> list[SafetensorsEntry]:
    """The arrays written for a tensor: float32, or words, scales and biases where it stays quantised."""
    form = kept_form(header, tensor) if quantised else None
    if form is None:
        return [SafetensorsEntry(tensor.target, "F32", tensor.shape)]
    rows, columns = tensor.shape
    stem, groups = tensor.target.removesuffix(".weight"), (rows, columns // form.group)
    return [
        SafetensorsEntry(tensor.target, "U32", (rows, columns * form.bits // _WORD_BITS)),
        SafetensorsEntry(f"{stem}.scales", "F32", groups),
        SafetensorsEntry(f"{stem}.biases", "F32", groups),
    ]


def quantization_of(header: GgufHeader, tensors: Sequence[Tensor]) -> Mapping[str, Any]:
    """``quantization`` of config.json, as mlx_lm reads it: the form of most layers, and each exception.

    Layers with groups that MLX does not have are always listed, with their shapes. Empty where no tensor stays quantised.
    """
    found = {tensor: kept_form(header, tensor) for tensor in tensors if len(tensor.shape) == 2}
    layers = Counter(form for form in found.values() if form is not None)
    if not layers:
        return {}
    most = max(layers, key=lambda form: (form.group in MLX_GROUPS, layers[form]))
    entries: dict[str, Any] = {"group_size": most.group, "bits": most.bits}
    for tensor, form in found.items():
        layer = tensor.target.removesuffix(".weight")
        if form is None:
            entries[layer] = False
        elif form.group not in MLX_GROUPS:
            entries[layer] = {"group_size": form.group, "bits": form.bits, "shape": tensor.shape}
        elif form != most:
            entries[layer] = {"group_size": form.group, "bits": form.bits}
    return entries


def write_weights(
    path: Path, header: GgufHeader, tensors: Sequence[Tensor], report: Callable[[int, int], None], *, quantised: bool
) -> None:
    """Writes the file, durably.

    Args:
        path: The new file.
        header: Header of the GGUF file.
        tensors: In the order of writing.
        report: Called with the bytes of weights written so far, and in all.
        quantised: Whether quantised matrices stay so.

    Raises:
        ModelLoadError: A tensor has NaN or infinity.
    """
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    total = 0
    for tensor in tensors:
        for part in parts_of(header, tensor, quantised=quantised):
            entries[part.name] = {"dtype": part.dtype, "shape": part.shape, "data_offsets": [total, total + part.nbytes]}
            total += part.nbytes
    head = json.dumps(entries).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as stream:
        stream.write(len(head).to_bytes(8, "little") + head)
        done = 0
        for tensor in tensors:
            report(done, total)
            for array in _arrays(header, tensor, quantised=quantised):
                np.ascontiguousarray(array).tofile(stream)
                done += array.nbytes
        sync(stream)
    report(total, total)


def _arrays(header: GgufHeader, tensor: Tensor, *, quantised: bool) -> list[_Array]:
    """The arrays that `parts_of` describes, in the same order."""
    info = header.tensors[tensor.source]
    data = np.asarray(np.memmap(header.path, np.uint8, "r", info.offset, (info.nbytes,)))
    arrays: list[_Array] = [*affine(info, data)] if quantised and kept_form(header, tensor) else [dequantise(info, data)]
    if not all(np.isfinite(array).all() for array in arrays if array.dtype == np.float32):
        raise ModelLoadError(f"{header.path}: the tensor {tensor.source} holds NaN or infinity: damaged; fetch the file again")
    if tensor.excess:  # norms, which are not quantised
        arrays = [array - np.float32(tensor.excess) for array in arrays]
    return [unpermuted(array, tensor.permuted_heads) for array in arrays] if tensor.permuted_heads else arrays


def sync(stream: BinaryIO) -> None:
    """Flushes a stream to the disk."""
    stream.flush()
    os.fsync(stream.fileno())
