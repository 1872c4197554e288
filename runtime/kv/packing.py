"""Blocks as bytes in the safetensors format, written without joining the parts and read without copying.

Scores are stored together with the KV, so that a reopened text need not be scored again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

import numpy as np

from runtime.backends.stored import Stored
from runtime.errors import SnapshotFormatError
from runtime.numerics.scoring import empty_scores
from runtime.records import Scores

_CODES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
}
_NAMES = {np.dtype(code): name for name, code in _CODES.items()}  # as safetensors calls them
_HEADER_LIMIT = 1 << 20  # bytes


def entry_of(array: np.ndarray[Any, Any], at: int) -> tuple[dict[str, Any], memoryview]:
    """The entry of an array at offset `at` in the header of a safetensors file, and its bytes."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [at, at + data.nbytes]}, data


def pack(arrays: Stored, metadata: Mapping[str, str]) -> list[memoryview]:
    """The parts of the file in order: the header, then the memory of each array, the widest numbers first (for alignment).

    The parts share the memory of the arrays, which must not be written to afterwards.
    """
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    parts: list[memoryview] = []
    at = 0
    for name, array in sorted(arrays.items(), key=lambda pair: -pair[1].itemsize):
        entries[name], data = entry_of(array, at)
        at += data.nbytes
        if data.nbytes:
            parts.append(data)
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return [memoryview(len(header).to_bytes(8, "little") + header), *parts]


def unpack(data: bytes | bytearray | memoryview) -> tuple[Stored, dict[str, str]]:
    """The arrays, as views of `data`, and the metadata.

    Raises:
        SnapshotFormatError: `data` has another format, or is truncated.
    """
    try:
        size = int.from_bytes(data[:8], "little")
        if len(data) < 8 or size > _HEADER_LIMIT or 8 + size > len(data):
            raise ValueError(f"a header of {size:,} bytes in {len(data):,}")
        entries = json.loads(bytes(data[8 : 8 + size]))
        metadata = {str(name): str(value) for name, value in entries.pop("__metadata__", {}).items()}
        arrays: Stored = {}
        held = 0
        for name, entry in entries.items():
            start, stop = entry["data_offsets"]
            dtype, shape = np.dtype(_CODES[entry["dtype"]]), tuple(entry["shape"])
            count = int(np.prod(shape, dtype=np.int64))
            if start != held or stop - start != count * dtype.itemsize or any(side < 0 for side in shape):
                raise ValueError(f"{name} at {start:,} to {stop:,}")
            arrays[name] = np.frombuffer(data, dtype, count, 8 + size + start).reshape(shape)
            held = stop
        if 8 + size + held != len(data):
            raise ValueError(f"{len(data) - 8 - size - held:,} bytes too many")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SnapshotFormatError(f"a stored block is damaged or not ours: {error}") from error
    return arrays, metadata


_PREFIX = "scores."
_COLUMNS = tuple(column.name for column in fields(Scores))


def as_arrays(parts: Sequence[tuple[int, Scores | None]]) -> Stored:
    """The joined scores as arrays by name; empty without scores."""
    whole = joined(parts)
    return {} if whole is None else {_PREFIX + name: getattr(whole, name) for name in _COLUMNS}


def taken_out(arrays: Stored, tokens: int) -> tuple[Stored, Scores | None]:
    """Splits arrays into KV, and the scores of its `tokens` tokens if there are any.

    Raises:
        SnapshotFormatError: The scores have another shape.
    """
    kv = {name: array for name, array in arrays.items() if not name.startswith(_PREFIX)}
    if len(kv) == len(arrays):
        return kv, None
    try:
        columns = [np.array(arrays[_PREFIX + name]) for name in _COLUMNS]
    except KeyError as missing:
        raise SnapshotFormatError(f"stored scores lack {missing}") from missing
    kinds = [(np.float32, 1), (np.int32, 1), (np.float32, 1), (np.int32, 2), (np.float32, 2), (np.float32, 1)]
    for column, (dtype, ndim) in zip(columns, kinds, strict=True):
        if column.dtype != dtype or column.ndim != ndim or len(column) != tokens:
            raise SnapshotFormatError(f"stored scores of {tokens} tokens are {column.dtype} of shape {column.shape}")
    return kv, Scores(*cast("list[np.ndarray]", columns))


def joined(parts: Sequence[tuple[int, Scores | None]]) -> Scores | None:
    """Joins the scores of consecutive parts, given as (number of tokens, scores or None); None without any scores.

    Parts without scores, or with fewer alternatives than others, become empty rows.
    """
    width = max((known.top_ids.shape[1] for _, known in parts if known is not None), default=None)
    if width is None:
        return None
    fitting = (None if known is None or known.top_ids.shape[1] < width else known for _, known in parts)
    return Scores.concat(
        [empty_scores(n, width) if known is None else known for (n, _), known in zip(parts, fitting, strict=True)]
    )
