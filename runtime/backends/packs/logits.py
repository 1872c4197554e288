"""Logits that stay on the device: of a scored or drawn token a few numbers cross to the host, not a row of the vocabulary."""

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

BLOCK_ENTRIES = 1 << 24  # 64 MiB of float32: what is worked on at once takes four times that
NAMED_ENTRIES = 1 << 18  # 1 MiB: what crosses at once of ids that are named, and stays until the rows were asked for
SPARE = 6  # entries that are fetched beyond the k asked for, so that equals at the border are seen


class DeviceLogits(ABC):
    """Raw logits ``(n, vocab)`` of a forward that stay where they were computed; what is asked for crosses to the host.

    A library computes the numbers. Whole numbers cross as the bits of float32, so that all of a call crosses at once.

    Args:
        n: Rows.
        vocab: Entries of each.
    """

    def __init__(self, n: int, vocab: int) -> None:
        self._n, self._vocab = n, vocab
        self.nbytes = n * vocab * np.dtype(np.float32).itemsize
        self._named: tuple[Int64, dict[int, Float32]] = np.empty(0, np.int64), {}  # ids, and their entries by row

    def __len__(self) -> int:
        return self._n

    @abstractmethod
    def rows(self, chosen: Int64) -> Float32:
        """Some rows ``(len(chosen), vocab)``, the caller's own."""

    @abstractmethod
    def take(self, chosen: Int64) -> Self:
        """Some rows, in memory of their own."""

    def entries(self, row: int, ids: Int64) -> Float32:
        """``(len(ids),)`` of one row. Those of others cross with it: texts of one forward are mostly asked for the same."""
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
        """``(n, 5 + 2 * width)`` and ``(len(whole), vocab)``, to be waited for once.

        Of each row top, sum, its logarithm, entropy, heated mass; the likeliest, their ids. And some rows as they are.

        Args:
            colder: ``(n, 1)``, what the heated mass multiplies log-probabilities with; None: it means nothing.
            width: How many of the likeliest.
            whole: These rows.
            chosen: Those of which numbers are wanted, `n` of them; None: all.
        """

    def _blocks(self, rows: int) -> list[slice]:
        """The rows that are worked on at once."""
        at_once = max(BLOCK_ENTRIES // self._vocab, 1)
        return [slice(at, at + at_once) for at in range(0, rows, at_once)]

    def normalised(self, chosen: Int64, whole: int) -> NormalisedRows:
        """What normalises some rows; the first `whole` of them cross."""
        width = min(NORMALISED_HEAD + 1, self._vocab) if whole < len(chosen) else 1
        crossed, rows = self._begin_heads(None, width, chosen[:whole], chosen)()
        top, total, log_total, entropy, _ = crossed[:, :5].T
        values, ids = np.split(crossed[whole:, 5:], 2, axis=1)
        heads = [_head(*head, complete=width == self._vocab) for head in zip(values, ids.view(np.int32), strict=True)]
        return NormalisedRows(rows, top, log_total, _mass(total, log_total), np.isfinite(entropy), heads)

    def score(self, chosen: Int64, targets: Int32, k: int) -> tuple[Scores, Bool]:
        """As `runtime.numerics.scoring.score_logits` of some rows: O(k) numbers cross for each.

        Returns:
            The scores of `targets` ``(len(chosen),)`` with `k` alternatives, falling, ties by id; and which rows held
            numbers only: the others' scores mean nothing.
        """
        n, width = len(chosen), min(k + SPARE, self._vocab)
        scores = empty_scores(n, k)
        crossed = self._numbers(chosen, targets.astype(np.int64), width)
        logprob, entropy, rank, values, ids = np.split(crossed, [1, 2, 3, 3 + width], axis=1)
        scores.logprob[:], scores.entropy[:] = logprob[:, 0], entropy[:, 0]
        scores.rank[:] = rank[:, 0].view(np.int32)
        self._keep_top(scores, values, ids.view(np.int32), chosen, min(k, self._vocab))
        covered = np.exp(scores.top_logprobs).sum(axis=-1, dtype=np.float64)
        scores.covered_mass[:] = np.minimum(covered, 1.0)
        return scores, np.isfinite(scores.entropy)

    def ranked(self, request: RankRequest) -> RankedRows:
        """As `runtime.scheduler.prefill.distributions.normalise`, of all rows.

        Of each about `request.width` of the likeliest cross.
        """
        return self.begin_ranked(request)()

    def begin_ranked(self, request: RankRequest) -> Callable[[], RankedRows]:
        """`ranked`, to be waited for."""
        if request.whole and not 0 <= min(request.whole) <= max(request.whole) < self._n:  # on a GPU it would be found later
            raise ValueError(f"rows {request.whole} of {self._n}")
        fetched = min(request.width + 1, self._vocab)  # one more: of equals at the border it is not known which come first
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
        """One row, which crosses now if it did not with the others; to the bit as it was ranked."""
        row: Float32 = self.rows(np.array([i]))[0] if raw is None else raw
        row -= top
        row -= log_total
        return row

    def _keep_top(self, scores: Scores, values: Float32, ids: Int32, chosen: Int64, k: int) -> None:
        """The `k` likeliest of each row, ties by id; where more are equal than were fetched, the row itself is asked for."""
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
    with np.errstate(invalid="ignore"):  # rows that are no numbers
        return np.multiply(total, np.exp(-log_total, dtype=np.float64), dtype=np.float64)


def _head(values: Float32, ids: Int32, *, complete: bool) -> tuple[Int64, Float32]:
    """What is known of a row's order by its largest entries, ties by id; nothing of those that equal the last of them."""
    held = len(values) if complete else int(np.count_nonzero(values > values[-1]))
    order = np.lexsort((ids[:held], -values[:held]))
    return ids[order].astype(np.int64), values[order]
