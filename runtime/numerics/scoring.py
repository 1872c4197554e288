"""From raw logits to scores: log-softmax, rank, entropy, top-k, vectorised over rows.

Rows are processed in blocks that stay in the processor's cache: otherwise every pass over a large vocabulary would go through
memory.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.numerics.ranking import STRIPES, Ranked, likeliest
from runtime.records import NO_TOKEN, Float32, Float64, Int32, Scores

BLOCK_ENTRIES = 1 << 18  # 1 MiB of float32
SUMMED_ENTRIES = 512  # length of float32 partial sums, about
COLDEST = 1e-30  # least temperature in float32; the likeliest token has all of the weight far above it
MOST_ENTRIES = 1 << 19  # of an array of `scratch`: 2 MiB of float32 for each use on each thread; larger ones are not reused
_ONES = np.ones(2 * SUMMED_ENTRIES, np.float32)


def log_softmax(
    logits: npt.NDArray[np.floating],
    *,
    entropy: Float64 | None = None,
    finite: npt.NDArray[np.bool_] | None = None,
    shift: Float32 | None = None,
    mass: Float64 | None = None,
    out: Float32 | None = None,
    peaks: Float32 | None = None,
    temperatures: Float64 | None = None,
    heated: Float64 | None = None,
) -> Float32:
    """``(n, vocab)`` raw logits to ``(n, vocab) float32`` log-probabilities in nats, and more from the same pass.

    The normaliser is summed in blocks: a plain float32 sum over 50,000 entries is off by more than the tolerance we print.

    Args:
        logits: ``(n, vocab)``.
        entropy: ``(n,)``, filled with the entropy of each row in nats; more precise than float32.
        finite: ``(n,)``, filled with which rows are finite; the results of other rows are undefined.
        shift: ``(n,)``, filled with the normalisers: raw logits less log-probabilities.
        mass: ``(n,)``, filled with the sums of exp over the resulting rows: 1 except for the rounding of the normaliser, which
            is the same for all entries of a row.
        out: ``(n, vocab)``, receives the result; it may be `logits`. None makes a new array.
        peaks: ``(n, vocab // STRIPES)``, filled with `Ranked.peaks` of the resulting rows.
        temperatures: ``(n,)``, for `heated`.
        heated: ``(n,)``, filled with `heated_masses` of the resulting rows.
    """
    rows = np.asarray(logits, np.float32)
    answer: Float32 = np.empty(rows.shape, np.float32) if out is None else out
    with np.errstate(
        invalid="ignore" if finite is not None else "warn", over="ignore"
    ):  # overflow by far lower entries at a low temperature
        for block in _blocks(*rows.shape):
            raw, below = rows[block], answer[block]
            top = raw.max(axis=-1) if peaks is None else _tops(raw, peaks[block])
            np.subtract(raw, top[:, None], out=below)
            weights = np.exp(below, out=scratch("weights", below.size).reshape(below.shape))
            total = row_sums(weights)
            log_total = np.log(total)
            if entropy is not None:
                sums = total.astype(np.float64)
                np.subtract(np.log(sums), row_dots(weights, below) / sums, out=entropy[block])
            if finite is not None:  # NaN and +inf show in the total; -inf, which weighs nothing, only in the entropy
                np.isfinite(total + raw.min(axis=-1) if entropy is None else entropy[block], out=finite[block])
            if shift is not None:
                np.add(top, log_total, out=shift[block])
            if mass is not None:
                np.multiply(total, np.exp(-log_total, dtype=np.float64), out=mass[block])
            below -= log_total[:, None]
            if peaks is not None:  # rounding keeps the order: the maxima of raw logits are those of log-probabilities
                peaks[block] -= top[:, None]
                peaks[block] -= log_total[:, None]
            if heated is not None and temperatures is not None:
                heated[block] = heated_masses(below, -log_total, temperatures[block])
    return answer


def asked_temperatures(temperatures: Sequence[float]) -> Float64 | None:
    """The temperatures as an array for `log_softmax`; None if all are 1."""
    return None if {1.0}.issuperset(temperatures) else np.array(temperatures)


def heated_masses(logprobs: Float32, tops: Float32, temperatures: Float64) -> Float64:
    """``(n,)`` total weights of rows divided by a temperature, where the largest entry weighs 1; of float32 precision.

    Args:
        logprobs: ``(n, vocab)``.
        tops: ``(n,)``, the maximum of each row.
        temperatures: ``(n,)`` from `COLDEST`.
    """
    weights = scratch("weights", logprobs.size).reshape(logprobs.shape)
    np.subtract(logprobs, tops[:, None], out=weights)
    weights *= (1.0 / temperatures).astype(np.float32)[:, None]
    masses: Float64 = row_sums(np.exp(weights, out=weights), np.float64)
    return masses


def empty_peaks(n: int, vocab: int) -> Float32 | None:
    """An array for the `peaks` of ``(n, vocab)`` rows; None for short rows, and for a single one, where they do not pay."""
    return np.empty((n, vocab // STRIPES), np.float32) if vocab >= STRIPES and n > 1 else None


def _tops(raw: Float32, peaks: Float32) -> Float32:
    """``(n,)`` maxima of ``(n, vocab)`` rows, computed from those of their parts, which are written into `peaks`."""
    n, vocab = raw.shape
    width = peaks.shape[1]
    np.maximum.reduce(raw[:, : width * STRIPES].reshape(n, STRIPES, width), axis=1, out=peaks)
    tops: Float32 = np.maximum.reduce(peaks, axis=-1)
    if width * STRIPES < vocab:
        np.maximum(tops, np.maximum.reduce(raw[:, width * STRIPES :], axis=-1), out=tops)
    return tops


def normalisers(logits: Float32) -> tuple[Float32, Float32, Float64, npt.NDArray[np.bool_]]:
    """The terms of log-probabilities ``(raw - top) - log_total``, equal bit for bit to those of `log_softmax`.

    Args:
        logits: ``(n, vocab)``; only read.

    Returns:
        ``(n,)`` each: tops (the maxima), log totals (logarithms of the sums of exp(raw - top)), the masses as of `log_softmax`,
        and which rows are finite; the values of the others are undefined.
    """
    n, vocab = logits.shape
    tops, log_totals, masses, finite = np.empty(n, np.float32), np.empty(n, np.float32), np.empty(n), np.empty(n, np.bool_)
    with np.errstate(invalid="ignore"):
        for block in _blocks(n, vocab):
            raw = logits[block]
            weights = scratch("weights", raw.size).reshape(raw.shape)
            top = raw.max(axis=-1)
            np.exp(np.subtract(raw, top[:, None], out=weights), out=weights)
            total = row_sums(weights)
            tops[block], log_totals[block] = top, np.log(total)
            np.multiply(total, np.exp(-log_totals[block], dtype=np.float64), out=masses[block])
            finite[block] = np.isfinite(total) & np.isfinite(raw.min(axis=-1))
    return tops, log_totals, masses, finite


def summarise(logprobs: Float32, targets: Int32 | None, k: int, entropy: Float64 | None = None) -> Scores:
    """The scores of rows and of their next tokens.

    Args:
        logprobs: ``(n, vocab)`` from `log_softmax`.
        targets: ``(n,)`` the token that followed each row; None leaves logprob NaN and rank 0.
        k: Number of alternatives; smaller vocabularies are filled with `NO_TOKEN`.
        entropy: ``(n,)`` if known.
    """
    return summarise_ranked([Ranked(row) for row in logprobs], targets, k, entropy)


def summarise_ranked(ranked: Sequence[Ranked], targets: Int32 | None, k: int, entropy: Float64 | None = None) -> Scores:
    """`summarise` of rows that draws may have sorted in part."""
    n = len(ranked)
    top_ids, top_logprobs = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
    logprob, rank = [math.nan] * n, [0] * n
    spread = [] if entropy is None else entropy.tolist()
    for i, order in enumerate(ranked):
        order.reach(k)
        held = min(len(order.ids), k)
        top_ids[i, :held], top_logprobs[i, :held] = order.ids[:k], order.values[:k]
        if held < k:
            top_ids[i, held:], top_logprobs[i, held:] = NO_TOKEN, -np.inf
        if targets is not None:
            own, above = order.place_of(int(targets[i]))
            logprob[i], rank[i] = float(own), 1 + above
        if entropy is None:
            probs, logs = np.exp(order.row), order.row
            if np.isneginf(logs.min()):  # the limit of p log p at 0 is 0
                logs = np.where(np.isneginf(logs), np.float32(0), logs)
            spread.append(-np.multiply(probs, logs, out=probs).sum())
    covered = np.add.reduce(np.exp(top_logprobs), axis=-1, dtype=np.float64)
    mass = np.minimum(covered, 1.0).astype(np.float32)
    columns = np.array(logprob, np.float32), np.array(rank, np.int32), np.array(spread, np.float32)
    return Scores(*columns, top_ids, top_logprobs, mass)


def score_logits(logits: Float32, targets: Int32, k: int) -> tuple[Scores, npt.NDArray[np.bool_]]:
    """`summarise` of raw logits ``(n, vocab)`` whose distributions are not needed: reads a block once, writes none.

    Returns:
        The scores of `targets` ``(n,)``, and which rows ``(n,)`` are finite; the scores of the others are undefined.
    """
    n, vocab = logits.shape
    scores, finite = empty_scores(n, k), np.empty(n, np.bool_)
    width = min(k, vocab)
    for block in _blocks(n, vocab):
        raw = logits[block]
        peaks: Float32 = np.empty((len(raw), vocab // STRIPES), np.float32)
        top = (_tops(raw, peaks) if peaks.size else raw.max(axis=-1))[:, None]
        with np.errstate(invalid="ignore"):  # infinities show as NaN in the entropy
            shifted = raw - top
            peaks -= top
            weights = np.exp(shifted, out=scratch("weights", shifted.size).reshape(shifted.shape))
            total = row_sums(weights)[:, None]
            log_total = np.log(total)
            scores.entropy[block] = log_total[:, 0] - row_dots(weights, shifted) / total[:, 0]
        finite[block] = np.isfinite(scores.entropy[block])
        if not finite[block].all():
            sound = finite[block, None]
            shifted, peaks, log_total = (np.where(sound, each, np.float32(0)) for each in (shifted, peaks, log_total))
        logprobs = np.subtract(shifted, log_total, out=shifted)  # ranks and ties equal those of `log_softmax`
        own = np.take_along_axis(logprobs, targets[block, None], axis=-1)
        scores.rank[block] = ranks_of(logprobs, own[:, 0])
        scores.logprob[block] = own[:, 0]
        peaks -= log_total  # rounding keeps the order: the maxima of `shifted` are those of log-probabilities
        found = top_k(logprobs, width, peaks if peaks.size else None)
        scores.top_ids[block, :width], scores.top_logprobs[block, :width] = found
    covered = np.exp(scores.top_logprobs).sum(axis=-1, dtype=np.float64)
    scores.covered_mass[:] = np.minimum(covered, 1.0)
    return scores, finite


def top_k(logprobs: Float32, k: int, peaks: Float32 | None = None) -> tuple[Int32, Float32]:
    """The `k` likeliest ids of each row and their values, descending, ties by id: ``(n, k)`` each.

    Args:
        logprobs: ``(n, vocab)``.
        k: Number of ids per row.
        peaks: ``(n, vocab // STRIPES)``, `Ranked.peaks` of the rows, if known.
    """
    ids, values = np.empty((len(logprobs), k), np.int32), np.empty((len(logprobs), k), np.float32)
    for i, row in enumerate(logprobs if k else ()):
        chosen = likeliest(row, k, None if peaks is None else peaks[i])
        ids[i], values[i] = chosen, row[chosen]
    return ids, values


def ranks_of(logprobs: Float32, own: Float32) -> Int32:
    """``(n,)``: 1 + the number of entries of each row above its value in `own` ``(n,)``."""
    return np.array([1 + np.count_nonzero(row > value) for row, value in zip(logprobs, own, strict=True)], np.int32)


def row_sums(weights: Float32, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """``(n,)``: sums of ``(n, vocab)`` rows in blocks that are added pairwise: as precise as numpy's sum, and faster.

    Args:
        weights: The rows.
        dtype: The dtype of the sum over the blocks.
    """
    n, vocab = weights.shape
    entries, whole = _summed(vocab)
    blocks = np.vecdot(weights[:, :whole].reshape(n, -1, entries), _ONES[:entries])
    sums: npt.NDArray[Any] = np.add.reduce(blocks, axis=-1, dtype=dtype)  # pairwise
    if whole < vocab:
        sums += np.vecdot(weights[:, whole:], _ONES[: vocab - whole])
    return sums


def row_dots(weights: Float32, values: Float32) -> Float64:
    """``(n,)``: sums of weights times values ``(n, vocab)`` in such blocks: longer dot products differ between machines."""
    n, vocab = weights.shape
    entries, whole = _summed(vocab)
    blocks = np.vecdot(weights[:, :whole].reshape(n, -1, entries), values[:, :whole].reshape(n, -1, entries))
    sums: Float64 = np.add.reduce(blocks, axis=-1, dtype=np.float64)
    if whole < vocab:
        sums += np.vecdot(weights[:, whole:], values[:, whole:])
    return sums


@cache
def _summed(vocab: int) -> tuple[int, int]:
    """The block size of float32 sums, and how many entries of a row lie in whole blocks: all, if a size divides the row."""
    sizes = [size for size in range(SUMMED_ENTRIES // 2, 2 * SUMMED_ENTRIES + 1) if vocab % size == 0]
    entries = min(sizes, key=lambda size: abs(size - SUMMED_ENTRIES), default=SUMMED_ENTRIES)
    return entries, vocab // entries * entries


def _blocks(n: int, vocab: int) -> Iterator[slice]:
    """Slices of rows that fit the cache."""
    rows = max(BLOCK_ENTRIES // max(vocab, 1), 1)
    for start in range(0, n, rows):
        yield slice(start, start + rows)


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.arrays: dict[str, Float32] = {}


_scratch = _Scratch()


def scratch(use: str, entries: int) -> Float32:
    """An uninitialised ``(entries,) float32`` array of the calling thread, valid until its next call for the same use.

    A new array of a vocabulary's size costs as much in page faults as a pass over it.

    Args:
        use: The purpose; arrays that are needed at the same time have different ones.
        entries: Length of the array.
    """
    if entries > MOST_ENTRIES:
        return np.empty(entries, np.float32)
    array = _scratch.arrays.get(use)
    if array is None or len(array) < entries:
        array = _scratch.arrays[use] = np.empty(entries, np.float32)
    return array[:entries]


def empty_scores(n: int, k: int) -> Scores:
    """Scores of `n` tokens that are not scored."""
    nan = np.full(n, np.nan, np.float32)
    return Scores(
        nan,
        np.zeros(n, np.int32),
        nan.copy(),
        np.full((n, k), NO_TOKEN, np.int32),
        np.full((n, k), -np.inf, np.float32),
        nan.copy(),
    )
