"""Cached tokens as torch tensors: copied from a pack, stored in the trie and on disk.

Cached KV has the packs' dtype, a narrower floating-point dtype, or is quantised. Rows are coded token by token, so that an edge
can be split at any token without coding it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runtime.backends.facts import KvFormat, group_width
from runtime.backends.hf.cache import Tensors, TorchPack, to_index
from runtime.backends.packs.tree import Int64
from runtime.backends.stored import LayerPayload, Shape, StateShapes, Stored, grouped, restored
from runtime.errors import SnapshotFormatError

Parts = tuple[torch.Tensor, ...]  # of one buffer; tokens along the last axis but one


@dataclass(frozen=True, slots=True)
class Plain:
    """Rows in a floating-point dtype."""

    dtype: torch.dtype

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Dtype of each part."""
        return (self.dtype,)

    def row_bytes(self, width: int) -> int:
        """Bytes of one coded row of `width` numbers."""
        return int(width * self.dtype.itemsize)

    def encode(self, rows: torch.Tensor) -> Parts:
        """From ``(heads, n, width)``; the only part may be a view."""
        return (rows.to(self.dtype),)

    def decode(self, parts: Parts, width: int) -> torch.Tensor:  # noqa: ARG002  # the codecs' common signature
        """The inverse of `encode`."""
        return parts[0]


@dataclass(frozen=True, slots=True)
class Affine:
    """Integers of 8 or 4 bits for each group along the width, with a step and a minimum in float32."""

    bits: int

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Dtypes of the codes, the steps and the minima."""
        return torch.uint8, torch.float32, torch.float32

    def row_bytes(self, width: int) -> int:
        """Bytes of one coded row of `width` numbers."""
        return width * self.bits // 8 + width // group_width(width) * 8

    def encode(self, rows: torch.Tensor) -> Parts:
        """From ``(heads, n, width)``: codes ``(heads, n, width * bits / 8)``, steps and minima ``(heads, n, groups)``."""
        grouped = rows.float().unflatten(-1, (-1, group_width(rows.shape[-1])))  # (heads, n, groups, group)
        low, high = grouped.aminmax(dim=-1)
        step = (high - low) / (2**self.bits - 1)
        exact = (grouped - low.unsqueeze(-1)) / step.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(-1)
        codes = exact.round().to(torch.uint8).flatten(-2)
        if self.bits == 4:
            codes = codes[..., ::2] | codes[..., 1::2] << 4
        return codes, step, low

    def decode(self, parts: Parts, width: int) -> torch.Tensor:
        """``(heads, n, width) float32``."""
        codes, step, low = parts
        if self.bits == 4:
            codes = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)
        grouped = codes.unflatten(-1, (-1, group_width(width))) * step.unsqueeze(-1) + low.unsqueeze(-1)
        return grouped.flatten(-2)


Codec = Plain | Affine


def codec_of(kv: KvFormat) -> Codec:
    """The codec for a format of cached KV."""
    return Plain(getattr(torch, kv.name)) if kv.bits is None else Affine(kv.bits)


class TorchPayload(LayerPayload[torch.Tensor]):
    """KV of `n` consecutive tokens as torch tensors."""

    __slots__ = ()

    def split(self, n: int) -> tuple[TorchPayload, TorchPayload]:
        """The first `n` tokens and the rest, copied; the recurrent state belongs to the rest's end."""
        return self._part(slice(0, n), None), self._part(slice(n, self.n), self.state)

    def _part(self, part: slice, state: Tensors | None) -> TorchPayload:
        keys, values = (tuple(t[:, :, part].clone() for t in tensors) for tensors in (self.keys, self.values))
        return TorchPayload(part.stop - part.start, keys, values, state)

    @staticmethod
    def plain(array: torch.Tensor) -> npt.NDArray[np.generic]:
        """The tensor as a contiguous numpy array; payloads never change, so a whole CPU tensor is not copied."""
        whole = array.nbytes == array.untyped_storage().nbytes()  # a part would keep the whole storage alive
        tensor = array.detach().to("cpu", copy=not whole, memory_format=torch.contiguous_format)
        found: npt.NDArray[np.generic] = tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()
        return found


def take(pack: TorchPack, slots: Int64, state: Tensors | None, codec: Codec, device: torch.device) -> TorchPayload:
    """An immutable copy of a chain of slots, coded layer by layer."""
    index = to_index(slots, device)
    keys: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    for group in grouped(pack.attention, pack.shapes):
        keys += _stacked([layer.keys for layer in group], index, codec)
        values += _stacked([layer.values for layer in group], index, codec)
    return TorchPayload(len(slots), tuple(keys), tuple(values), state)


def take_many(pack: TorchPack, chains: Sequence[Int64], codec: Codec, device: torch.device) -> list[TorchPayload]:
    """Copies of several chains without recurrent state: gathered at once, then split."""
    whole = take(pack, np.concatenate(chains), None, codec, device)
    lengths = [len(slots) for slots in chains]
    keys, values = (zip(*(t.split(lengths, 2) for t in tensors), strict=True) for tensors in (whole.keys, whole.values))
    return [
        TorchPayload(n, tuple(part.clone() for part in key), tuple(part.clone() for part in value), None)
        for n, key, value in zip(lengths, keys, values, strict=True)
    ]


def put(pack: TorchPack, payload: TorchPayload, start: int, skip: int, codec: Codec) -> None:
    """Writes a payload without its first `skip` tokens into the buffers at `start`."""
    end, parts = start + payload.n - skip, len(codec.dtypes)
    for at, group in enumerate(grouped(pack.attention, pack.shapes)):
        keys = payload.keys[at * parts : (at + 1) * parts]
        values = payload.values[at * parts : (at + 1) * parts]
        for i, layer in enumerate(group):
            if end > layer.keys.shape[2]:
                layer.grow(end)
            layer.keys[0, :, start:end] = codec.decode(tuple(p[i, :, skip:] for p in keys), layer.keys.shape[3])
            layer.values[0, :, start:end] = codec.decode(tuple(p[i, :, skip:] for p in values), layer.values.shape[3])


def restore(
    arrays: Stored,
    codec: Codec,
    shapes: Sequence[Shape],
    state_shapes: StateShapes | None,
    state_dtype: torch.dtype,
    device: torch.device,
) -> TorchPayload:
    """The inverse of `export`.

    Args:
        arrays: Exported arrays, not checked yet.
        codec: The codec of the stored keys and values.
        shapes: Shapes of the model's attention layers.
        state_shapes: Shapes of its recurrent state; None if they are not known.
        state_dtype: The dtype of most arrays of the state.
        device: The payload's device.

    Raises:
        SnapshotFormatError: Arrays that are missing, of another shape or dtype, or not finite.
    """

    def widths(n: int) -> list[int]:
        return [part.shape[-1] for part in codec.encode(torch.zeros(1, 1, n))]

    own = partial(_tensor, device=device)
    payload = TorchPayload(*restored(arrays, own, codec.dtypes, widths, shapes, state_dtype, state_shapes))
    if not all(_finite(t) for t in (*payload.keys, *payload.values, *(payload.state or ())) if t is not None):
        raise SnapshotFormatError("stored KV holds numbers that are not finite")
    return payload


def _finite(tensor: torch.Tensor) -> bool:
    """Whether all numbers are finite. Tries the sum first, which needs no memory but may overflow."""
    if not tensor.dtype.is_floating_point:
        return True
    return bool(torch.isfinite(tensor.sum(dtype=torch.float32))) or bool(torch.isfinite(tensor).all())


def _stacked(buffers: list[torch.Tensor], index: slice | torch.Tensor, codec: Codec) -> list[torch.Tensor]:
    """The coded rows of all layers, ``(layers, kv_heads, n, ...)`` for each part, with temporary copies of only one layer."""
    if isinstance(index, slice) and isinstance(codec, Plain) and codec.dtype == buffers[0].dtype:
        return [torch.stack([buffer[0, :, index] for buffer in buffers])]  # of views
    stacked: list[torch.Tensor] = []
    for i, buffer in enumerate(buffers):
        parts = codec.encode(buffer[0, :, index])  # of (kv_heads, n, head_dim)
        if not i:
            stacked = [part.new_empty((len(buffers), *part.shape)) for part in parts]
        for whole, part in zip(stacked, parts, strict=True):
            whole[i] = part
    return stacked


def _tensor(array: npt.NDArray[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    if dtype == torch.bfloat16 and tensor.dtype == torch.uint16:
        tensor = tensor.view(torch.bfloat16)
    exact = tensor.dtype == dtype
    if not exact and not (dtype.is_floating_point and tensor.dtype == torch.float32):  # some states are float32 in any model
        raise ValueError(f"dtype {tensor.dtype} where {dtype} was written")
    return tensor.to(device)
