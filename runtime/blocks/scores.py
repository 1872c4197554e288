"""Scores beside the KV of a block, so that a text that is opened again need not be scored again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import cast

import numpy as np

from runtime.backends.stored import Stored
from runtime.errors import SnapshotFormatError
from runtime.records import Scores

_PREFIX = "scores."
_COLUMNS = tuple(column.name for column in fields(Scores))


def as_arrays(parts: Sequence[Scores | None]) -> Stored:
    """The scores of consecutive tokens; nothing where some have none, or other numbers of alternatives."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or len({part.top_ids.shape[1] for part in known}) != 1:
        return {}
    whole = Scores.concat(known)
    return {_PREFIX + name: getattr(whole, name) for name in _COLUMNS}


def taken_out(arrays: Stored, tokens: int) -> tuple[Stored, Scores | None]:
    """What is KV, and the scores of its `tokens` if they came along.

    Raises:
        SnapshotFormatError: Scores of another shape than ours.
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


def joined(parts: Sequence[Scores | None]) -> Scores | None:
    """The scores of consecutive blocks, where all have them with as many alternatives."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or len({part.top_ids.shape[1] for part in known}) != 1:
        return None
    return Scores.concat(known)
