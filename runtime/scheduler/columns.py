"""Scores that grow by one row per token, without a copy of what is there."""

from __future__ import annotations

import numpy as np

from runtime.records import Scores
from runtime.scoring import empty_scores

FIRST_CAPACITY = 16  # rows


class GrowingScores:
    """Columns with room to grow; rows are written once.

    Args:
        k: Alternatives per row; rows come with at least as many.
    """

    def __init__(self, k: int) -> None:
        self._k = k
        self._n = 0
        self._columns = empty_scores(FIRST_CAPACITY, k)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: slice) -> Scores:
        """Some of the rows, copied."""
        start, stop, _ = index.indices(self._n)
        return self._columns[start:stop]

    def append(self, scores: Scores, row: int) -> None:
        """Takes in row `row` of `scores`, its likeliest alternatives."""
        n, k = self._n, self._k
        if n == len(self._columns):
            self._columns = Scores.concat([self._columns, empty_scores(n, k)])
        into = self._columns
        into.logprob[n] = scores.logprob[row]
        into.rank[n] = scores.rank[row]
        into.entropy[n] = scores.entropy[row]
        into.top_ids[n] = scores.top_ids[row, :k]
        into.top_logprobs[n] = scores.top_logprobs[row, :k]
        if scores.top_ids.shape[1] == k:
            into.covered_mass[n] = scores.covered_mass[row]
        else:
            into.covered_mass[n] = min(float(np.exp(scores.top_logprobs[row, :k]).sum(dtype=np.float64)), 1.0)
        self._n = n + 1
