"""Bare forwards (one forward of all rows per step, a KV cache, nothing else); log-probabilities and records in numpy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.measure import Float32, Ids
from runtime import UnsupportedFeatureError

NAME = "bare forwards"


class BareRows(ABC):
    """Rows of one length that grow by a token per call, like particles; subclasses run a library's forwards.

    Other requests are not supported: prompts of different lengths, generation.
    """

    name = NAME

    def __init__(self) -> None:
        self._rows: dict[tuple[int, ...], int] = {}  # row of the cache, by its tokens
        self._last: Float32 | None = None  # log-probabilities of the last call, (rows, vocab)

    def logprobs(self, contexts: Sequence[Ids]) -> Float32:
        """Log-probabilities after each context.

        The contexts are those of the previous call, or each is one of these and one more token; any if the cache is empty.
        """
        wanted = [tuple(context) for context in contexts]
        if self._last is not None and all(context in self._rows for context in wanted):
            chosen = [self._rows[context] for context in wanted]
            self.choose(chosen)
            self._last = self._last[chosen]
        elif self._last is None:
            self._last = self.forward(list(contexts))
        else:
            parents = [self._rows[context[:-1]] for context in wanted]
            if parents != list(range(len(self._rows))):
                self.choose(parents)
            self._last = self.forward([context[-1:] for context in contexts])
        self._rows = {context: row for row, context in reversed(list(enumerate(wanted)))}
        return self._last

    def answers(self, prompts: Sequence[Ids], n: int) -> list[list[int]]:
        """Generation is not supported.

        Raises:
            UnsupportedFeatureError: Always.
        """
        raise UnsupportedFeatureError(f"{self.name} generate nothing: {len(prompts)} prompts, {n} tokens")

    def forget(self) -> None:
        """Clears the cache and the last answer."""
        self._rows, self._last = {}, None
        self.clear()

    @abstractmethod
    def forward(self, rows: list[Ids]) -> Float32:
        """Pushes rows of equal length; returns the log-probabilities after each, ``(rows, vocab) float32``."""

    @abstractmethod
    def choose(self, rows: list[int]) -> None:
        """Keeps these rows of the cache, in this order; a row can be repeated."""

    @abstractmethod
    def clear(self) -> None:
        """Clears the cache."""


TOP = 10  # alternatives in a record


def log_softmax(logits: Float32) -> Float32:
    """Log-probabilities of ``(n, vocab)`` logits, in float32 throughout."""
    shifted = logits - logits.max(-1, keepdims=True)
    normalised: Float32 = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return normalised


def records(logprobs: Float32, chosen: Any) -> list[tuple[Any, ...]]:
    """The fields of Elsewise's records as plain Python values per token, from ``(n, vocab)`` log-probabilities."""
    own = np.take_along_axis(logprobs, chosen[:, None], -1)
    rank = 1 + (logprobs > own).sum(-1)
    entropy = -(np.exp(logprobs) * logprobs).sum(-1)
    ids, values = top(logprobs)
    columns = (chosen, own[:, 0], rank, entropy, ids, values, np.exp(values).sum(-1))
    return list(zip(*(column.tolist() for column in columns), strict=True))


def top(logprobs: Float32) -> tuple[Any, Float32]:
    """The ten largest entries of each row in descending order: ids and values, both ``(n, 10)``."""
    ids = np.argpartition(logprobs, -TOP, axis=-1)[:, -TOP:]
    values = np.take_along_axis(logprobs, ids, -1)
    order = np.argsort(-values, axis=-1)
    return np.take_along_axis(ids, order, -1), np.take_along_axis(values, order, -1)
