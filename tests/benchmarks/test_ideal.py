from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measure import common_prefix, distinct_prefixes


def test_no_requests_need_no_tokens() -> None:
    assert distinct_prefixes([]) == 0
    assert distinct_prefixes([[], []]) == 0


def test_one_context_needs_each_of_its_tokens() -> None:
    assert distinct_prefixes([[7, 7, 7, 7]]) == 4


def test_a_repeated_context_needs_no_tokens() -> None:
    assert distinct_prefixes([[1, 2, 3], [1, 2, 3]]) == 3


def test_a_shorter_context_is_covered_by_the_longer_one() -> None:
    assert distinct_prefixes([[1, 2, 3, 4], [1, 2]]) == 4


def test_branches_share_their_stem_and_nothing_after_it() -> None:
    # given a stem of two, two branches of which one continues, and an unrelated context with the same end
    contexts = [[1, 2, 3, 9], [1, 2, 4, 9], [1, 2, 4], [5, 2, 4, 9]]
    # then 1, 2 | 3, 9 | 4, 9 | 5, 2, 4, 9
    assert distinct_prefixes(contexts) == 2 + 2 + 2 + 4


def test_four_particles_with_two_survivors_need_each_distinct_draw_once() -> None:
    # given a prompt of three tokens, one draw each, two survivors that draw twice each
    first = [[1, 2, 3, 10 + i] for i in range(4)]
    second = [[*first[0], 20], [*first[0], 21], [*first[3], 20], [*first[3], 20]]
    assert distinct_prefixes([[1, 2, 3]] * 4 + first + second) == 3 + 4 + 3


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=12))
def test_the_ideal_equals_the_size_of_the_set_of_all_prefixes(contexts: list[list[int]]) -> None:
    naive = {tuple(context[: i + 1]) for context in contexts for i in range(len(context))}
    assert distinct_prefixes(contexts) == len(naive)


def test_common_prefix() -> None:
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert common_prefix([1, 2], [1, 2, 3]) == common_prefix([1, 2, 3], [1, 2]) == 2
