"""ggml's block formats: as float32, and as MLX keeps quantised matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.errors import ModelLoadError
from runtime.loading.gguf.header import TensorInfo

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


def dequantise(info: TensorInfo, data: Bytes) -> Floats:
    """The tensor's values, ``info.shape`` float32.

    Args:
        info: From a checked header.
        data: ``(info.nbytes,) uint8``, the bytes at its place.

    Raises:
        ModelLoadError: A format that is not supported.
    """
    unpack = UNPACKERS.get(info.format.name)
    if unpack is None:
        raise ModelLoadError(
            f"tensor {info.name} is {info.format.name}, which cannot be read; choose a file in {', '.join(UNPACKERS)}"
        )
    rows = data.reshape(-1, info.format.size)  # (blocks, bytes of a block)
    values = np.empty((len(rows), info.format.block), np.float32)
    step = VALUES_AT_ONCE // info.format.block
    for first in range(0, len(rows), step):
        values[first : first + step] = unpack(rows[first : first + step])
    return values.reshape(info.shape)


def _f32(rows: Bytes) -> Floats:
    return rows.view("<f4").astype(np.float32)


def _f16(rows: Bytes) -> Floats:
    return rows.view("<f2").astype(np.float32)


def _bf16(rows: Bytes) -> Floats:
    return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _floats_q4_0(rows: Bytes) -> Floats:
    scale, packed = half(rows, 0), rows[:, 2:]  # (blocks, 16)
    return scale * (nibbles(packed).astype(np.float32) - 8)


def _floats_q4_1(rows: Bytes) -> Floats:
    scale, low, packed = half(rows, 0), half(rows, 2), rows[:, 4:]
    return scale * nibbles(packed).astype(np.float32) + low


def _floats_q5_0(rows: Bytes) -> Floats:
    scale, packed = half(rows, 0), rows[:, 6:]
    return scale * ((nibbles(packed) | fifth_bits(rows[:, 2:6])).astype(np.float32) - 16)


def _floats_q5_1(rows: Bytes) -> Floats:
    scale, low, packed = half(rows, 0), half(rows, 2), rows[:, 8:]
    return scale * (nibbles(packed) | fifth_bits(rows[:, 4:8])).astype(np.float32) + low


def _floats_q8_0(rows: Bytes) -> Floats:
    return half(rows, 0) * rows[:, 2:].view(np.int8).astype(np.float32)


def _floats_q4_k(rows: Bytes) -> Floats:
    """Super-blocks of 8 x 32 values: a 6-bit scale and a 6-bit minimum for each 32."""
    n = len(rows)
    scales, lows = six_bit_pairs(rows[:, 4:16])  # (n, 8) each
    scale = half(rows, 0) * scales
    low = half(rows, 2) * lows
    packed = rows[:, 16:].reshape(n, 4, 1, 32)  # each 32 bytes hold two runs of 32: low nibbles, then high ones
    values = (packed >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)) & 15  # (n, 4, 2, 32)
    return (scale[:, :, None] * values.reshape(n, 8, 32).astype(np.float32) - low[:, :, None]).reshape(n, 256)


def _floats_q6_k(rows: Bytes) -> Floats:
    """Super-blocks of 16 x 16 values: four low bits, two high bits, an 8-bit scale for each 16."""
    n = len(rows)
    nibbles = rows[:, :128].reshape(n, 2, 1, 64)  # halves of 128 values: nibbles of 64 bytes, low ones first
    low = ((nibbles >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)) & 15).reshape(n, 256)
    pairs = rows[:, 128:192].reshape(n, 2, 1, 32)  # ... and bit pairs of 32 bytes
    high = ((pairs >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)) & 3).reshape(n, 256)
    values = (low | (high << 4)).astype(np.float32) - 32
    scale = rows[:, 192:208].view(np.int8).astype(np.float32) * half(rows, 208)  # (n, 16)
    return (values.reshape(n, 16, 16) * scale[:, :, None]).reshape(n, 256)


UNPACKERS: Mapping[str, Callable[[Bytes], Floats]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _floats_q4_0,
    "Q4_1": _floats_q4_1,
    "Q5_0": _floats_q5_0,
    "Q5_1": _floats_q5_1,
    "Q8_0": _floats_q8_0,
    "Q4_K": _floats_q4_k,
    "Q6_K": _floats_q6_k,
}

GROUP = 32  # values that share a scale and a bias
Words = npt.NDArray[np.uint32]
_Split = Callable[[Bytes], tuple[Bytes, Floats, Floats]]


@dataclass(frozen=True, slots=True)
class Affine:
    """A matrix in MLX's affine form, groups of 32 along its rows.

    Attributes:
        words: ``(rows, columns * bits / 32) uint32``, numbers one behind the other from the lowest bit on.
        scales: ``(rows, columns / 32) float32``.
        biases: The same shape: what a number of 0 stands for.
    """

    words: Words
    scales: Floats
    biases: Floats


def bits_of(name: str) -> int | None:
    """Bits of a number in a format of GGUF's; None where MLX has no exact form for it."""
    found = _SPLITS.get(name)
    return None if found is None else found[0]


def affine(info: TensorInfo, data: Bytes) -> Affine:
    """A matrix as MLX keeps it, equal in every value to what `dequantise` makes of it.

    Args:
        info: From a checked header; of a format that `bits_of` knows, with two dimensions.
        data: ``(info.nbytes,) uint8``, the bytes at its place.
    """
    bits, split = _SPLITS[info.format.name]
    blocks = data.reshape(-1, info.format.size)  # (blocks, bytes of a block)
    runs = info.format.block // GROUP
    words = np.empty((len(blocks), runs * bits), np.uint32)
    scales = np.empty((len(blocks), runs), np.float32)
    biases = np.empty((len(blocks), runs), np.float32)
    step = VALUES_AT_ONCE // info.format.block
    for first in range(0, len(blocks), step):
        part = slice(first, first + step)
        numbers, scales[part], biases[part] = split(blocks[part])
        words[part] = _packed(numbers, bits)
    rows = info.shape[0]
    return Affine(words.reshape(rows, -1), scales.reshape(rows, -1), biases.reshape(rows, -1))


def _packed(numbers: Bytes, bits: int) -> Words:
    """``(blocks, values)`` numbers below ``2 ** bits`` into words, lowest bits first."""
    if bits == 8:
        packed = np.ascontiguousarray(numbers)
    elif bits == 4:
        packed = numbers[:, ::2] | (numbers[:, 1::2] << np.uint8(4))
    else:
        single = np.unpackbits(numbers[:, :, None], axis=2, count=bits, bitorder="little")
        packed = np.packbits(single.reshape(len(numbers), -1), axis=1, bitorder="little")
    return packed.view("<u4")


def _q4_0(blocks: Bytes) -> tuple[Bytes, Floats, Floats]:
    scale = half(blocks, 0)
    return nibbles(blocks[:, 2:]), scale, scale * -8


def _q4_1(blocks: Bytes) -> tuple[Bytes, Floats, Floats]:
    return nibbles(blocks[:, 4:]), half(blocks, 0), half(blocks, 2)


def _q5_0(blocks: Bytes) -> tuple[Bytes, Floats, Floats]:
    scale = half(blocks, 0)
    return nibbles(blocks[:, 6:]) | fifth_bits(blocks[:, 2:6]), scale, scale * -16


def _q5_1(blocks: Bytes) -> tuple[Bytes, Floats, Floats]:
    return nibbles(blocks[:, 8:]) | fifth_bits(blocks[:, 4:8]), half(blocks, 0), half(blocks, 2)


def _q8_0(blocks: Bytes) -> tuple[Bytes, Floats, Floats]:
    scale = half(blocks, 0)
    return blocks[:, 2:] ^ np.uint8(128), scale, scale * -128  # signed numbers, moved up to begin at 0


def _q4_k(blocks: Bytes) -> tuple[Bytes, Floats, Floats]:
    scales, lows = six_bit_pairs(blocks[:, 4:16])  # (blocks, 8) each
    packed = blocks[:, 16:].reshape(len(blocks), 4, 1, 32)  # each 32 bytes hold two runs of 32: low nibbles, then high ones
    numbers = (packed >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)) & np.uint8(15)
    return numbers.reshape(len(blocks), 256), half(blocks, 0) * scales, -(half(blocks, 2) * lows)


_SPLITS: Mapping[str, tuple[int, _Split]] = {
    "Q4_0": (4, _q4_0),
    "Q4_1": (4, _q4_1),
    "Q5_0": (5, _q5_0),
    "Q5_1": (5, _q5_1),
    "Q8_0": (8, _q8_0),
    "Q4_K": (4, _q4_k),
}
KEPT = tuple(_SPLITS)  # formats
