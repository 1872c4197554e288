"""Borders that two rows of tokens share, against the definition written out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.api.comparison import common_borders, kl_rows, span_sums
from runtime.records import ends_of

Cut = list[int]


def pieces(data: bytes, cut: Cut) -> list[bytes]:
    """The bytes between places; equal places leave a token without bytes."""
    places = [0, *sorted(min(place, len(data)) for place in cut), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


@given(st.binary(min_size=1, max_size=40), st.lists(st.integers(0, 40), max_size=12), st.lists(st.integers(0, 40), max_size=12))
def test_spans_spell_the_same_bytes_and_cannot_be_cut_further(data: bytes, one: Cut, other: Cut) -> None:
    left, right = pieces(data, one), pieces(data, other)
    a, b = common_borders(ends_of(left), ends_of(right))
    assert (a[0], b[0], a[-1], b[-1]) == (0, 0, len(left), len(right))
    ends = []
    for i in range(len(a) - 1):
        mine, theirs = left[a[i] : a[i + 1]], right[b[i] : b[i + 1]]
        assert b"".join(mine) == b"".join(theirs) != b""
        ends.append(sum(len(piece) for piece in left[: a[i + 1]]))
    shared = {sum(map(len, left[:i])) for i in range(len(left) + 1)} & {sum(map(len, right[:i])) for i in range(len(right) + 1)}
    assert ends == sorted(shared - {0})


def test_what_one_side_has_beyond_the_other_is_a_span_of_its_own() -> None:
    a, b = common_borders(ends_of([b"ab", b"c", b"\xe6"]), ends_of([b"a", b"bc"]))
    assert (a.tolist(), b.tolist()) == ([0, 2, 3], [0, 2, 2])


def test_sums_of_spans() -> None:
    values = np.array([np.nan, -1.0, -2.0, -4.0], np.float32)
    np.testing.assert_array_equal(span_sums(values, np.array([0, 1, 3, 4, 4])), [np.nan, -3.0, -4.0, np.nan])
    assert len(span_sums(values[:0], np.array([0]))) == 0


def test_kl_of_known_rows() -> None:
    with np.errstate(divide="ignore"):
        p, q = np.log(np.array([[0.5, 0.5, 0.0]], np.float32)), np.log(np.array([[0.25, 0.5, 0.25]], np.float32))
    assert kl_rows(p, q)[0] == pytest.approx(0.5 * np.log(2), abs=1e-6)
    assert np.isinf(kl_rows(q, p)[0])
    assert kl_rows(p, p)[0] == 0.0
