"""Numpy arrays and token runs as plain values: an allowed dtype, a shape, raw bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from runtime.errors import RuntimeFault
from runtime.records import Origin, TokenRun, split_bytes

_DTYPES = {name: np.dtype(name) for name in ("<f4", "<f8", "<i4", "<i8", "|u1", "<u2", "<u4", "|b1")}
_MAX_DIMENSIONS = 4
_EMPTY_RUN = TokenRun.unscored([], [], [], Origin.TEMPLATE)
# Columns of every run: (dtype, number of dimensions)
_RUN_COLUMNS = {name: (column.dtype, column.ndim) for name, column in _EMPTY_RUN.to_columns().items()}


class ArrayError(RuntimeFault):
    """A value is not an array that may cross the pipe."""


class Array(msgspec.Struct, array_like=True, frozen=True):
    """An array in a message, in little-endian C order."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


def pack_array(array: npt.NDArray[Any]) -> Array:
    """Packs an array, without a copy if it is contiguous.

    Raises:
        ArrayError: The dtype is not allowed.
    """
    array = np.asarray(array)
    if array.dtype.str not in _DTYPES:
        raise ArrayError(f"an array of {array.dtype} does not cross the pipe; allowed: {', '.join(sorted(_DTYPES))}")
    flat: npt.NDArray[np.uint8] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return Array(array.dtype.str, array.shape, flat.data)


def unpack_array(packed: Array) -> npt.NDArray[Any]:
    """A copy of the array: aligned, writable, independent of the message.

    Raises:
        ArrayError: The dtype is unknown, the shape has a negative size or too many dimensions, or the bytes do not fit it.
    """
    dtype = _DTYPES.get(packed.dtype)
    if dtype is None:
        raise ArrayError(f"an array of dtype {packed.dtype[:16]!r} is not allowed over the pipe")
    if len(packed.shape) > _MAX_DIMENSIONS or any(n < 0 for n in packed.shape):
        raise ArrayError(f"an array cannot have the shape {packed.shape[:8]}")
    expected = math.prod(packed.shape) * dtype.itemsize
    if packed.data.nbytes != expected:
        raise ArrayError(f"shape {packed.shape} of {packed.dtype} needs {expected:,} bytes, {packed.data.nbytes:,} came")
    return np.frombuffer(packed.data, dtype).reshape(packed.shape).copy()


def pack_run(run: TokenRun) -> dict[str, Array]:
    """Packs the columns of a token run, by name."""
    return {name: pack_array(column) for name, column in run.to_columns().items()}


def unpack_run(columns: Mapping[str, Array]) -> TokenRun:
    """The inverse of `pack_run`.

    Raises:
        ArrayError: A column is missing or has the wrong type, or the columns do not fit together.
    """
    arrays = {name: unpack_array(column) for name, column in columns.items()}
    for name, (dtype, dimensions) in _RUN_COLUMNS.items():
        array = arrays.get(name)
        if array is None or array.dtype != dtype or array.ndim != dimensions:
            raise ArrayError(f"column {name!r} of a token run is missing or not {dtype} with {dimensions} dimensions")
    for data, lengths in (("data", "lengths"), ("text_data", "text_lengths")):
        if (arrays[lengths] < 0).any() or int(arrays[lengths].sum(dtype=np.int64)) != len(arrays[data]):
            raise ArrayError(f"column {lengths!r} of a token run does not fit the {len(arrays[data]):,} bytes of {data!r}")
    try:
        return TokenRun.from_columns({n: a for n, a in arrays.items() if n in _RUN_COLUMNS or n.startswith("stage_")})
    except (ValueError, TypeError) as fault:  # rows that differ in number, bytes that are not UTF-8
        raise ArrayError(f"the columns of a token run do not fit together: {fault}") from fault


class Pieces(msgspec.Struct, frozen=True):
    """Many byte strings as two arrays, so that a vocabulary of 150,000 entries is two values."""

    data: Array
    lengths: Array


def pack_pieces(pieces: list[bytes]) -> Pieces:
    """Packs byte strings into one array of bytes and one of lengths."""
    return Pieces(
        pack_array(np.frombuffer(b"".join(pieces), np.uint8)), pack_array(np.array([len(piece) for piece in pieces], np.int32))
    )


def unpack_pieces(packed: Pieces) -> list[bytes]:
    """The inverse of `pack_pieces`.

    Raises:
        ArrayError: The lengths do not fit the bytes.
    """
    data, lengths = unpack_array(packed.data).tobytes(), unpack_array(packed.lengths)
    whole = lengths.ndim == 1 and lengths.dtype.kind in "iu"
    if not whole or (lengths < 0).any() or int(lengths.sum(dtype=np.int64)) != len(data):
        raise ArrayError(f"{lengths.dtype} lengths of {lengths.shape} pieces do not add up to {len(data):,} bytes")
    return list(split_bytes(data, lengths))
