"""What two sequences have in common: right for any two, and as good as a diff of text where that is easy."""

from __future__ import annotations

from difflib import Match

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.workbench.compare.alignment import SMALL, Ids, matches

SEQUENCES = st.lists(st.integers(0, 6), max_size=60)


def ids(values: list[int]) -> Ids:
    return np.array(values, np.int64)


def check(left: Ids, right: Ids) -> list[Match]:
    """In order, without overlap, equal on both sides."""
    found = matches(left, right)
    a = b = 0
    for match in found:
        assert match.size > 0
        assert match.a >= a
        assert match.b >= b
        np.testing.assert_array_equal(left[match.a : match.a + match.size], right[match.b : match.b + match.size])
        assert a == b == 0 or (match.a, match.b) != (a, b), "neighbours are one"
        a, b = match.a + match.size, match.b + match.size
    return found


@given(left=SEQUENCES, right=SEQUENCES)
@settings(deadline=None)
def test_any_two_small(left: list[int], right: list[int]) -> None:
    check(ids(left), ids(right))


@given(data=st.data(), seed=st.integers(0, 1000), words=st.sampled_from([2, 50, 5000]))
@settings(deadline=None, max_examples=20)
def test_any_two_large(data: st.DataObject, seed: int, words: int) -> None:
    """Cuts, insertions and replacements: at least what nobody touched is found."""
    rng = np.random.default_rng(seed)
    left = rng.integers(0, words, 3000)
    pieces, touched, at = [], 0, 0
    for place in sorted(data.draw(st.sets(st.integers(0, 2900), max_size=6))):
        if place < at:
            continue
        gone, new = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 40))
        pieces += [left[at:place], rng.integers(words, words + 9, new)]
        at, touched = place + gone, touched + gone
    right = np.concatenate([*pieces, left[at:]])
    found = check(left, right)
    if words == 5000:
        assert sum(match.size for match in found) >= 3000 - touched


def test_stem_end_and_middle() -> None:
    assert check(ids([1, 2, 3, 4, 9]), ids([1, 2, 5, 4, 9])) == [Match(0, 0, 2), Match(3, 3, 2)]
    assert check(ids([]), ids([1])) == []
    assert check(ids([1, 2]), ids([1, 2])) == [Match(0, 0, 2)]
    assert check(ids([1, 1, 1]), ids([1, 1])) == [Match(0, 0, 2)]


@pytest.mark.slow
def test_what_difflib_looks_at_stays_small_for_100_000_tokens() -> None:
    rng = np.random.default_rng(1)
    left = rng.integers(0, 40_000, 100_000)
    right = left.copy()
    right[rng.integers(0, 100_000, 2000)] = 50_000
    found = check(left, right)
    assert sum(match.size for match in found) == int((left == right).sum())
    for other in (rng.integers(0, 40_000, 100_000), np.full(100_000, 3), left[::-1].copy()):
        check(left, other)
    check(np.full(100_000, 3), np.full(90_000, 3))
    check(np.tile([1, 2, 3], 30_000), np.tile([3, 1, 4], 30_000))
    assert SMALL < 1 << 16
