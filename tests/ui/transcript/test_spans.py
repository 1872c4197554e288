"""Spans as they are drawn: joined graphemes, fragments, colours."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QFontDatabase
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from runtime import Origin, TokenRun
from tests.ui.transcript.conftest import Show
from tests.ui.transcript.samples import drawing, run_of, session, turn, written
from ui.theme.palette import DARK, HIGH_DARK, HIGH_LIGHT, LIGHT, Palette
from ui.transcript import TranscriptView
from ui.transcript.text.faces import Faces
from ui.transcript.text.ink import Ink
from ui.transcript.text.shape import ShapedLine, Span
from ui.transcript.text.wrap import LineTable
from ui.transcript.tokens import Tokens


@pytest.fixture
def faces(qapp: QApplication) -> Faces:
    return Faces()


def spans_of(faces: Faces, texts: list[str], bits: list[float] | None = None) -> list[Span]:
    tokens = Tokens(run_of(texts, bits or [1.0] * len(texts), Origin.SAMPLED))
    table = LineTable(tokens, faces, 640, template=False)
    table.extend()
    return ShapedLine(tokens, table, 0, faces).spans


@pytest.mark.parametrize(
    "parts",
    [["👩", "\u200d", "👧"], ["e", "\u0301"], ["🇩", "🇪"], ["👍", "🏽"], ["", "", "", "😀"]],
    ids=["family", "accent", "flag", "skin", "bytes"],
)
def test_tokens_that_share_a_character_are_one_span(faces: Faces, parts: list[str]) -> None:
    # when the most surprising of them is in the middle of other text
    bits = [1.0, *[0.1] * (len(parts) - 1), 9.0, 1.0]
    spans = spans_of(faces, ["so ", *parts, " ok"], bits)
    # then they form one span, with its colour, and each of them can be pointed at
    assert [(s.first, s.last) for s in spans] == [(0, 0), (1, len(parts)), (len(parts) + 1, len(parts) + 1)]
    assert spans[1].step == 5
    width = spans[1].x1 - spans[1].x0
    pointed = [spans[1].token_at(spans[1].x0 + width * (i + 0.5) / len(parts)) for i in range(len(parts))]
    assert pointed == list(range(1, len(parts) + 1))


def test_spans_of_a_line_have_no_gaps(faces: Faces) -> None:
    spans = spans_of(faces, ["You", " could", " visit", " Lisbon", "!"])
    assert [a.x1 for a in spans[:-1]] == [b.x0 for b in spans[1:]]


def test_incomplete_bytes_have_a_placeholder(faces: Faces) -> None:
    spans = spans_of(faces, ["ok ", "", ""])
    assert (spans[1].first, spans[1].last) == (1, 2)
    assert spans[1].x1 > spans[1].x0


def test_a_newline_can_be_pointed_at(faces: Faces) -> None:
    spans = spans_of(faces, ["end", "\n", "more"])
    assert (spans[1].first, spans[1].last) == (1, 1)
    assert spans[1].x1 - spans[1].x0 >= 3


def test_colours_are_those_of_the_ramp(show: Show) -> None:
    # given the drawing
    transcript = show(drawing())
    # then the middle of the top of each span has the colour of its step
    for palette in (LIGHT, DARK):
        transcript.set_palette_of(palette)
        picture = transcript.tokens.viewport().grab().toImage()
        for index, step in ((0, 0), (1, 1), (2, 2), (6, 3), (11, 4), (3, 5)):
            box = transcript.tokens.token_box(2, index)
            assert box is not None
            wanted = palette.surprise[step] or palette.window
            assert picture.pixelColor(box.center().x(), box.top() + 2) == QColor(wanted)


def test_words_that_were_found_look_alike_on_every_colour(show: Show) -> None:
    view = show(session(turn(1, "assistant", written("cat| cat=a| cat=b| cat=c| cat=d| cat=e| catnip=e"))))
    view.look_for("cat")
    for palette in (LIGHT, DARK, HIGH_LIGHT, HIGH_DARK):
        view.set_palette_of(palette)
        for index in range(1, 7):  # the first one is selected
            colours = colours_of(view, 1, index)
            assert {palette.bar_rest, palette.text} <= colours


@pytest.mark.parametrize("bits", ["", "c", "e"])
def test_emoji_keep_their_colours_in_a_coloured_token(show: Show, bits: str) -> None:
    view = show(session(turn(1, "assistant", written(f"🌈={bits}| x"))))
    if not any("Emoji" in name for name in QFontDatabase.families()):
        pytest.skip("no emoji font is installed")
    box = view.tokens.token_box(1, 0)
    assert box is not None
    image = view.tokens.viewport().grab(box).toImage()
    colours = [image.pixelColor(x, y) for x in range(image.width()) for y in range(image.height())]
    hues = {colour.hue() // 60 for colour in colours if colour.saturation() > 100 and colour.value() > 100}
    assert len(hues) >= 4  # one of them is the background of the token


def test_template_tokens_are_drawn_only_on_request(show: Show) -> None:
    transcript = show(drawing())
    assert transcript.tokens.token_box(1, 0) is None
    transcript.set_template_visible(True)
    assert transcript.tokens.token_box(1, 0) is not None
    assert "<|im_start|>" in transcript.tokens.page.boxes[0].turn.tokens.texts[0]


def test_right_to_left_tokens_are_found_under_the_mouse(show: Show) -> None:
    transcript = show(
        session(turn(1, "assistant", run_of([" مرحبا", " بال", "عالم", " tram", " 28"], [1.0] * 5, Origin.SAMPLED)))
    )
    for index in range(5):
        box = transcript.tokens.token_box(1, index)
        assert box is not None
        QTest.mouseClick(transcript.tokens.viewport(), Qt.MouseButton.LeftButton, pos=box.center())
        assert transcript.pinned == (1, index)


def test_unscored_tokens_have_no_colour(show: Show) -> None:
    run = run_of(["never", " scored"], [None, None], Origin.IMPORTED)
    transcript = show(session(turn(1, "user", run), turn(2, "assistant", written("a=e"))))
    picture = transcript.tokens.viewport().grab().toImage()
    box = transcript.tokens.token_box(1, 0)
    assert box is not None
    assert picture.pixelColor(box.center().x(), box.top() + 1) == QColor(LIGHT.window)


def colours_of(transcript: TranscriptView, node_id: int, index: int) -> set[str]:
    """Every colour inside of a token's span."""
    picture = transcript.tokens.viewport().grab().toImage()
    box = transcript.tokens.token_box(node_id, index)
    assert box is not None
    return {picture.pixelColor(x, y).name() for x in range(box.left() + 1, box.right()) for y in range(box.top(), box.bottom())}


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_template_tokens_have_the_background_of_their_scores_and_one_text_colour(show: Show, palette: Palette) -> None:
    # given a header of adjacent tokens, all but one scored, among them the most surprising
    header = run_of(["<|im_start|>", "ass", "ist", "ant", "\n"], [9.0, 0.2, 4.0, None, 0.1], Origin.TEMPLATE)
    transcript = show(session(turn(1, "assistant", TokenRun.concat([header, written("Hello")]))))
    transcript.set_palette_of(palette)
    transcript.set_template_visible(True)
    # then each has the background of its surprise, and all but the strongest have the same text colour
    grounds = (palette.surprise[5], palette.window, palette.surprise[3], palette.window)
    word = Ink(palette).template.name()
    for index, (ground, words) in enumerate(zip(grounds, (palette.on_strongest, word, word, word), strict=True)):
        found = colours_of(transcript, 1, index)
        assert {ground, words} <= found, (index, found)
        assert (palette.text in found) is (palette.text == words), index
