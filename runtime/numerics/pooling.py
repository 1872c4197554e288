"""Pools the hidden states of a text's tokens to one vector of length 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from runtime.errors import InvalidRequestError
from runtime.options.checking import nearest
from runtime.records import Float32

Pooling = Literal["last", "mean", "max", "cls"]
POOLINGS: tuple[str, ...] = get_args(Pooling)


def check_pooling(pooling: object) -> Pooling:
    """Returns a valid name of a pooling.

    Raises:
        InvalidRequestError: An unknown one; the nearest is named.
    """
    if pooling not in POOLINGS:
        raise InvalidRequestError(f"unknown pooling {pooling!r}: {nearest(str(pooling), POOLINGS)}")
    return cast("Pooling", pooling)


def checked_texts(texts: Sequence[str]) -> list[str]:
    """The texts as a list.

    Raises:
        InvalidRequestError: No texts, an empty one, or a value that is not a text; its place is named.
    """
    if isinstance(texts, str | bytes) or not hasattr(texts, "__iter__"):
        raise InvalidRequestError(f"texts is a list of texts, not {type(texts).__name__}; for a single one: embed([text])")
    listed = list(texts)
    if not listed:
        raise InvalidRequestError("no texts: give at least one")
    for row, text in enumerate(listed):
        if not isinstance(text, str):
            raise InvalidRequestError(f"texts[{row}] is no text but {type(text).__name__}")
        if not text:
            raise InvalidRequestError(f"texts[{row}] is empty, of {len(listed):,}: an empty text has no vector; leave it out")
    return listed


class Pooler:
    """Accumulates the hidden states of one text, in pieces of any size and in order.

    Sums are in float64, so that the vector does not depend on the pieces.
    """

    __slots__ = ("_count", "_pooling", "_state")

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling
        self._count = 0
        self._state: npt.NDArray[np.floating] | None = None  # (hidden,)

    def add(self, hidden: Float32) -> None:
        """The next tokens' states ``(n, hidden)``, n at least 1."""
        first = self._state is None
        match self._pooling:
            case "last":
                self._state = hidden[-1].copy()
            case "cls":
                self._state = hidden[0].copy() if first else self._state
            case "mean":
                part = hidden.sum(axis=0, dtype=np.float64)
                self._state = part if self._state is None else self._state + part
            case "max":
                part = hidden.max(axis=0)
                self._state = part if self._state is None else np.maximum(self._state, part)
        self._count += len(hidden)

    def vector(self) -> Float32:
        """The vector ``(hidden,) float32`` of length 1; not finite if a state was not."""
        assert self._state is not None
        wide = self._state.astype(np.float64)
        if self._pooling == "mean":
            wide /= self._count
        length = float(np.linalg.norm(wide))
        return (wide / length if length else wide).astype(np.float32)
