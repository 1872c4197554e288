"""Logits on the device: for a scored or drawn token a few numbers are copied to the host, not a row of the vocabulary."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Self

import numpy as np
import numpy.typing as npt

from runtime.backends.base import NORMALISED_HEAD, NormalisedRows
from runtime.backends.packs.tree import Bool, Int64
from runtime.numerics.ranking import Ranked, RankedRows, RankRequest, likeliest
from runtime.numerics.scoring import asked_temperatures, empty_scores
from runtime.records import Float32, Int32, Scores

BLOCK_ENTRIES = 1 << 24  # computed at once; 64 MiB of float32, and four times that while at work
NAMED_ENTRIES = 1 << 18  # of named ids, copied at once and cached until each row was read; 1 MiB
SPARE = 6  # entries fetched beyond the requested k, which show ties with the last of them


class DeviceLogits(ABC):
    """Raw logits ``(n, vocab)`` of a forward, kept on the device; only requested numbers are copied to the host.

    Subclasses compute the numbers. Integers are copied as the bits of float32, so that a call needs a single copy.

    Args:
        n: Rows.
        vocab: Entries of each.
    """

    def __init__(self, n: int, vocab: int) -> None:
        self._n, self._vocab = n, vocab
        self.nbytes = n * vocab * np.dtype(np.float32).itemsize
        self._named: tuple[Int64, dict[int, Float32]] = np.empty(0, np.int64), {}  # ids, and their cached entries by row

    def __len__(self) -> int:
        return self._n

    @abstractmethod
    def rows(self, chosen: Int64) -> Float32:
        """Some rows ``(len(chosen), vocab)`` on the host; the caller may write to them."""

    @abstractmethod
    def take(self, chosen: Int64) -> Self:
        """Some rows, copied on the device."""

    def entries(self, row: int, ids: Int64) -> Float32:
        """``(len(ids),)`` of one row, copied with its block of rows: mostly all texts of a forward need the same ids."""
        if row not in self._named[1] or not np.array_equal(ids, self._named[0]):
            at_once = max(NAMED_ENTRIES // len(ids), 1)
            start = row - row % at_once
            self._named = ids, dict(enumerate(self._entries(slice(start, start + at_once), ids), start))
        return self._named[1].pop(row)

    @abstractmethod
    def _entries(self, rows: slice, ids: Int64) -> Float32:
        """``(rows, len(ids))``."""

    @abstractmethod
    def _numbers(self, chosen: Int64, targets: Int64, width: int) -> Float32:
        """``(len(chosen), 3 + 2 * width)``: log-probability, entropy, rank of the targets; the likeliest and their ids."""

    @abstractmethod
    def _begin_heads(
        self, colder: Float32 | None, width: int, whole: Int64, chosen: Int64 | None = None
    ) -> Callable[[], tuple[Float32, Float32]]:
        """Begins to compute ``(n, 5 + 2 * width)`` and ``(len(whole), vocab)``; the result waits for both, once.

        The first holds for each row: top, sum, its logarithm, entropy, heated mass; the likeliest entries, their ids. The
        second holds raw logits.

        Args:
            colder: ``(n, 1)`` factors of the log-probabilities in the heated mass; None: the heated mass is meaningless.
            width: Number of likeliest entries.
            whole: Rows of the second array.
            chosen: The `n` rows of the first array; None: all.
        """

    def _blocks(self, rows: int) -> list[slice]:
        """Slices of rows that are computed at once."""
        at_once = max(BLOCK_ENTRIES // self._vocab, 1)
        return [slice(at, at + at_once) for at in range(0, rows, at_once)]

    def normalised(self, chosen: Int64, whole: int) -> NormalisedRows:
        """The normalisers of some rows, and the first `whole` of these rows themselves."""
        width = min(NORMALISED_HEAD + 1, self._vocab) if whole < len(chosen) else 1
        crossed, rows = self._begin_heads(None, width, chosen[:whole], chosen)()
        top, total, log_total, entropy, _ = crossed[:, :5].T
        values, ids = np.split(crossed[whole:, 5:], 2, axis=1)
        heads = [_head(*head, complete=width == self._vocab) for head in zip(values, ids.view(np.int32), strict=True)]
        return NormalisedRows(rows, top, log_total, _mass(total, log_total), np.isfinite(entropy), heads)

    def score(self, chosen: Int64, targets: Int32, k: int) -> tuple[Scores, Bool]:
        """As `runtime.numerics.scoring.score_logits` for some rows, with O(k) numbers copied for each.

        Returns:
            The scores of `targets` ``(len(chosen),)`` with `k` alternatives, descending, ties by id; and which rows are
            finite: the scores of the others are meaningless.
        """
        n, width = len(chosen), min(k + SPARE, self._vocab)
        scores = empty_scores(n, k)
        crossed = self._numbers(chosen, targets.astype(np.int64), width)
        logprob, entropy, rank, values, ids = np.split(crossed, [1, 2, 3, 3 + width], axis=1)
        scores.logprob[:], scores.entropy[:] = logprob[:, 0], entropy[:, 0]
        scores.rank[:] = rank[:, 0].view(np.int32)
        self._enter_top(scores, values, ids.view(np.int32), chosen, min(k, self._vocab))
        covered = np.exp(scores.top_logprobs).sum(axis=-1, dtype=np.float64)
        scores.covered_mass[:] = np.minimum(covered, 1.0)
        return scores, np.isfinite(scores.entropy)

    def ranked(self, request: RankRequest) -> RankedRows:
        """As `runtime.scheduler.prefill.distributions.normalise` for all rows; copies about `request.width` entries of each."""
        return self.begin_ranked(request)()

    def begin_ranked(self, request: RankRequest) -> Callable[[], RankedRows]:
        """Begins `ranked`; the result waits for it."""
        if request.whole and not 0 <= min(request.whole) <= max(request.whole) < self._n:  # a GPU would report it later
            raise ValueError(f"rows {request.whole} of {self._n}")
        fetched = min(request.width + 1, self._vocab)  # one more, which shows ties with the last one
        temperatures = asked_temperatures(request.temperatures)
        colder = None if temperatures is None else (1.0 / temperatures).astype(np.float32)[:, None]
        waiting = self._begin_heads(colder, fetched, np.array(request.whole, np.int64))

        def wait() -> RankedRows:
            heads, raw = waiting()
            rows = dict(zip(request.whole, raw, strict=True))
            return self._ranked(heads, rows, temperatures, complete=fetched == self._vocab)

        return wait

    def _ranked(
        self, crossed: Float32, rows: Mapping[int, Float32], temperatures: npt.NDArray[np.float64] | None, *, complete: bool
    ) -> RankedRows:
        n = self._n
        top, total, log_total, entropy, heated = crossed[:, :5].T
        values, ids = np.split(crossed[:, 5:], 2, axis=1)
        finite = np.isfinite(entropy)
        mass = _mass(total, log_total)
        hot = [None] * n if temperatures is None else list(zip(temperatures.tolist(), heated.tolist(), strict=True))
        ranked = [
            Ranked(
                partial(self._logprobs, i, rows.get(i), top[i], log_total[i]),
                float(mass[i]),
                float(entropy[i]) if finite[i] else None,
                heated=hot[i],
                head=_head(values[i], ids[i].view(np.int32), complete=complete),
            )
            for i in range(n)
        ]
        return RankedRows(ranked, top + log_total, finite)

    def _logprobs(self, i: int, raw: Float32 | None, top: np.float32, log_total: np.float32) -> Float32:
        """Log-probabilities of one row, copied now unless `raw` is given; equal bit for bit to the ranked ones."""
        row: Float32 = self.rows(np.array([i]))[0] if raw is None else raw
        row -= top
        row -= log_total
        return row

    def _enter_top(self, scores: Scores, values: Float32, ids: Int32, chosen: Int64, k: int) -> None:
        """Enters the `k` likeliest of each row, ties by id; copies a whole row where more entries tie than were fetched."""
        if not k:
            return
        order = np.lexsort((ids, -values), axis=-1)[:, :k]
        scores.top_ids[:, :k] = np.take_along_axis(ids, order, axis=1)
        scores.top_logprobs[:, :k] = np.take_along_axis(values, order, axis=1)
        if values.shape[1] == self._vocab:
            return
        for i in np.flatnonzero(values[:, k - 1] == values[:, -1]):
            row = self.rows(chosen[i : i + 1])[0]
            scores.top_ids[i, :k] = likeliest(row, k)


def _mass(total: Float32, log_total: Float32) -> npt.NDArray[np.float64]:
    """The sum of exp over log-probabilities."""
    with np.errstate(invalid="ignore"):  # rows that are not finite
        return np.multiply(total, np.exp(-log_total, dtype=np.float64), dtype=np.float64)


def _head(values: Float32, ids: Int32, *, complete: bool) -> tuple[Int64, Float32]:
    """The certain part of a row's order, ties by id: entries equal to the last fetched one are left out unless `complete`."""
    held = len(values) if complete else int(np.count_nonzero(values > values[-1]))
    order = np.lexsort((ids[:held], -values[:held]))
    return ids[order].astype(np.int64), values[order]
