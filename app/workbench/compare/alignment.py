"""The common parts of two token sequences, in order: for 100,000 tokens in a fraction of a second.

Patience diff (Bram Cohen; also in git): first matches runs of tokens that occur exactly once on each side. The longest chain
of matches in the same order (Fredman 1975) splits the problem; the gaps between them are small enough for difflib. No
recursion.
"""

from __future__ import annotations

from bisect import bisect_left
from difflib import Match, SequenceMatcher
from typing import Final

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
GRAMS: Final = (8, 3, 1)  # lengths of the runs to match, tried in this order
SMALL: Final = 1 << 14  # largest gap for difflib, as a product of both lengths
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)  # multiplies a hash; any odd number with many digits does


def matches(left: Ids, right: Ids) -> list[Match]:
    """The common parts, in order; parts that touch on both sides are joined."""
    found: list[Match] = []
    stack = [(0, len(left), 0, len(right))]
    while stack:
        a, a_end, b, b_end = stack.pop()
        head = _common(left[a:a_end], right[b:b_end])
        if head:
            found.append(Match(a, b, head))
        a, b = a + head, b + head
        tail = _common(left[a:a_end][::-1], right[b:b_end][::-1])
        if tail:
            found.append(Match(a_end - tail, b_end - tail, tail))
        a_end, b_end = a_end - tail, b_end - tail
        if (a_end - a) * (b_end - b) <= SMALL:
            found.extend(_small(left, right, a, a_end, b, b_end))
            continue
        anchors = _anchors(left[a:a_end], right[b:b_end])
        starts = [(a, b), *((a + x + size, b + y + size) for x, y, size in anchors)]
        ends = [*((a + x, b + y) for x, y, _ in anchors), (a_end, b_end)]
        found.extend(Match(a + x, b + y, size) for x, y, size in anchors)
        if anchors:  # otherwise the whole range differs
            stack.extend((a0, a1, b0, b1) for (a0, b0), (a1, b1) in zip(starts, ends, strict=True))
    return _joined(found)


def _common(left: Ids, right: Ids) -> int:
    n = min(len(left), len(right))
    differ = np.flatnonzero(left[:n] != right[:n])
    return int(differ[0]) if len(differ) else n


def _small(left: Ids, right: Ids, a: int, a_end: int, b: int, b_end: int) -> list[Match]:
    if a == a_end or b == b_end:
        return []
    matcher = SequenceMatcher(None, left[a:a_end].tolist(), right[b:b_end].tolist(), autojunk=False)
    return [Match(a + block.a, b + block.b, block.size) for block in matcher.get_matching_blocks() if block.size]


def _anchors(left: Ids, right: Ids) -> list[tuple[int, int, int]]:
    """Runs that occur exactly once on each side, in the same order and without overlap; may be empty."""
    for size in GRAMS:
        if min(len(left), len(right)) < size:
            continue
        mine, theirs = _once(left, size), _once(right, size)
        _, at_left, at_right = np.intersect1d(mine[0], theirs[0], assume_unique=True, return_indices=True)
        a, b = mine[1][at_left], theirs[1][at_right]
        order = np.argsort(a)
        chain = _rising(a[order].tolist(), b[order].tolist())
        kept: list[tuple[int, int, int]] = []
        for a_at, b_at in chain:
            if kept and (a_at < kept[-1][0] + size or b_at < kept[-1][1] + size):
                continue
            if np.array_equal(left[a_at : a_at + size], right[b_at : b_at + size]):  # compares the tokens: hashes may collide
                kept.append((a_at, b_at, size))
        if kept:
            return kept
    return []


def _once(ids: Ids, size: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Hashes and places of the runs of `size` tokens that occur exactly once."""
    hashes = np.zeros(len(ids) - size + 1, np.uint64)
    for offset in range(size):
        hashes = hashes * _ODD + ids[offset : len(ids) - size + 1 + offset].astype(np.uint64)
    values, places, counts = np.unique(hashes, return_index=True, return_counts=True)
    once = counts == 1
    return values[once], places[once].astype(np.int64)


def _rising(a: list[int], b: list[int]) -> list[tuple[int, int]]:
    """The longest chain of pairs in which `b` ascends together with `a`."""
    ends: list[int] = []  # by length of chain: the smallest last value of b
    last: list[int] = []  # index of that value
    before = [-1] * len(b)
    for index, value in enumerate(b):
        length = bisect_left(ends, value)
        before[index] = last[length - 1] if length else -1
        if length == len(ends):
            ends.append(value)
            last.append(index)
        else:
            ends[length], last[length] = value, index
    chain: list[tuple[int, int]] = []
    at = last[-1] if last else -1
    while at >= 0:
        chain.append((a[at], b[at]))
        at = before[at]
    return chain[::-1]


def _joined(found: list[Match]) -> list[Match]:
    joined: list[Match] = []
    for match in sorted(found, key=lambda each: each.a):
        if joined and (joined[-1].a + joined[-1].size, joined[-1].b + joined[-1].size) == (match.a, match.b):
            joined[-1] = Match(joined[-1].a, joined[-1].b, joined[-1].size + match.size)
        else:
            joined.append(match)
    return joined
