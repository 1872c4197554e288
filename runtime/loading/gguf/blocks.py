"""What ggml's block formats have in common: half-precision numbers, nibbles, and bits that lie apart."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

VALUES_AT_ONCE = 1 << 20  # keeps what is in between small, and in the processor's cache


def half(rows: Bytes, at: int) -> Floats:
    """A float16 of every block, ``(blocks, 1)``."""
    return np.ascontiguousarray(rows[:, at : at + 2]).view("<f2").astype(np.float32)


def nibbles(packed: Bytes) -> Bytes:
    """Low halves of all bytes, then the high halves: ``(blocks, 16)`` to ``(blocks, 32)``."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def fifth_bits(packed: Bytes) -> Bytes:
    """Bit 4 of 32 values, from a little-endian 32-bit word."""
    return np.unpackbits(np.ascontiguousarray(packed), axis=1, bitorder="little") * np.uint8(16)


def six_bit_pairs(packed: Bytes) -> tuple[Floats, Floats]:
    """Eight scales and eight minima of six bits from twelve bytes, as ggml's `get_scale_min_k4` reads them."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=1)
    lows = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=1)
    return scales.astype(np.float32), lows.astype(np.float32)
