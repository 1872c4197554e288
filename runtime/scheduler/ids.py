"""Token ids as callers give them, checked before anything is asked for."""

from __future__ import annotations

from array import array as packed_ints
from collections.abc import Sequence
from typing import Any

import numpy as np

from runtime.errors import ContextOverflowError, InvalidRequestError
from runtime.options.checking import TEXT_FOR_IDS, shown
from runtime.records import Int32


def check_ids(ids: Sequence[int] | np.ndarray[Any, Any], *, vocab: int, context: int, stage: str = "prompt") -> Int32:
    """The ids as an array of their own.

    Raises:
        InvalidRequestError: Empty, not whole numbers, or outside the vocabulary (the first bad one is named).
        ContextOverflowError: More than the context holds.
    """
    if isinstance(ids, str | bytes):
        raise InvalidRequestError(TEXT_FOR_IDS)
    kinds = set(map(type, ids)) if isinstance(ids, list | tuple) else set()
    if bool in kinds:
        raise InvalidRequestError("token ids must be whole numbers, not bool")
    try:
        array = _packed(ids) if kinds == {int} else np.asarray(ids)
    except (ValueError, OverflowError) as error:  # lists of different lengths
        raise InvalidRequestError(f"token ids must be one flat sequence: {error}") from error
    if array.ndim != 1 or array.size == 0:
        raise InvalidRequestError(
            "no tokens: give at least one token id (an empty prompt has nothing to predict from)"
            if array.size == 0
            else f"token ids must be one flat sequence, not {f'of shape {array.shape}' if array.ndim else shown(ids)}"
        )
    if array.dtype.kind not in "iu":
        raise InvalidRequestError(f"token ids must be whole numbers, not {array.dtype}")
    if array.min() < 0 or array.max() >= vocab:
        at = int(np.flatnonzero((array < 0) | (array >= vocab))[0])
        raise InvalidRequestError(f"token id {int(array[at])} at position {at} is outside the vocabulary of {vocab:,}")
    if array.size > context:
        raise ContextOverflowError(stage, 0, int(array.size), context)
    return array.astype(np.int32)


def _packed(ids: Sequence[int] | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`numpy.asarray` of plain ints, in half the time."""
    try:
        return np.frombuffer(packed_ints("q", ids), np.int64)
    except OverflowError:
        return np.asarray(ids)
