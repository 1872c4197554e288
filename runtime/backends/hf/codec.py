"""How keys and values rest in the trie: as they are, in fewer bits of floating point, or quantised.

Rows are coded token by token, so that an edge can be cut anywhere and both parts are what they were.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.backends.facts import KvFormat, group_width

Parts = tuple[torch.Tensor, ...]  # of one buffer; tokens along the last axis but one


@dataclass(frozen=True, slots=True)
class Plain:
    """Rows in a floating-point dtype."""

    dtype: torch.dtype

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Of each part."""
        return (self.dtype,)

    def row_bytes(self, width: int) -> int:
        """Bytes of one coded row of `width` numbers."""
        return int(width * self.dtype.itemsize)

    def encode(self, rows: torch.Tensor) -> Parts:
        """From ``(heads, n, width)``; the only part may be a view."""
        return (rows.to(self.dtype),)

    def decode(self, parts: Parts, width: int) -> torch.Tensor:  # noqa: ARG002  # the codecs' common signature
        """The inverse."""
        return parts[0]


@dataclass(frozen=True, slots=True)
class Affine:
    """Whole numbers of 8 or 4 bits between the lowest and the highest of each group along the width, both in float32."""

    bits: int

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Of the codes, the steps and the lowest values."""
        return torch.uint8, torch.float32, torch.float32

    def row_bytes(self, width: int) -> int:
        """Bytes of one coded row of `width` numbers."""
        return width * self.bits // 8 + width // group_width(width) * 8

    def encode(self, rows: torch.Tensor) -> Parts:
        """From ``(heads, n, width)``: codes ``(heads, n, width * bits / 8)``, steps and lowest ``(heads, n, groups)``."""
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
