from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measure import common_prefix, distinct_prefixes


def test_nothing_asked_needs_nothing() -> None:
    assert distinct_prefixes([]) == 0
    assert distinct_prefixes([[], []]) == 0


def test_one_context_needs_each_of_its_tokens() -> None:
    assert distinct_prefixes([[7, 7, 7, 7]]) == 4


def test_the_same_context_again_is_free() -> None:
    assert distinct_prefixes([[1, 2, 3], [1, 2, 3]]) == 3


def test_a_shorter_context_is_part_of_the_longer() -> None:
    assert distinct_prefixes([[1, 2, 3, 4], [1, 2]]) == 4


def test_branches_share_their_stem_and_nothing_after_it() -> None:
    # given a stem of two, two branches of which one goes on, and a stranger that ends alike
    contexts = [[1, 2, 3, 9], [1, 2, 4, 9], [1, 2, 4], [5, 2, 4, 9]]
    # then 1, 2 | 3, 9 | 4, 9 | 5, 2, 4, 9
    assert distinct_prefixes(contexts) == 2 + 2 + 2 + 4


def test_four_particles_with_two_survivors() -> None:
    # given a prompt of three tokens, one draw each, two survivors that draw twice each
    first = [[1, 2, 3, 10 + i] for i in range(4)]
    second = [[*first[0], 20], [*first[0], 21], [*first[3], 20], [*first[3], 20]]
    assert distinct_prefixes([[1, 2, 3]] * 4 + first + second) == 3 + 4 + 3


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=12))
def test_it_counts_what_a_set_of_all_prefixes_holds(contexts: list[list[int]]) -> None:
    naive = {tuple(context[: i + 1]) for context in contexts for i in range(len(context))}
    assert distinct_prefixes(contexts) == len(naive)


def test_common_prefix() -> None:
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert common_prefix([1, 2], [1, 2, 3]) == common_prefix([1, 2, 3], [1, 2]) == 2
