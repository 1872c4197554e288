"""A block as bytes: the safetensors format, written without joining and read without copying."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from runtime.backends.stored import Stored
from runtime.errors import SnapshotFormatError

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
_NAMES = {np.dtype(code): name for name, code in _CODES.items()}
_HEADER_LIMIT = 1 << 20  # bytes


def pack(arrays: Stored, metadata: Mapping[str, str]) -> list[memoryview]:
    """The parts of the file, in order: the header and each array's own memory, the widest numbers first (so all are aligned).

    The memory is lent: nobody writes into the arrays afterwards.
    """
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    parts: list[memoryview] = []
    at = 0
    for name, array in sorted(arrays.items(), key=lambda pair: -pair[1].itemsize):
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        entries[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [at, at + flat.nbytes]}
        at += flat.nbytes
        if flat.nbytes:
            parts.append(flat.data)
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return [memoryview(len(header).to_bytes(8, "little") + header), *parts]


def dtype_name(dtype: np.dtype[Any]) -> str:
    """As safetensors calls it."""
    return _NAMES[dtype]


def unpack(data: bytes | bytearray | memoryview) -> tuple[Stored, dict[str, str]]:
    """The arrays, as views of `data`, and the metadata.

    Raises:
        SnapshotFormatError: Not in this format, or cut.
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
