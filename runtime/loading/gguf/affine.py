"""GGUF tensors as MLX keeps quantised ones: the file's own whole numbers, with a scale and a lowest value for each 32.

A value is ``scale * number + bias`` in MLX's affine form. ggml's blocks of 32 are that already, and so are the eight runs of 32
in a block of Q4_K: nothing is rounded, since their scales are kept in float32. Q6_K has a scale for each 16 values, which MLX
has no form for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.loading.gguf.blocks import VALUES_AT_ONCE, Bytes, Floats, fifth_bits, half, nibbles, six_bit_pairs
from runtime.loading.gguf.layout import TensorInfo

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
