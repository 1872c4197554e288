from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtime.scheduler.decode.draft import PromptLookup


def searched(text: list[int], longest: int, shortest: int, limit: int) -> list[int]:
    """The same by a search through the whole text: the latest earlier place of the longest end that recurs."""
    for n in range(longest, shortest - 1, -1):
        end = text[len(text) - n :]
        for at in range(len(text) - 1, n - 1, -1):
            if n <= len(text) and text[at - n : at] == end:
                return text[at : at + limit]
    return []


@given(st.lists(st.lists(st.integers(0, 4), max_size=12), max_size=6), st.integers(1, 4), st.integers(1, 4), st.integers(1, 6))
def test_the_index_finds_what_a_search_finds(parts: list[list[int]], a: int, b: int, limit: int) -> None:
    longest, shortest = max(a, b), min(a, b)
    index, text = PromptLookup(longest, shortest), list[int]()
    for part in parts:
        index.extend(part)
        text += part
        assert index.propose(limit) == searched(text, longest, shortest, limit)
