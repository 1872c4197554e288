"""Columns of numbers as bytes and back: msgpack of name -> (dtype, shape, little-endian bytes).

Reading accepts only listed dtypes, and checks every size before numpy uses it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

import msgspec
import numpy as np
import numpy.typing as npt

from storage.errors import InvalidRowError, StoreDamagedError
from storage.rows import Columns
from storage.tables.text import clean

DTYPES = frozenset(f"{order}{kind}" for order, kinds in (("|", "b1 i1 u1"), ("<", "i2 i4 i8 u2 u4 u8 f2 f4 f8"))
                    for kind in kinds.split())  # fmt: skip
MAX_AXES = 4

_Packed = dict[str, tuple[str, tuple[int, ...], bytes]]
_decoder = msgspec.msgpack.Decoder(_Packed)


def encode(columns: Columns) -> bytes:
    """The columns as one blob.

    Raises:
        InvalidRowError: A column has values other than plain numbers.
    """
    packed: _Packed = {}
    for name, column in columns.items():
        array = np.ascontiguousarray(column).reshape(np.shape(column))  # ascontiguousarray makes 0-d arrays 1-d
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        if array.dtype.str not in DTYPES or array.ndim > MAX_AXES:
            raise InvalidRowError(
                f"column {name!r}: {array.ndim}-dimensional {array.dtype} cannot be saved, only plain numbers"
            )
        packed[name] = (array.dtype.str, array.shape, array.tobytes())
    return msgspec.msgpack.encode(packed)


def decode(blob: bytes) -> dict[str, npt.NDArray[np.generic]]:
    """The inverse of `encode`; the arrays are new and writable.

    Raises:
        StoreDamagedError: The blob was not written by `encode`.
    """
    try:
        packed = _decoder.decode(blob)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamagedError(f"token columns cannot be read: {error}") from error
    return {name: _array(name, *column) for name, column in packed.items()}


def _array(name: str, dtype: str, shape: tuple[int, ...], raw: bytes) -> npt.NDArray[np.generic]:
    if dtype not in DTYPES:
        raise StoreDamagedError(f"column {name!r}: dtype {dtype!r} is not one we write")
    if len(shape) > MAX_AXES or any(not 0 <= n < 2**31 for n in shape):
        raise StoreDamagedError(f"column {name!r}: shape {shape} is not one we write")
    if math.prod(shape) * np.dtype(dtype).itemsize != len(raw):
        raise StoreDamagedError(f"column {name!r}: {len(raw)} bytes do not fill {dtype} of shape {shape}")
    return np.frombuffer(raw, dtype).reshape(shape).copy()


def check(columns: Columns, count: int) -> None:
    """Refuses columns that do not have `count` rows (see `NewChunk` for what a row is)."""
    for name, column in columns.items():
        lengths = columns.get(_lengths_of(name))
        if lengths is None:
            if column.ndim == 0 or len(column) != count:
                raise InvalidRowError(f"column {name!r} has shape {column.shape}, the chunk has {count} tokens")
        elif column.ndim != 1 or lengths.ndim != 1 or _total(name, lengths) != len(column):
            raise InvalidRowError(f"column {name!r} has shape {column.shape}, its lengths add up to {_total(name, lengths)}")


def cut(columns: Columns, start: int, stop: int) -> dict[str, npt.NDArray[np.generic]]:
    """Rows `start` to `stop`."""
    rows: dict[str, npt.NDArray[np.generic]] = {}
    for name, column in columns.items():
        lengths = columns.get(_lengths_of(name))
        if lengths is None:
            rows[name] = column[start:stop]
        else:
            ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
            rows[name] = column[int(ends[start]) : int(ends[stop])]
    return rows


def pieces(columns: Columns, name: str) -> list[bytes] | None:
    """The ragged column `<name>_data`, cut by its lengths; None where the chunk lacks it."""
    data, lengths = columns.get(f"{name}_data"), columns.get(f"{name}_lengths")
    if data is None or lengths is None:
        return None
    ends = np.cumsum(lengths, dtype=np.int64)
    raw = data.tobytes()
    return [raw[int(end) - int(n) : int(end)] for end, n in zip(ends, lengths, strict=True)]


def summary(columns: Columns, count: int) -> str:
    """`[[id, text, logprob, rank, entropy], ...]` as JSON, for the SQL view `tokens`.

    Unscored tokens have null for all three numbers; tokens of unknown rank (from a server) have null only for the rank.
    """
    texts = pieces(columns, "text")
    ids, ranks = _numbers(columns, "ids", count), _numbers(columns, "rank", count)
    logprobs, entropies = _numbers(columns, "logprob", count), _numbers(columns, "entropy", count)
    rows = [
        [
            ids[i],
            clean(texts[i].decode("utf-8", "replace")) if texts else None,
            logprobs[i],
            ranks[i] or None,
            entropies[i],
        ]
        for i in range(count)
    ]
    return msgspec.json.encode(rows).decode()  # texts are cleaned above


def _numbers(columns: Mapping[str, npt.NDArray[np.generic]], name: str, count: int) -> Sequence[float | int | None]:
    column = columns.get(name)
    if column is None or column.ndim != 1:
        return [None] * count
    if column.dtype.kind != "f":
        return [*column.astype(np.int64).tolist()]
    # via the shortest decimal of the float32: 8 digits in JSON instead of 17
    return [x if math.isfinite(x) else None for x in column.astype(str).astype(float).tolist()]


@cache
def _lengths_of(name: str) -> str:
    return name[: -len("data")] + "lengths" if name == "data" or name.endswith("_data") else ""


def _total(name: str, lengths: npt.NDArray[np.generic]) -> int:
    if lengths.dtype.kind not in "iu" or (len(lengths) and int(lengths.astype(np.int64).min()) < 0):
        raise InvalidRowError(f"the lengths of column {name!r} are not counts")
    return int(lengths.astype(np.int64).sum())
