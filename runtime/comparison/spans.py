"""Two rows of tokens over the same bytes, cut where both have a border."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


def ends_of(token_bytes: Sequence[bytes]) -> Int64:
    """``(n,)``: the byte at which each token ends."""
    return np.cumsum([len(data) for data in token_bytes], dtype=np.int64)


def common_borders(left: Int64, right: Int64) -> tuple[Int64, Int64]:
    """Where the tokens of two sides have a border in common.

    A token without bytes belongs to the span that ends before it (the first of all to the first span). What one side has
    beyond the other's last byte is a span in which the other has no token.

    Args:
        left: ``(n,)`` from `ends_of`.
        right: ``(k,)`` likewise.

    Returns:
        Two times ``(m + 1,)``: span i is made of the tokens from border i to border i + 1 of either side.
    """
    shared = np.intersect1d(left, right)
    shared = shared[shared > 0]
    borders = [np.concatenate(([0], np.searchsorted(ends, shared, side="right"))) for ends in (left, right)]
    if borders[0][-1] < len(left) or borders[1][-1] < len(right):
        borders = [np.append(of, len(ends)) for of, ends in zip(borders, (left, right), strict=True)]
    return borders[0].astype(np.int64), borders[1].astype(np.int64)


def span_sums(values: npt.NDArray[np.floating], borders: Int64) -> Float64:
    """``(m,)``: what the tokens of each span have together; NaN where one of them has none, or there is no token."""
    starts, stops = borders[:-1], borders[1:]
    if not len(starts):
        return np.empty(0)
    sums: Float64 = np.add.reduceat(np.append(values.astype(np.float64), 0.0), starts)
    sums[starts == stops] = np.nan
    return sums


def kl_rows(left: npt.NDArray[np.float32], right: npt.NDArray[np.float32]) -> Float64:
    """``(n,)`` nats: KL(left || right) of rows of log-probabilities ``(n, vocab)``.

    Infinite where right excludes what left may say. The rounding of float32 may make a sum a hair negative: then it is 0.
    """
    found = np.empty(len(left))
    for i, (p, q) in enumerate(zip(left, right, strict=True)):
        possible = ~np.isneginf(p)
        wide = p[possible].astype(np.float64)
        found[i] = max(np.exp(wide) @ (wide - q[possible]), 0.0)
    return found
