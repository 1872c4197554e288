"""Cached tokens as mlx arrays: copied from a pack, stored in the trie and on disk.

Cached KV has the packs' dtype, a narrower floating-point dtype, or is quantised by MLX. Rows are coded token by token, so that
an edge can be split at any token without coding it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from runtime.backends.facts import KvFormat, group_width
from runtime.backends.mlx.cache import Arrays, MlxPack, to_index
from runtime.backends.packs.tree import Int64
from runtime.backends.stored import LayerPayload, Shape, StateShapes, Stored, grouped, restored
from runtime.errors import SnapshotFormatError

Parts = tuple[mx.array, ...]  # of one buffer; tokens along the last axis but one
LEAST_GROUP = 32  # numbers; MLX has groups of 32 and 64


@dataclass(frozen=True, slots=True)
class Plain:
    """Rows in a floating-point dtype."""

    dtype: mx.Dtype

    @property
    def dtypes(self) -> tuple[mx.Dtype, ...]:
        """Dtype of each part."""
        return (self.dtype,)

    def row_bytes(self, width: int) -> int:
        """Bytes of one coded row of `width` numbers."""
        return int(width * self.dtype.size)

    def encode(self, rows: mx.array) -> Parts:
        """From ``(kv_heads, n, width)``."""
        return (rows.astype(self.dtype),)

    def decode(self, parts: Parts, width: int) -> mx.array:  # noqa: ARG002  # the codecs' common signature
        """The inverse of `encode`."""
        return parts[0]


@dataclass(frozen=True, slots=True)
class Affine:
    """`mx.quantize` in float32. Widths without MLX groups are padded with zeros to the next multiple of 32."""

    bits: int

    @property
    def dtypes(self) -> tuple[mx.Dtype, ...]:
        """Dtypes of the packed codes, the steps and the minima."""
        return mx.uint32, mx.float32, mx.float32

    def row_bytes(self, width: int) -> int:
        """Bytes of one coded row of `width` numbers."""
        full = _padded(width)
        return full * self.bits // 8 + full // group_width(full) * 8

    def encode(self, rows: mx.array) -> Parts:
        """From ``(kv_heads, n, width)``: codes ``(kv_heads, n, width * bits / 32)``, steps and minima ``(.., groups)``."""
        width = rows.shape[-1]
        full = _padded(width)
        wide = rows.astype(mx.float32)
        if full > width:
            wide = mx.pad(wide, [(0, 0), (0, 0), (0, full - width)])
        codes, step, low = mx.quantize(wide, group_size=group_width(full), bits=self.bits)
        return codes, step, low

    def decode(self, parts: Parts, width: int) -> mx.array:
        """``(kv_heads, n, width) float32``."""
        codes, step, low = parts
        rows = mx.dequantize(codes, step, low, group_size=group_width(_padded(width)), bits=self.bits)
        return rows[..., :width]


Codec = Plain | Affine


def codec_of(kv: KvFormat) -> Codec:
    """The codec for a format of cached KV."""
    return Plain(getattr(mx, kv.name)) if kv.bits is None else Affine(kv.bits)


def _padded(width: int) -> int:
    return -(-width // LEAST_GROUP) * LEAST_GROUP


class MlxPayload(LayerPayload[mx.array]):
    """KV of `n` consecutive tokens as evaluated mlx arrays."""

    __slots__ = ()

    def split(self, n: int) -> tuple[MlxPayload, MlxPayload]:
        """The first `n` tokens and the rest, copied; the recurrent state belongs to the rest's end."""
        parts = [[mx.contiguous(a[:, :, s]) for a in (*self.keys, *self.values)] for s in (slice(0, n), slice(n, None))]
        mx.eval(parts)
        (head, tail), count = parts, len(self.keys)
        return (
            MlxPayload(n, tuple(head[:count]), tuple(head[count:]), None),
            MlxPayload(self.n - n, tuple(tail[:count]), tuple(tail[count:]), self.state),
        )

    @staticmethod
    def plain(array: mx.array) -> npt.NDArray[np.generic]:
        return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def take(pack: MlxPack, shapes: tuple[Shape, ...], slots: Int64, state: Arrays | None, codec: Codec) -> MlxPayload:
    """An immutable copy of slots, in their order, coded layer by layer."""
    index = to_index(slots)
    keys: list[mx.array] = []
    values: list[mx.array] = []
    for group in grouped(pack.attention, shapes):
        keys += _stacked([layer.keys for layer in group], index, codec)
        values += _stacked([layer.values for layer in group], index, codec)
    mx.eval(keys, values)
    return MlxPayload(len(slots), tuple(keys), tuple(values), state)


def take_many(pack: MlxPack, shapes: tuple[Shape, ...], chains: Sequence[Int64], codec: Codec) -> list[MlxPayload]:
    """Copies of several chains without recurrent state: gathered at once, then split, evaluated together."""
    whole = take(pack, shapes, np.concatenate(chains), None, codec)
    ends = np.cumsum([len(slots) for slots in chains]).tolist()
    parts = [
        [[_cut(a, end - len(slots), end) for a in arrays] for arrays in (whole.keys, whole.values)]
        for slots, end in zip(chains, ends, strict=True)
    ]
    mx.eval(parts)
    return [MlxPayload(len(slots), tuple(k), tuple(v), None) for slots, (k, v) in zip(chains, parts, strict=True)]


def _cut(array: mx.array, start: int, stop: int) -> mx.array:
    """Some tokens, always copied: `mx.contiguous` may share an array that is contiguous already."""
    return mx.take(array, mx.arange(start, stop), axis=2)


def put(
    pack: MlxPack, shapes: tuple[Shape, ...], payload: MlxPayload, start: int, skip: int, codec: Codec, dtype: mx.Dtype
) -> None:
    """Writes a payload without its first `skip` tokens into the buffers at `start`."""
    end, parts = start + payload.n - skip, len(codec.dtypes)
    for at, group in enumerate(grouped(pack.attention, shapes)):
        keys = payload.keys[at * parts : (at + 1) * parts]
        values = payload.values[at * parts : (at + 1) * parts]
        for i, layer in enumerate(group):
            _, key_width, value_width = shapes[pack.attention.index(layer)]
            new_keys = codec.decode(tuple(p[i, :, skip:] for p in keys), key_width).astype(dtype)[None]
            new_values = codec.decode(tuple(p[i, :, skip:] for p in values), value_width).astype(dtype)[None]
            if layer.keys is None or end > layer.keys.shape[2]:
                layer.grow(end, new_keys, new_values)
            assert layer.keys is not None
            assert layer.values is not None
            layer.keys[..., start:end, :] = new_keys
            layer.values[..., start:end, :] = new_values
    mx.eval(pack.arrays())


def restore(
    arrays: Stored, codec: Codec, shapes: Sequence[Shape], state_shapes: StateShapes | None, state_dtype: mx.Dtype
) -> MlxPayload:
    """The inverse of `export`, with the arguments and errors of `runtime.backends.hf.payload.restore`."""

    def widths(n: int) -> list[int]:
        return [part.shape[-1] for part in codec.encode(mx.zeros((1, 1, n)))]

    payload = MlxPayload(*restored(arrays, _array, codec.dtypes, widths, shapes, state_dtype, state_shapes))
    _check_finite([a for a in (*payload.keys, *payload.values, *(payload.state or ())) if a is not None])
    return payload


def _check_finite(arrays: Sequence[mx.array]) -> None:
    """Raises `SnapshotFormatError` unless all numbers are finite; evaluates the arrays."""
    floating = [a for a in arrays if mx.issubdtype(a.dtype, mx.floating)]
    sums = [mx.isfinite(a.astype(mx.float32).sum()) for a in floating]  # needs no memory, but may overflow
    mx.eval(arrays, sums)
    if not all(whole.item() or mx.isfinite(a).all().item() for a, whole in zip(floating, sums, strict=True)):
        raise SnapshotFormatError("stored KV holds numbers that are not finite")


def _stacked(buffers: list[Any], index: slice | mx.array, codec: Codec) -> list[mx.array]:
    """``(layers, kv_heads, n, ...)`` for each part. A stack of one array would keep the buffer alive, so it is copied."""
    rows = [buffer[0, :, index] if isinstance(index, slice) else mx.take(buffer[0], index, axis=1) for buffer in buffers]
    parts = zip(*(codec.encode(row) for row in rows), strict=True)
    return [mx.stack(list(part)) if len(part) > 1 else mx.contiguous(part[0])[None] for part in parts]


def _array(array: npt.NDArray[Any], dtype: mx.Dtype) -> mx.array:
    found = mx.array(np.asarray(array))
    if dtype == mx.bfloat16 and found.dtype == mx.uint16:
        found = found.view(mx.bfloat16)
    floating = mx.issubdtype(dtype, mx.floating)
    if found.dtype != dtype and not (floating and found.dtype == mx.float32):  # some states are float32 in any model
        raise ValueError(f"dtype {found.dtype} where {dtype} was written")
    return found
