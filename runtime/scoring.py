"""From raw logits to numbers: log-softmax, rank, entropy, top-k, vectorised over rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from runtime.records import NO_TOKEN, Float32, Int32, Scores


def log_softmax(logits: npt.NDArray[np.floating]) -> Float32:
    """``(n, vocab)`` raw logits to ``(n, vocab) float32`` log-probabilities in nats.

    The normaliser is summed in float64: a float32 sum over 50,000 entries is off by more than the tolerance we print.
    """
    rows = np.asarray(logits, np.float32)
    top = rows.max(axis=-1, keepdims=True)
    shifted = rows - top
    total = np.exp(shifted).sum(axis=-1, keepdims=True, dtype=np.float64)
    normalised: Float32 = shifted - np.log(total).astype(np.float32)
    return normalised


def summarise(logprobs: Float32, targets: Int32 | None, k: int) -> Scores:
    """What the rows say of their next tokens.

    Args:
        logprobs: ``(n, vocab)`` from `log_softmax`.
        targets: ``(n,)`` the token that followed each row; None leaves logprob NaN and rank 0.
        k: Alternatives to keep; narrower vocabularies fill with `NO_TOKEN`.
    """
    n, vocab = logprobs.shape
    probs = np.exp(logprobs)
    entropy = -(probs * np.where(np.isneginf(logprobs), 0.0, logprobs)).sum(axis=-1, dtype=np.float64)
    top_ids, top_logprobs = top_k(logprobs, min(k, vocab))
    missing = k - top_ids.shape[1]
    if missing:
        top_ids = np.pad(top_ids, ((0, 0), (0, missing)), constant_values=NO_TOKEN)
        top_logprobs = np.pad(top_logprobs, ((0, 0), (0, missing)), constant_values=-np.inf)
    if targets is None:
        own, rank = np.full(n, np.nan, np.float32), np.zeros(n, np.int32)
    else:
        own = logprobs[np.arange(n), targets]
        rank = 1 + (logprobs > own[:, None]).sum(axis=-1, dtype=np.int32)
    covered = np.exp(top_logprobs).sum(axis=-1, dtype=np.float64)
    return Scores(own, rank, entropy.astype(np.float32), top_ids, top_logprobs, np.minimum(covered, 1.0).astype(np.float32))


def top_k(logprobs: Float32, k: int) -> tuple[Int32, Float32]:
    """The `k` likeliest ids of each row and their values, falling, ties by id: ``(n, k)`` each."""
    n, vocab = logprobs.shape
    if k == 0:
        return np.empty((n, 0), np.int32), np.empty((n, 0), np.float32)
    if k < vocab:
        border = np.partition(logprobs, vocab - k, axis=-1)[:, vocab - k]  # the k-th largest value of each row
        found = [_first_k(row, border[i], k) for i, row in enumerate(logprobs)]
        ids = np.stack(found)
    else:
        ids = np.broadcast_to(np.arange(vocab), (n, vocab))
    values = np.take_along_axis(logprobs, ids, axis=-1)
    order = np.lexsort((ids, -values), axis=-1)
    return np.take_along_axis(ids, order, axis=-1).astype(np.int32), np.take_along_axis(values, order, axis=-1)


def _first_k(row: Float32, border: np.float32, k: int) -> npt.NDArray[np.int64]:
    """The ids above the border and as many equal to it, lowest first, as fit."""
    above = np.flatnonzero(row > border)
    equal = np.flatnonzero(row == border)[: k - len(above)]
    return np.concatenate([above, equal])


def empty_scores(n: int, k: int) -> Scores:
    """`n` tokens of which nothing is known."""
    nan = np.full(n, np.nan, np.float32)
    return Scores(
        nan,
        np.zeros(n, np.int32),
        nan.copy(),
        np.full((n, k), NO_TOKEN, np.int32),
        np.full((n, k), -np.inf, np.float32),
        nan.copy(),
    )
