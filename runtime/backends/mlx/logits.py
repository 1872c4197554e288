"""`DeviceLogits` with MLX."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import mlx.core as mx
import numpy as np

from runtime.backends.packs.logits import DeviceLogits
from runtime.backends.packs.tree import Int64
from runtime.numerics.ranking import RankRequest
from runtime.numerics.scoring import heated_masses, normalisers, score_logits
from runtime.records import Float32

PART = 64  # entries represented by their largest, as sorting is slow on a GPU
SUMMED = 512  # entries added up in float32 in one pass
ALIKE = 3e-5  # tolerance in nats between device and host


class MlxLogits(DeviceLogits):
    """Raw logits of a forward. Owner thread only.

    Args:
        logits: ``(n, vocab) float32``; evaluated, or to be evaluated with `due`.
        computing: The context of calls to MLX, with out-of-memory errors as ours.
    """

    def __init__(self, logits: mx.array, computing: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__(*logits.shape)
        self._logits, self._computing = logits, computing
        self.due = [logits]  # arrays of `begin_ranked` to evaluate with the forward

    def rows(self, chosen: Int64) -> Float32:
        with self._computing():
            return np.array(self._chosen(chosen))

    def _chosen(self, chosen: Int64) -> mx.array:
        return self._logits[mx.array(chosen.astype(np.int32))]

    def take(self, chosen: Int64) -> MlxLogits:
        with self._computing():
            rows = self._chosen(chosen)
            mx.async_eval(rows)  # type: ignore[no-untyped-call]  # else it keeps the other rows in memory until it is read
            return MlxLogits(rows, self._computing)

    def _entries(self, rows: slice, ids: Int64) -> Float32:
        with self._computing():
            return np.array(self._logits[rows, mx.array(ids.astype(np.int32))])

    def _numbers(self, chosen: Int64, targets: Int64, width: int) -> Float32:
        with self._computing():
            own_ids = mx.array(targets.astype(np.int32))
            blocks = self._blocks(len(chosen))
            return _crossed([_numbers(self._chosen(chosen[b]), own_ids[b], width) for b in blocks])

    def _begin_heads(
        self, colder: Float32 | None, width: int, whole: Int64, chosen: Int64 | None = None
    ) -> Callable[[], tuple[Float32, Float32]]:
        n = len(self) if chosen is None else len(chosen)
        with self._computing():
            by = None if colder is None else mx.array(colder)
            raw = ((b, self._logits[b] if chosen is None else self._chosen(chosen[b])) for b in self._blocks(n))
            parts = [_heads(part, None if by is None else by[b], width) for b, part in raw]
            rows = [self._chosen(whole)] if len(whole) else []
            self.due += [*parts[:1], *rows]  # only the first, as evaluating all parts at once needs memory for all

        def wait() -> tuple[Float32, Float32]:
            with self._computing():
                mx.eval(self.due)  # together, so that the host waits once
                self.due.clear()
                return _crossed(parts), np.array(rows[0]) if rows else np.empty((0, self._vocab), np.float32)

        return wait


@cache
def as_on_host(vocab: int) -> bool:
    """Whether this device computes the host's scores and order, tested with three rows."""
    raw = (np.round(np.random.default_rng(0).normal(0, 32, (3, vocab))) / 8).astype(np.float32)  # many ties, but no near-ties
    chosen, targets, k = np.arange(3), np.array([0, vocab // 2, vocab - 1], np.int32), min(10, vocab)
    logits, hot = MlxLogits(mx.array(raw), nullcontext), np.full(3, 0.7)
    own, host = logits.score(chosen, targets, k)[0], score_logits(raw, targets, k)[0]
    ranked = logits.ranked(RankRequest(k, tuple(hot)))
    same = np.array_equal(own.top_ids, host.top_ids) and np.array_equal(own.rank, host.rank)
    same &= all(np.array_equal(row.ids, ids[: len(row.ids)]) for row, ids in zip(ranked.rows, host.top_ids, strict=True))
    tops, log_totals, _, _ = normalisers(raw)
    heated = np.array([row.heated[1] for row in ranked.rows if row.heated is not None])
    pairs = [(getattr(own, name), getattr(host, name)) for name in ("logprob", "entropy", "top_logprobs")]
    pairs += [(ranked.shift, tops + log_totals), (np.log(heated), np.log(heated_masses(raw, tops, hot)))]
    return same and all(np.allclose(mine, theirs, rtol=0, atol=ALIKE) for mine, theirs in pairs)


def _crossed(parts: list[mx.array]) -> Float32:
    """Evaluates the parts one after the other and copies them to the host."""
    for part in parts:
        mx.eval(part)
    return np.concatenate([np.array(part) for part in parts]).view(np.float32)


def _numbers(raw: mx.array, own_ids: mx.array, width: int) -> mx.array:
    """See `DeviceLogits._numbers`, for raw logits ``(n, vocab)``."""
    logprobs, _, _, _, entropy = _normalised(raw)
    own = mx.take_along_axis(logprobs, own_ids[:, None], axis=1)
    rank = 1 + (logprobs > own).sum(-1, keepdims=True)
    values, ids = _largest(logprobs, width)
    return _side_by_side([own, entropy, rank, values, ids])


def _heads(raw: mx.array, colder: mx.array | None, width: int) -> mx.array:
    """See `DeviceLogits._begin_heads`, for raw logits ``(n, vocab)``."""
    logprobs, top, total, log_total, entropy = _normalised(raw)
    values, ids = _largest(logprobs, width)
    heated = total if colder is None else _sum(mx.exp((logprobs + log_total) * colder))
    return _side_by_side([top, total, log_total, entropy, heated, values, ids])


def _normalised(raw: mx.array) -> tuple[mx.array, ...]:
    """Log-probabilities ``(n, vocab)``; and ``(n, 1)``: tops, sums of exp(logit - top), their logarithms, entropies."""
    top = raw.max(-1, keepdims=True)
    shifted = raw - top
    weights = mx.exp(shifted)
    total = _sum(weights)
    log_total = mx.log(total)
    entropy = log_total - _sum(weights * shifted) / total
    return shifted - log_total, top, total, log_total, entropy


def _sum(rows: mx.array) -> mx.array:
    """``(n, 1)`` sums in two steps: added up one by one, 128,000 entries have a relative error of 2e-4."""
    n, vocab = rows.shape
    return mx.pad(rows, [(0, 0), (0, -vocab % SUMMED)]).reshape(n, -1, SUMMED).sum(-1).sum(-1, keepdims=True)


def _largest(rows: mx.array, width: int) -> tuple[mx.array, mx.array]:
    """``(n, width)`` each: the largest entries, descending, and their ids; found in the parts with the largest maxima."""
    n, vocab = rows.shape
    if vocab > 2 * PART * width:
        padded = mx.pad(rows, [(0, 0), (0, -vocab % PART)], constant_values=-float("inf"))
        parts = padded.reshape(n, -1, PART)
        best = mx.argpartition(-parts.max(-1), width - 1, axis=-1)[:, :width, None]
        ids = (best * PART + mx.arange(PART)).reshape(n, -1)
        rows = mx.take_along_axis(parts, best, axis=1).reshape(n, -1)
    else:
        ids = mx.broadcast_to(mx.arange(vocab), rows.shape)
    order = mx.argsort(-rows, axis=-1)[:, :width]
    return mx.take_along_axis(rows, order, axis=-1), mx.take_along_axis(ids, order, axis=-1)


def _side_by_side(columns: list[mx.array]) -> mx.array:
    """Concatenates integers and the bits of floats as int32: as float32, small integers may be flushed to zero on a GPU."""
    return mx.concatenate([c.view(mx.int32) if c.dtype == mx.float32 else c.astype(mx.int32) for c in columns], 1)
