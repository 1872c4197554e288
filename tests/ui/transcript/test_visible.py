from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ui.widgets.visible import is_right_to_left, utf16_length, visible, visible_bytes


@pytest.mark.parametrize(
    ("hidden", "shown"),
    [
        ("\x1b[31m", "ESC[31m"),
        ("\u202eevil\u202c", "RLOevilPDF"),
        ("a\u200bb", "aZWSPb"),
        ("\x00\x7f\x85", "NULDELU+0085"),
        ("\U000e0041", "tag A"),
        ("\ud800", "U+D800"),
        ("\ue000", "U+E000"),
        ("\u2028", "LSEP"),
        ("\ufeff", "BOM"),
    ],
)
def test_what_would_hide_or_act_is_named(hidden: str, shown: str) -> None:
    assert visible(hidden).text == shown


@pytest.mark.parametrize("text", ["plain", "tab\there", "line\nbreak", "👩\u200d👧", "❤\ufe0f", "نمی\u200cخواهم", "春天"])
def test_what_joins_or_is_visible_stays(text: str) -> None:
    assert visible(text).text == text
    assert not visible(text).codes


@given(st.text(alphabet=st.characters(), max_size=40))
def test_nothing_invisible_is_left_and_the_codes_are_where_they_are_said_to_be(text: str) -> None:
    made = visible(text)
    assert visible(made.text).text == made.text
    outside = made.text
    for start, stop in reversed(made.codes):
        assert made.text[start:stop].strip()
        outside = outside[:start] + outside[stop:]
    kept = [c for c in text if visible(c).text == c]
    assert outside == "".join(kept)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40))
def test_lengths_are_those_of_utf16(text: str) -> None:
    assert utf16_length(text) == len(text.encode("utf-16-le")) // 2 if text else utf16_length(text) == 0


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b" Paris", "Paris"),
        (b"  ", "␣␣"),
        (b"\n\n", "↵↵"),
        (b"\xe2\x82", "e2 82"),
        (b"\t", "⇥"),
        (b"\x1b", "ESC"),
        ("é".encode(), "é"),
    ],
)
def test_any_token_has_a_word(data: bytes, word: str) -> None:
    assert visible_bytes(data) == word


def test_right_to_left_scripts_are_told_apart() -> None:
    assert is_right_to_left("abc مرحبا")
    assert is_right_to_left("שלום")
    assert not is_right_to_left("春天 é 😀")
