"""Where two token sequences say the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtime import aligned

PIECES = [b"a", b"b", b"ab", b"ba", b"aba", b"", b"\xc3", b"\xa9"]
IDS = st.lists(st.integers(0, len(PIECES) - 1), max_size=12)


def said(ids: list[int]) -> bytes:
    return b"".join(PIECES[i] for i in ids)


@given(held=IDS, full=IDS)
def test_it_is_the_longest_beginning_that_ends_with_a_token_in_both(held: list[int], full: list[int]) -> None:
    found = aligned(held, full, PIECES.__getitem__)
    assert said(held[: found.held]) == said(full[: found.full])
    pairs = [(h, f) for h in range(len(held) + 1) for f in range(len(full) + 1) if said(held[:h]) == said(full[:f])]
    assert len(said(held[: found.held])) == max(len(said(held[:h])) for h, _ in pairs)
    assert (found.held, found.full) in pairs
    assert not held[found.held :] or PIECES[held[found.held]]  # what has no bytes stays with what was said


@given(held=IDS, more=IDS)
def test_what_goes_on_is_taken_whole(held: list[int], more: list[int]) -> None:
    found = aligned(held, [*held, *more], PIECES.__getitem__)
    assert found.held == len(held)
    assert said(([*held, *more])[found.full :]) == said(more)


def test_another_cut_of_the_same_text_is_the_same() -> None:
    found = aligned([0, 1, 0], [4, 1], PIECES.__getitem__)  # a b a, aba b
    assert (found.held, found.full) == (3, 1)
    found = aligned([0, 1, 0], [0, 3, 1], PIECES.__getitem__)  # a b a, a ba b
    assert (found.held, found.full) == (3, 2)
    assert aligned([], [1], PIECES.__getitem__).full == 0
    assert aligned([2], [], PIECES.__getitem__).held == 0
