"""What peers without fast means of their own make of logits, by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.measure import Float32

TOP = 10  # alternatives in a record


def log_softmax(logits: Float32) -> Float32:
    """Float32 throughout, ``(n, vocab)``."""
    shifted = logits - logits.max(-1, keepdims=True)
    normalised: Float32 = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return normalised


def records(logprobs: Float32, chosen: Any) -> list[tuple[Any, ...]]:
    """What our records hold, made from ``(n, vocab)``: plain Python values per token."""
    own = np.take_along_axis(logprobs, chosen[:, None], -1)
    rank = 1 + (logprobs > own).sum(-1)
    entropy = -(np.exp(logprobs) * logprobs).sum(-1)
    ids, values = top(logprobs)
    columns = (chosen, own[:, 0], rank, entropy, ids, values, np.exp(values).sum(-1))
    return list(zip(*(column.tolist() for column in columns), strict=True))


def top(logprobs: Float32) -> tuple[Any, Float32]:
    """The ten largest of each row, falling: ids and values."""
    ids = np.argpartition(logprobs, -TOP, axis=-1)[:, -TOP:]
    values = np.take_along_axis(logprobs, ids, -1)
    order = np.argsort(-values, axis=-1)
    return np.take_along_axis(ids, order, -1), np.take_along_axis(values, order, -1)
