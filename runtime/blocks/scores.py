"""Scores beside the KV of a block, so that a text that is opened again need not be scored again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import cast

import numpy as np

from runtime.backends.stored import Stored
from runtime.errors import SnapshotFormatError
from runtime.numerics.scoring import empty_scores
from runtime.records import Scores

_PREFIX = "scores."
_COLUMNS = tuple(column.name for column in fields(Scores))


def as_arrays(parts: Sequence[tuple[int, Scores | None]]) -> Stored:
    """The scores of consecutive tokens, as `joined` has them; nothing where none is known."""
    whole = joined(parts)
    return {} if whole is None else {_PREFIX + name: getattr(whole, name) for name in _COLUMNS}


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


def joined(parts: Sequence[tuple[int, Scores | None]]) -> Scores | None:
    """The scores of consecutive tokens, given as (tokens, what is known of them); None where nothing is.

    What is not known, or of fewer alternatives than the rest, stays open: one token without scores takes them from no other.
    """
    width = max((known.top_ids.shape[1] for _, known in parts if known is not None), default=None)
    if width is None:
        return None
    fitting = (None if known is None or known.top_ids.shape[1] < width else known for _, known in parts)
    return Scores.concat(
        [empty_scores(n, width) if known is None else known for (n, _), known in zip(parts, fitting, strict=True)]
    )
