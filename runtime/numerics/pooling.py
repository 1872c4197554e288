"""From the hidden states of a text's tokens to one vector of length 1."""

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
    """The pooling.

    Raises:
        InvalidRequestError: An unknown one; the nearest is named.
    """
    if pooling not in POOLINGS:
        raise InvalidRequestError(f"unknown pooling {pooling!r}: {nearest(str(pooling), POOLINGS)}")
    return cast("Pooling", pooling)


def checked_texts(texts: Sequence[str]) -> list[str]:
    """The texts as a list.

    Raises:
        InvalidRequestError: None at all, an empty one, or something that is no text; its place is named.
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


class Pool:
    """Takes in the hidden states of one text, in pieces of any size and in order.

    Sums are kept in float64, so that a text that comes in pieces has the vector of the whole.
    """

    __slots__ = ("_count", "_kept", "_pooling")

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling
        self._count = 0
        self._kept: npt.NDArray[np.floating] | None = None  # (hidden,)

    def add(self, hidden: Float32) -> None:
        """The next tokens' states ``(n, hidden)``, n at least 1."""
        first = self._kept is None
        match self._pooling:
            case "last":
                self._kept = hidden[-1].copy()
            case "cls":
                self._kept = hidden[0].copy() if first else self._kept
            case "mean":
                part = hidden.sum(axis=0, dtype=np.float64)
                self._kept = part if self._kept is None else self._kept + part
            case "max":
                part = hidden.max(axis=0)
                self._kept = part if self._kept is None else np.maximum(self._kept, part)
        self._count += len(hidden)

    def vector(self) -> Float32:
        """The text's vector ``(hidden,) float32``: of length 1, or not finite where a state was not."""
        assert self._kept is not None
        wide = self._kept.astype(np.float64)
        if self._pooling == "mean":
            wide /= self._count
        length = float(np.linalg.norm(wide))
        return (wide / length if length else wide).astype(np.float32)
