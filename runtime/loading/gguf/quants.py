"""Decodes ggml's block formats with numpy: to float32, or to MLX's affine form.

gguf-py's `quants` gives the same numbers but is not used: it would be a dependency (with requests, tqdm and PyYAML) for three
unpackers, because the affine form needs the whole numbers, scales and offsets below anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.errors import ModelLoadError
from runtime.loading.gguf.header import TensorInfo

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]

_VALUES_AT_ONCE = 1 << 20  # keeps intermediate arrays small, and in the processor's cache
# From (blocks, bytes of a block) to whole numbers (blocks, values), scales and biases (blocks, values / group) or (blocks, 1)
_Split = Callable[[Bytes], tuple[Bytes, Floats, Floats]]


class Form(NamedTuple):
    """Bits of a number, and how many numbers share a scale and a bias. MLX has no groups below 32."""

    bits: int
    group: int


class AffineArrays(NamedTuple):
    """A matrix in affine form, ``scale * number + bias``, with groups along its rows."""

    words: Words  # ``(rows, columns * bits / 32) uint32``, numbers packed one after the other from the lowest bit on
    scales: Floats  # ``(rows, columns / group) float32``
    biases: Floats  # ``(rows, columns / group) float32``: the value of the number 0


def form_of(name: str) -> Form | None:
    """The affine form of one of GGUF's formats; None where it has none (plain numbers, formats that are not supported)."""
    found = _SPLITS.get(name)
    return None if found is None else found[0]


def affine(info: TensorInfo, data: Bytes) -> AffineArrays:
    """A matrix in affine form, equal in every value to the result of `dequantise`: scales stay float32, nothing is rounded.

    Args:
        info: From a checked header; of a format that `form_of` knows, with two dimensions.
        data: ``(info.nbytes,) uint8``, its bytes in the file.
    """
    (bits, group), split = _SPLITS[info.format.name]
    blocks = data.reshape(-1, info.format.size)  # (blocks, bytes of a block)
    groups = info.format.block // group
    words = np.empty((len(blocks), info.format.block * bits // 32), np.uint32)
    scales = np.empty((len(blocks), groups), np.float32)
    biases = np.empty((len(blocks), groups), np.float32)
    step = _VALUES_AT_ONCE // info.format.block
    for first in range(0, len(blocks), step):
        part = slice(first, first + step)
        numbers, scales[part], biases[part] = split(blocks[part])
        words[part] = _packed(numbers, bits)
    rows = info.shape[0]
    return AffineArrays(words.reshape(rows, -1), scales.reshape(rows, -1), biases.reshape(rows, -1))


def dequantise(info: TensorInfo, data: Bytes) -> Floats:
    """The tensor's values, ``info.shape`` float32. All arithmetic is float32.

    Args:
        info: From a checked header.
        data: ``(info.nbytes,) uint8``, its bytes in the file.

    Raises:
        ModelLoadError: The format is not supported.
    """
    name = info.format.name
    if name not in READABLE:
        raise ModelLoadError(f"tensor {info.name} is {name}, which cannot be read; choose a file in {', '.join(READABLE)}")
    blocks = data.reshape(-1, info.format.size)  # (blocks, bytes of a block)
    values = np.empty((len(blocks), info.format.block), np.float32)
    step = _VALUES_AT_ONCE // info.format.block
    for first in range(0, len(blocks), step):
        part = slice(first, first + step)
        values[part] = _PLAIN[name](blocks[part]) if name in _PLAIN else _affine_values(*_SPLITS[name][1](blocks[part]))
    return values.reshape(info.shape)


def _affine_values(numbers: Bytes, scales: Floats, biases: Floats) -> Floats:
    groups = numbers.reshape(len(numbers), scales.shape[1], -1).astype(np.float32)  # (blocks, groups, group)
    return (groups * scales[:, :, None] + biases[:, :, None]).reshape(numbers.shape)


def _packed(numbers: Bytes, bits: int) -> Words:
    """Packs ``(blocks, values)`` numbers below ``2 ** bits`` into words, lowest bits first."""
    if bits == 8:
        packed = np.ascontiguousarray(numbers)
    elif bits == 4:
        packed = numbers[:, ::2] | (numbers[:, 1::2] << np.uint8(4))
    else:
        single = np.unpackbits(numbers[:, :, None], axis=2, count=bits, bitorder="little")
        packed = np.packbits(single.reshape(len(numbers), -1), axis=1, bitorder="little")
    return packed.view("<u4")


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of each block, as ``(blocks, 1) float32``."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """The low four bits of all bytes, then the high four: ``(blocks, 16)`` to ``(blocks, 32)``."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """Bit 4 of each of 32 values, from a little-endian 32-bit word: ``(blocks, 4)`` to ``(blocks, 32)``."""
    return np.unpackbits(np.ascontiguousarray(packed), axis=1, bitorder="little") * np.uint8(16)


def _q4_0(blocks: Bytes) -> tuple[Bytes, Floats, Floats]:
    scale = _half(blocks, 0)
    return _nibbles(blocks[:, 2:]), scale, scale * -8


def _q4_1(blocks: Bytes) -> tuple[Bytes, Floats, Floats]:
    return _nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: Bytes) -> tuple[Bytes, Floats, Floats]:
    scale = _half(blocks, 0)
    return _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6]), scale, scale * -16


def _q5_1(blocks: Bytes) -> tuple[Bytes, Floats, Floats]:
    return _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8]), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Bytes) -> tuple[Bytes, Floats, Floats]:
    scale = _half(blocks, 0)
    return blocks[:, 2:] ^ np.uint8(128), scale, scale * -128  # signed numbers, moved up to begin at 0


def _q4_k(blocks: Bytes) -> tuple[Bytes, Floats, Floats]:
    """Super-blocks of 8 x 32 values: a 6-bit scale and a 6-bit minimum for each 32, as in ggml's `get_scale_min_k4`."""
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=1).astype(np.float32)  # (blocks, 8)
    lows = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=1).astype(np.float32)
    packed = blocks[:, 16:].reshape(len(blocks), 4, 1, 32)  # each 32 bytes hold two runs of 32: low nibbles, then high ones
    numbers = (packed >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)) & np.uint8(15)
    return numbers.reshape(len(blocks), 256), _half(blocks, 0) * scales, -(_half(blocks, 2) * lows)


def _q5_k(blocks: Bytes) -> tuple[Bytes, Floats, Floats]:
    """As Q4_K, with a fifth bit of each number: bit n of 32 bytes belongs to the numbers of the n-th run of 32."""
    low, scales, biases = _q4_k(np.delete(blocks, np.s_[16:48], axis=1))
    high = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)  # (blocks, 8, 32)
    return low | (high << np.uint8(4)).reshape(low.shape), scales, biases


def _pairs(packed: Bytes) -> Bytes:
    """Two bits of each value: 32 bytes for each half of 128 values, ``(blocks, 64)`` to ``(blocks, 256)``."""
    halves = packed.reshape(len(packed), 2, 1, 32)
    return ((halves >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)) & np.uint8(3)).reshape(len(packed), 256)


def _q2_k(blocks: Bytes) -> tuple[Bytes, Floats, Floats]:
    """Super-blocks of 16 x 16 values: a 4-bit scale and a 4-bit minimum for each 16."""
    scales, lows = (blocks[:, :16] & 15).astype(np.float32), (blocks[:, :16] >> 4).astype(np.float32)
    return _pairs(blocks[:, 16:80]), _half(blocks, 80) * scales, -(_half(blocks, 82) * lows)


def _q3_k(blocks: Bytes) -> tuple[Bytes, Floats, Floats]:
    """Super-blocks of 16 x 16 values: two low bits, a high bit stored as in Q5_K, a 6-bit scale for each 16."""
    high = (blocks[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)  # (blocks, 8, 32)
    low = _pairs(blocks[:, 32:96])
    first, last = blocks[:, 96:104], blocks[:, 104:108]  # the low four bits of each scale, the high two bits
    nibbles = np.concatenate([first & 15, first >> 4], axis=1)  # (blocks, 16)
    pairs = np.concatenate([(last >> np.uint8(shift)) & 3 for shift in (0, 2, 4, 6)], axis=1)
    scale = _half(blocks, 108) * ((nibbles | (pairs << 4)).astype(np.float32) - 32)
    return low | (high << np.uint8(2)).reshape(low.shape), scale, scale * -4


def _q6_k(blocks: Bytes) -> tuple[Bytes, Floats, Floats]:
    """Super-blocks of 16 x 16 values: four low bits, two high bits, an 8-bit scale for each 16."""
    n = len(blocks)
    nibbles = blocks[:, :128].reshape(n, 2, 1, 64)  # halves of 128 values: nibbles of 64 bytes, low ones first
    low = ((nibbles >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)) & np.uint8(15)).reshape(n, 256)
    high = _pairs(blocks[:, 128:192])
    scale = blocks[:, 192:208].view(np.int8).astype(np.float32) * _half(blocks, 208)  # (n, 16): 18 bits, so it is exact
    return low | (high << np.uint8(4)), scale, scale * -32


_SPLITS: Mapping[str, tuple[Form, _Split]] = {
    "Q4_0": (Form(4, 32), _q4_0),
    "Q4_1": (Form(4, 32), _q4_1),
    "Q5_0": (Form(5, 32), _q5_0),
    "Q5_1": (Form(5, 32), _q5_1),
    "Q8_0": (Form(8, 32), _q8_0),
    "Q2_K": (Form(2, 16), _q2_k),
    "Q3_K": (Form(3, 16), _q3_k),
    "Q4_K": (Form(4, 32), _q4_k),
    "Q5_K": (Form(5, 32), _q5_k),
    "Q6_K": (Form(6, 16), _q6_k),
}
_PLAIN: Mapping[str, Callable[[Bytes], Floats]] = {
    "F32": lambda blocks: blocks.view("<f4").astype(np.float32),
    "F16": lambda blocks: blocks.view("<f2").astype(np.float32),
    "BF16": lambda blocks: (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32),
}
KEPT = tuple(_SPLITS)  # formats that can stay quantised
READABLE = (*_PLAIN, *KEPT)
