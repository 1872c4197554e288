"""The simulator that W7 is held against."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measure import distinct_prefixes
from benchmarks.workloads import TokenLru, simulate


def test_with_room_for_all_each_token_is_computed_once() -> None:
    requests = [([1, 2, 3], [4, 5]), ([1, 2, 3, 4, 5, 6], [7]), ([1, 9], [8, 8])]
    # then 1, 2, 3, 4 | 5, 6 | 9, 8: an answer's last token is never pushed
    assert simulate(requests, 100) == 4 + 2 + 2


def test_with_room_for_nothing_every_request_starts_anew() -> None:
    assert simulate([([1, 2, 3], [4, 5])] * 3, 0) == 3 * 4
    assert simulate([([1, 2, 3], [4, 5])] * 3, -7) == 3 * 4


def test_the_tail_touched_longest_ago_goes_first_token_by_token() -> None:
    cache = TokenLru(6)
    assert cache.request([1, 2, 3, 4], [0]) == 4
    assert cache.request([9, 8, 7], [0]) == 3  # seven: token 4 behind 1, 2, 3 goes
    assert cache.request([1, 2, 3, 4], [0]) == 1  # seven again: 7 behind 9, 8 goes
    assert cache.request([9, 8, 7], [0]) == 1


def test_what_branches_share_outlives_the_branches() -> None:
    cache = TokenLru(4)
    cache.request([1, 2, 3], [0])
    cache.request([1, 2, 4], [0])
    assert cache.request([1, 2, 5], [0]) == 1  # 3 goes, the oldest leaf
    assert cache.request([1, 2, 4], [0]) == 0
    assert cache.request([1, 2, 3], [0]) == 1


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.lists(st.integers(0, 2), min_size=1, max_size=3))
    ),
    st.integers(0, 12),
)
def test_it_lies_between_a_perfect_cache_and_none(requests: list[tuple[list[int], list[int]]], capacity: int) -> None:
    computed = simulate(requests, capacity)
    paths = [[*prompt, *answer[:-1]] for prompt, answer in requests]
    assert distinct_prefixes(paths) <= computed + sum(len(answer) - 1 for _, answer in requests)
    assert computed <= sum(map(len, paths))
    assert simulate(requests, 1000) <= computed
