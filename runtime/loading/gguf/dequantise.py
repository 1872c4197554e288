"""GGUF tensors as float32: ggml's block formats, unpacked with numpy. All arithmetic is float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from runtime.errors import ModelLoadError
from runtime.loading.gguf.blocks import VALUES_AT_ONCE, Bytes, Floats, fifth_bits, half, nibbles, six_bit_pairs
from runtime.loading.gguf.layout import TensorInfo


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


def _q4_0(rows: Bytes) -> Floats:
    scale, packed = half(rows, 0), rows[:, 2:]  # (blocks, 16)
    return scale * (nibbles(packed).astype(np.float32) - 8)


def _q4_1(rows: Bytes) -> Floats:
    scale, low, packed = half(rows, 0), half(rows, 2), rows[:, 4:]
    return scale * nibbles(packed).astype(np.float32) + low


def _q5_0(rows: Bytes) -> Floats:
    scale, packed = half(rows, 0), rows[:, 6:]
    return scale * ((nibbles(packed) | fifth_bits(rows[:, 2:6])).astype(np.float32) - 16)


def _q5_1(rows: Bytes) -> Floats:
    scale, low, packed = half(rows, 0), half(rows, 2), rows[:, 8:]
    return scale * (nibbles(packed) | fifth_bits(rows[:, 4:8])).astype(np.float32) + low


def _q8_0(rows: Bytes) -> Floats:
    return half(rows, 0) * rows[:, 2:].view(np.int8).astype(np.float32)


def _q4_k(rows: Bytes) -> Floats:
    """Super-blocks of 8 x 32 values: a 6-bit scale and a 6-bit minimum for each 32."""
    n = len(rows)
    scales, lows = six_bit_pairs(rows[:, 4:16])  # (n, 8) each
    scale = half(rows, 0) * scales
    low = half(rows, 2) * lows
    packed = rows[:, 16:].reshape(n, 4, 1, 32)  # each 32 bytes hold two runs of 32: low nibbles, then high ones
    values = (packed >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)) & 15  # (n, 4, 2, 32)
    return (scale[:, :, None] * values.reshape(n, 8, 32).astype(np.float32) - low[:, :, None]).reshape(n, 256)


def _q6_k(rows: Bytes) -> Floats:
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
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}
