"""Columns of numbers as JSON: lists of numbers, or base64 if JSON numbers cannot represent all values."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from storage.rows import Columns
from storage.tables.columns import DTYPES, MAX_AXES

_NUMBERS: Final = frozenset({int, float, type(None)})
_WIDEST: Final = 1 << 24  # numbers in one column of one range


def to_json(columns: Columns) -> dict[str, dict[str, Any]]:
    """Columns as values for a JSON encoder; every bit is kept."""
    return {name: _packed(np.asarray(column)) for name, column in columns.items()}


def from_json(packed: Mapping[str, Any]) -> dict[str, npt.NDArray[np.generic]]:
    """The inverse of `to_json`.

    Raises:
        ValueError: `packed` was not made by `to_json`; the message names the column.
    """
    made = {}
    for name, column in packed.items():
        try:
            made[name] = _unpacked(column)
        except (ValueError, TypeError, OverflowError, binascii.Error) as fault:
            raise ValueError(f"column {name!r:.60}: {fault}") from fault
    return made


def _packed(column: npt.NDArray[Any]) -> dict[str, Any]:
    column = column.astype(column.dtype.newbyteorder("<"), copy=False)
    head = {"dtype": column.dtype.str, "shape": list(column.shape)}
    flat = column.reshape(-1)
    if column.dtype.kind in "iu" and column.dtype.itemsize > 1:
        return {**head, "values": flat.tolist()}
    if column.dtype.kind == "f" and _has_plain_bits(flat):
        return {**head, "values": [None if math.isnan(x) else x for x in flat.tolist()]}
    return {**head, "base64": base64.b64encode(flat.tobytes()).decode()}


def _has_plain_bits(flat: npt.NDArray[Any]) -> bool:
    """Whether numbers and null can represent all values: there is no infinity, and no NaN other than numpy's."""
    nan = np.isnan(flat)
    usual = np.full(int(nan.sum()), np.nan, flat.dtype)
    return not np.isinf(flat).any() and flat[nan].tobytes() == usual.tobytes()


def _unpacked(packed: Any) -> npt.NDArray[Any]:
    if not isinstance(packed, dict) or not {"dtype", "shape"} < set(packed) <= {"dtype", "shape", "values", "base64"}:
        raise ValueError("it should be an object of dtype, shape, and values or base64")
    dtype, shape = packed["dtype"], packed["shape"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r:.40} is not one of {', '.join(sorted(DTYPES))}")
    sizes = shape if isinstance(shape, list) and len(shape) <= MAX_AXES else [-1]
    if not all(type(n) is int and 0 <= n <= _WIDEST for n in sizes) or math.prod(sizes) > _WIDEST:
        raise ValueError(f"shape {shape!r:.60} is none")
    kind = np.dtype(dtype)
    flat = _from_values(packed["values"], kind) if "values" in packed else _from_base64(packed["base64"], kind)
    if len(flat) != math.prod(sizes):
        raise ValueError(f"{len(flat):,} numbers do not fill the shape {sizes}")
    return flat.reshape(sizes)


def _from_values(values: Any, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    if not isinstance(values, list) or not set(map(type, values)) <= _NUMBERS:
        raise ValueError("values should be a list of numbers")
    if kind.kind == "f":
        made = np.array([math.nan if value is None else value for value in values], np.float64)
        with np.errstate(over="ignore"):
            narrow = made.astype(kind)
        if np.isinf(narrow).any():
            raise ValueError(f"a number is too large for {kind.str}")
        return narrow
    if kind.kind not in "iu" or not set(map(type, values)) <= {int}:
        raise ValueError(f"values of {kind.str} should be whole numbers")
    limits = np.iinfo(kind)
    if values and not (limits.min <= min(values) and max(values) <= limits.max):
        raise ValueError(f"a number does not fit into {kind.str}")
    return np.array(values, kind)


def _from_base64(text: Any, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    if not isinstance(text, str):
        raise ValueError("base64 should be a text")
    raw = base64.b64decode(text, validate=True)
    if len(raw) % kind.itemsize:
        raise ValueError(f"{len(raw):,} bytes are no whole number of {kind.str}")
    if kind.kind == "b" and set(raw) - {0, 1}:
        raise ValueError("truth values should be 0 or 1")
    return np.frombuffer(raw, kind).copy()
