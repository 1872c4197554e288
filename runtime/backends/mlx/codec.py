"""How keys and values rest in the trie: as they are, in fewer bits of floating point, or quantised by MLX itself.

Rows are coded token by token, so that an edge can be cut anywhere and both parts are what they were.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from runtime.backends.facts import KvFormat, group_width

Parts = tuple[mx.array, ...]  # of one buffer; tokens along the last axis but one
LEAST_GROUP = 32  # numbers; MLX has groups of 32 and 64


@dataclass(frozen=True, slots=True)
class Plain:
    """Rows in a floating-point dtype."""

    dtype: mx.Dtype

    @property
    def dtypes(self) -> tuple[mx.Dtype, ...]:
        """Of each part."""
        return (self.dtype,)

    def row_bytes(self, width: int) -> int:
        """Bytes of one coded row of `width` numbers."""
        return int(width * self.dtype.size)

    def encode(self, rows: mx.array) -> Parts:
        """From ``(kv_heads, n, width)``."""
        return (rows.astype(self.dtype),)

    def decode(self, parts: Parts, width: int) -> mx.array:  # noqa: ARG002  # the codecs' common signature
        """The inverse."""
        return parts[0]


@dataclass(frozen=True, slots=True)
class Affine:
    """`mx.quantize` in float32. A width that MLX has no groups for is filled with zeros up to the next multiple of 32."""

    bits: int

    @property
    def dtypes(self) -> tuple[mx.Dtype, ...]:
        """Of the packed codes, the steps and the lowest values."""
        return mx.uint32, mx.float32, mx.float32

    def row_bytes(self, width: int) -> int:
        """Bytes of one coded row of `width` numbers."""
        full = _padded(width)
        return full * self.bits // 8 + full // group_width(full) * 8

    def encode(self, rows: mx.array) -> Parts:
        """From ``(kv_heads, n, width)``: codes ``(kv_heads, n, width * bits / 32)``, steps and lowest ``(.., groups)``."""
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
