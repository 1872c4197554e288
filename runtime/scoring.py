"""From raw logits to numbers: log-softmax, rank, entropy, top-k, vectorised over rows.

Rows are worked through in blocks that stay in the processor's cache: each pass over a block of a large vocabulary would
otherwise go through memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from runtime.records import NO_TOKEN, Float32, Int32, Scores

BLOCK_ENTRIES = 1 << 18  # 1 MiB of float32
STRIPES = 64  # rows of a vocabulary laid out as a rectangle, for a first guess at its top


def log_softmax(logits: npt.NDArray[np.floating]) -> Float32:
    """``(n, vocab)`` raw logits to ``(n, vocab) float32`` log-probabilities in nats.

    The normaliser is summed pairwise: a plain float32 sum over 50,000 entries is off by more than the tolerance we print.
    """
    return normalised(logits)


def normalised(
    logits: npt.NDArray[np.floating], *, entropy: Float32 | None = None, finite: npt.NDArray[np.bool_] | None = None
) -> Float32:
    """`log_softmax`, and from the same pass what else is asked for.

    Args:
        logits: ``(n, vocab)``.
        entropy: ``(n,)``, filled with the entropy of each row in nats.
        finite: ``(n,)``, filled with which rows held numbers only; the others' answers mean nothing.
    """
    rows = np.asarray(logits, np.float32)
    answer: Float32 = np.empty(rows.shape, np.float32)
    with np.errstate(invalid="ignore" if finite is not None else "warn"):
        for block in _blocks(*rows.shape):
            raw, out = rows[block], answer[block]
            np.subtract(raw, raw.max(axis=-1, keepdims=True), out=out)
            weights = np.exp(out)
            total = weights.sum(axis=-1, keepdims=True)
            log_total = np.log(total)
            if entropy is not None:
                entropy[block] = log_total[:, 0] - np.vecdot(weights, out) / total[:, 0]
            if finite is not None:  # NaN and +inf reach the total, -inf does not
                finite[block] = np.isfinite(total[:, 0]) & np.isfinite(raw.min(axis=-1))
            out -= log_total
    return answer


def summarise(logprobs: Float32, targets: Int32 | None, k: int, entropy: Float32 | None = None) -> Scores:
    """What the rows say of their next tokens.

    Args:
        logprobs: ``(n, vocab)`` from `log_softmax`.
        targets: ``(n,)`` the token that followed each row; None leaves logprob NaN and rank 0.
        k: Alternatives to keep; narrower vocabularies fill with `NO_TOKEN`.
        entropy: ``(n,)`` where it is known already.
    """
    n, vocab = logprobs.shape
    known, entropy = entropy is not None, np.empty(n, np.float32) if entropy is None else entropy
    own, rank = np.full(n, np.nan, np.float32), np.zeros(n, np.int32)
    top_ids, top_logprobs = np.full((n, k), NO_TOKEN, np.int32), np.full((n, k), -np.inf, np.float32)
    width = min(k, vocab)
    for block in _blocks(n, vocab):
        part = logprobs[block]
        if not known:
            entropy[block] = _entropy(part)
        if targets is not None:
            own[block] = np.take_along_axis(part, targets[block, None], axis=-1)[:, 0]
            rank[block] = 1 + np.count_nonzero(part > own[block, None], axis=-1)
        top_ids[block, :width], top_logprobs[block, :width] = top_k(part, width)
    covered = np.exp(top_logprobs).sum(axis=-1, dtype=np.float64)
    return Scores(own, rank, entropy, top_ids, top_logprobs, np.minimum(covered, 1.0).astype(np.float32))


def score_logits(logits: Float32, targets: Int32, k: int) -> tuple[Scores, npt.NDArray[np.bool_]]:
    """`summarise` of raw logits ``(n, vocab)`` whose distributions nobody needs: a block is read once, and not written.

    Returns:
        The scores of `targets` ``(n,)``, and which rows ``(n,)`` held numbers only; the others' scores mean nothing.
    """
    n, vocab = logits.shape
    scores, finite = empty_scores(n, k), np.empty(n, np.bool_)
    width = min(k, vocab)
    for block in _blocks(n, vocab):
        raw = logits[block]
        top = raw.max(axis=-1, keepdims=True)
        with np.errstate(invalid="ignore"):  # infinities show as NaN in the entropy
            shifted = raw - top
            weights = np.exp(shifted)
            total = weights.sum(axis=-1, keepdims=True)
            log_total = np.log(total)
            scores.entropy[block] = log_total[:, 0] - np.vecdot(weights, shifted) / total[:, 0]
        finite[block] = np.isfinite(scores.entropy[block])
        if not finite[block].all():
            sound = finite[block, None]
            shifted, log_total = np.where(sound, shifted, np.float32(0)), np.where(sound, log_total, np.float32(0))
        logprobs = np.subtract(shifted, log_total, out=shifted)  # ranks and ties are those of the answer, to the bit
        own = np.take_along_axis(logprobs, targets[block, None], axis=-1)
        scores.rank[block] = 1 + np.count_nonzero(logprobs > own, axis=-1)
        scores.logprob[block] = own[:, 0]
        scores.top_ids[block, :width], scores.top_logprobs[block, :width] = top_k(logprobs, width)
    covered = np.exp(scores.top_logprobs).sum(axis=-1, dtype=np.float64)
    scores.covered_mass[:] = np.minimum(covered, 1.0)
    return scores, finite


def top_k(logprobs: Float32, k: int) -> tuple[Int32, Float32]:
    """The `k` likeliest ids of each row and their values, falling, ties by id: ``(n, k)`` each."""
    if k == 0:
        n = len(logprobs)
        return np.empty((n, 0), np.int32), np.empty((n, 0), np.float32)
    ids = np.stack([falling(row, k, border) for row, border in zip(logprobs, low_borders(logprobs, k), strict=True)])
    return ids.astype(np.int32), np.take_along_axis(logprobs, ids, axis=-1)


def falling(row: Float32, k: int, border: np.float32) -> npt.NDArray[np.int64]:
    """The `k` likeliest ids of one row ``(vocab,)``, falling, ties by id; `border` from `low_borders`."""
    ids = np.flatnonzero(row >= border)
    return ids[np.lexsort((ids, -row[ids]))][:k]


def low_borders(logprobs: Float32, k: int) -> Float32:
    """``(n,)``: a value that at least `k` entries of each row reach, and few more.

    It is the k-th largest among the largest of many disjoint parts of the row, each of which is an entry of the row.
    """
    n, vocab = logprobs.shape
    width = vocab // STRIPES
    if k > width:
        return _kth_largest(logprobs, min(k, vocab))
    tops: Float32 = logprobs[:, : width * STRIPES].reshape(n, STRIPES, width).max(axis=1)
    return _kth_largest(tops, k)


def _kth_largest(values: Float32, k: int) -> Float32:
    at = values.shape[1] - k
    found: Float32 = np.partition(values, at, axis=-1)[:, at]
    return found


def _entropy(logprobs: Float32) -> Float32:
    """``(n,)`` in nats; what has no probability adds nothing."""
    probs = np.exp(logprobs)
    if np.isneginf(logprobs.min(initial=0.0)):
        logprobs = np.where(np.isneginf(logprobs), np.float32(0), logprobs)
    entropy: Float32 = -np.multiply(probs, logprobs, out=probs).sum(axis=-1)
    return entropy


def _blocks(n: int, vocab: int) -> Iterator[slice]:
    """Slices of rows that fit the cache."""
    rows = max(BLOCK_ENTRIES // max(vocab, 1), 1)
    return (slice(start, start + rows) for start in range(0, n, rows))


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
