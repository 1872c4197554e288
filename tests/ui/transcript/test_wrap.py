from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PySide6.QtWidgets import QApplication

from runtime import Origin, TokenRun
from tests.ui.transcript.samples import run_of
from ui.transcript.text.compose import TurnPlace, compose
from ui.transcript.text.faces import Faces
from ui.transcript.text.shape import ShapedLine
from ui.transcript.text.wrap import LineTable
from ui.transcript.tokens import Tokens

WIDTH = 300.0
PIECES = [
    " the",
    " tram",
    "s",
    "\n",
    ".\n\n",
    " ",
    "   ",
    "春天",
    "，",
    " مرحبا",
    "👩",
    "\u200d",
    "👧",
    "",
    "\x1b[",
    "e\u0301",
    "x" * 90,
    "\t",
]
CLEAR = [p for p in PIECES if p not in ("e\u0301", "\u200d")]  # marks over two directions: Qt puts them where it likes


@pytest.fixture
def faces(qapp: QApplication) -> Faces:
    return Faces()


def tokens_of(texts: list[str]) -> Tokens:
    return Tokens(run_of(texts, [1.0] * len(texts), Origin.SAMPLED))


def table_of(tokens: Tokens, faces: Faces) -> LineTable:
    table = LineTable(tokens, faces, WIDTH, template=False)
    table.extend()
    return table


def lines_of(table: LineTable) -> list[str]:
    """What stands on each line."""
    return [table.text_of(i).text for i in range(len(table))]


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=60), st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_streaming_wraps_as_if_all_had_been_there(qapp: QApplication, texts: list[str], size: int) -> None:
    faces = Faces()
    whole = tokens_of(texts)
    run = run_of(texts, [1.0] * len(texts), Origin.SAMPLED)
    grown = Tokens(run[:0])
    table = LineTable(grown, faces, WIDTH, template=False)
    for start in range(0, len(texts), size):
        grown.append(run[start : start + size])
        table.extend()
    assert lines_of(table) == lines_of(table_of(whole, faces))


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=60))
@example([" مرحبا", *[" the"] * 6, *[" tram"] * 2, *["   "] * 9])  # the spaces at its end stand out at the left
@example([" the", "x" * 90, " the", " the", " the", "\t", "\n"])  # a tab that has no room hangs from its line
@example([" the", "x" * 90, "\t", " the"])
@settings(max_examples=60, deadline=None)
def test_no_character_is_lost_and_no_line_is_too_long(qapp: QApplication, texts: list[str]) -> None:
    faces = Faces()
    tokens = tokens_of(texts)
    table = table_of(tokens, faces)
    shown = "".join(lines_of(table))
    assert shown == "".join(texts).replace("\n", "").replace("\x1b", "ESC")
    for line in range(len(table)):
        shaped = ShapedLine(tokens, table, line, faces)
        assert all(s.x0 >= -16 and s.x1 <= WIDTH + 16 for s in shaped.spans)


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_every_token_that_is_drawn_is_found_where_it_is_drawn(qapp: QApplication, texts: list[str]) -> None:
    faces = Faces()
    tokens = tokens_of(texts)
    table = table_of(tokens, faces)
    drawn = set()
    for line in range(len(table)):
        shaped = ShapedLine(tokens, table, line, faces)
        for span in shaped.spans:
            assert shaped.span_at((span.x0 + span.x1) / 2) is not None
            drawn |= set(range(span.first, span.last + 1))
    assert drawn == set(range(len(texts)))


@given(st.lists(st.sampled_from(CLEAR), min_size=1, max_size=40))
@example([" the"] * 9 + ["   "] * 9)  # spaces hang at a paragraph's end
@example([" the"] * 9 + ["   "] * 5 + ["x" * 30])  # and at a line's
@example([" مرحبا", "\n"])  # a newline stands where the text goes on: at the left
@settings(max_examples=60, deadline=None)
def test_no_token_hides_another_from_the_mouse(qapp: QApplication, texts: list[str]) -> None:
    faces = Faces()
    tokens = tokens_of(texts)
    table = table_of(tokens, faces)
    for line in range(len(table)):
        shaped = ShapedLine(tokens, table, line, faces)
        for span in shaped.spans:
            places = (span.x0 + 0.2, (span.x0 + span.x1) / 2, span.x1 - 0.2)
            assert any(shaped.span_at(x) is span for x in places), span


def test_words_are_kept_whole_and_spaces_are_kept(faces: Faces) -> None:
    tokens = tokens_of(["every", " sec", "ond", " bak", "ery", "  has", " a", " window", " seat", " in", " the", " sun"])
    table = table_of(tokens, faces)
    lines = lines_of(table)
    assert len(lines) > 1
    assert all(not line.startswith(" ") and line.endswith(" ") for line in lines[1:-1])
    assert "  has" in "".join(lines)


def test_newlines_break_lines_and_a_closing_one_adds_none(faces: Faces) -> None:
    tokens = tokens_of(["a", "\n\n", "b", "\n"])
    assert lines_of(table_of(tokens, faces)) == ["a", "", "b"]


def test_a_right_to_left_paragraph_stands_at_the_right_on_every_line(faces: Faces) -> None:
    tokens = tokens_of([" مرحبا", " بالعالم"] * 12 + ["\n", "left"])
    table = table_of(tokens, faces)
    assert len(table) > 3
    for line in range(len(table) - 1):
        right = max(s.x1 for s in ShapedLine(tokens, table, line, faces).spans)
        assert abs(right - WIDTH) < 6
    assert ShapedLine(tokens, table, len(table) - 1, faces).spans[0].x0 == 0


def test_a_place_is_on_the_line_that_holds_it(faces: Faces) -> None:
    random.seed(7)
    tokens = tokens_of([random.choice(PIECES) for _ in range(400)])
    table = table_of(tokens, faces)
    for line in range(len(table)):
        assert table.line_of(table.start(line)) == line


@pytest.mark.slow
@pytest.mark.parametrize("text", ["x" * 1_000_000, "e" + "\u0301" * 20_000, "\x1b" * 30_000, "word " * 100_000])
def test_monstrous_tokens_are_survived(faces: Faces, text: str) -> None:
    tokens = tokens_of(["a", text, "b"])
    table = table_of(tokens, faces)
    assert table.done
    for line in (0, len(table) // 2, len(table) - 1):
        assert ShapedLine(tokens, table, line, faces).spans


def test_wrapping_in_slices_comes_to_the_same_lines(faces: Faces) -> None:
    tokens = tokens_of([" word"] * 3000)
    sliced = LineTable(tokens, faces, WIDTH, template=False)
    steps = 0
    while not sliced.done:
        sliced.extend(deadline=0.0)
        steps += 1
    assert steps > 5
    assert lines_of(sliced) == lines_of(table_of(tokens, faces))


def test_hidden_tokens_take_no_place(faces: Faces) -> None:
    run = TokenRun.concat([run_of(["<|im_start|>"], [None], Origin.TEMPLATE), run_of(["Hi"], [1.0], Origin.TYPED)])
    tokens = Tokens(run)
    assert lines_of(table_of(tokens, faces)) == ["Hi"]
    shown = LineTable(tokens, faces, WIDTH, template=True)
    shown.extend()
    assert compose(tokens, TurnPlace(0), template=True, limit=99).text == "<|im_start|>Hi"


CODE = [
    "Look",
    ":\n",
    "```",
    "py",
    "\n",
    "if",
    " x",
    ":\n",
    "    ",
    "iiii",
    "\n",
    "    ",
    "WWWW",
    "\n",
    "```",
    "\n",
    "iiii",
    "\n",
    "WWWW",
]


def shaped_lines(table: LineTable, tokens: Tokens, faces: Faces) -> list[ShapedLine]:
    return [ShapedLine(tokens, table, line, faces) for line in range(len(table))]


def test_code_between_fences_has_letters_of_one_width_and_even_indentation(faces: Faces) -> None:
    tokens = tokens_of(CODE)
    table = table_of(tokens, faces)
    lines = shaped_lines(table, tokens, faces)
    assert [table.is_code(i) for i in range(len(table))] == [False, True, True, True, True, True, False, False]
    thin, wide = lines[3], lines[4]
    assert (thin.composed.text, wide.composed.text) == ("    iiii", "    WWWW")
    assert thin.end_x == wide.end_x
    indentation = thin.x_at(TurnPlace(9))
    assert indentation == wide.x_at(TurnPlace(12))
    assert thin.x_at(TurnPlace(9, 2)) == indentation * 1.5  # four spaces are as wide as four letters
    assert lines[6].end_x < lines[7].end_x  # prose again


@pytest.mark.parametrize("cuts", range(1, 12))
def test_code_that_streams_in_is_laid_out_as_code_that_was_there(faces: Faces, cuts: int) -> None:
    letters = [*"".join(CODE)]
    whole, grown = tokens_of(letters), tokens_of(letters[:cuts])
    table = table_of(grown, faces)
    for start in range(cuts, len(letters), cuts):
        grown.append(run_of(letters[start : start + cuts], [1.0] * len(letters[start : start + cuts]), Origin.SAMPLED))
        table.extend()
    other = table_of(whole, faces)
    assert lines_of(table) == lines_of(other)
    assert [table.is_code(i) for i in range(len(table))] == [other.is_code(i) for i in range(len(other))]


def test_a_fence_with_words_does_not_close_a_block(faces: Faces) -> None:
    table = table_of(tokens_of(["~~~", "\n", "```", "py", "\n", "x", "\n", "~~~", " ", "\n", "so"]), faces)
    assert [table.is_code(i) for i in range(len(table))] == [True, True, True, True, False]
