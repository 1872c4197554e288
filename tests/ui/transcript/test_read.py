"""Read mode: what is cut, what is frozen, what is never opened."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import QPoint, QRectF, Qt, QUrl
from PySide6.QtGui import QColor, QGuiApplication, QImage, QPainter, QTextDocument
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from runtime import Origin, TokenRun
from tests.ui.transcript.conftest import PATIENCE_MS, Show, settle
from tests.ui.transcript.samples import run_of, session, turn, written
from ui.port import TurnStatus
from ui.theme.palette import DARK, LIGHT
from ui.transcript import Mode, TranscriptView
from ui.transcript.read_mode.document import BlankDocument, fill_page, markdown_document, stretches
from ui.transcript.text.faces import Faces

ANSWER = """# Spring

Go to **Lisbon**, see [the trams](https://example.org/trams).

- one

- two

```python
def f(x):

    return x
```

Last words.
"""


def pieces(text: str, size: int = 5) -> TokenRun:
    """The text in tokens of a few characters."""
    parts = [text[i : i + size] for i in range(0, len(text), size)]
    return run_of(parts, [1.0] * len(parts), Origin.SAMPLED)


@pytest.fixture
def reading(qtbot: QtBot, show: Show) -> TranscriptView:
    transcript = show(session(turn(1, "user", written("# my| trip\n|here")), turn(2, "assistant", pieces(ANSWER))))
    transcript.set_mode(Mode.READ)
    settle(qtbot, transcript)
    return transcript


PARTS = ["word ", "\n", "\n\n", "```\n", "- item\n", "    code\n", "# Head\n"]


# ---- cutting ----------------------------------------------------------------------------------------------------------


def test_answers_are_cut_at_paragraphs_and_fences_but_not_inside_lists() -> None:
    cut = list(stretches(ANSWER))
    sources = [ANSWER[s.start : s.stop].strip() for s in cut]
    assert sources[0] == "# Spring"
    assert sources[2] == "- one\n\n- two"
    assert (cut[3].code, cut[3].language) == ("def f(x):\n\n    return x", "python")
    assert sources[4] == "Last words."


def test_long_code_is_cut_at_lines() -> None:
    """In one piece, ten megabytes of it take half a minute to typeset."""
    code = "x^2 + y\n" * 60_000
    text = f"Look:\n```math\n{code}```\nafter"
    cut = list(stretches(text))
    parts = [each.code for each in cut if each.code is not None]
    assert len(parts) > 3
    assert max(map(len, parts)) <= 100_000
    assert "".join(parts) == code.rstrip("\n")
    assert {each.language for each in cut[1:-1]} == {"math"}
    assert [each.start for each in cut[1:]] == [each.stop for each in cut[:-1]]


def test_an_open_fence_is_code_already() -> None:
    cut = list(stretches("Look:\n```py\nx = 1\n"))
    assert [s.code for s in cut] == [None, "x = 1"]


@given(st.lists(st.sampled_from([*PARTS, "1. one\n", "~~~", "| a |\n", "x" * 9000])))
def test_the_stretches_are_the_text(parts: list[str]) -> None:
    text = "".join(parts)
    cut = list(stretches(text))
    assert [s.start for s in cut[1:]] == [s.stop for s in cut[:-1]]
    assert not cut or (cut[0].start == 0 and not text[cut[-1].stop :].strip())


@given(st.lists(st.sampled_from(PARTS), min_size=2), st.data())
def test_what_is_cut_off_stays_so_while_more_arrives(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    shorter = text[: data.draw(st.integers(0, len(text)))]
    frozen = list(stretches(shorter))[:-1]
    assert list(stretches(text))[: len(frozen)] == frozen


@pytest.mark.slow
def test_long_typed_text_is_cut_at_lines_and_comes_back_whole(qtbot: QtBot, show: Show) -> None:
    text = "".join(f"line {i} of a pasted file\n" for i in range(900))
    transcript = show(session(turn(1, "user", run_of([text], [1.0], Origin.TYPED))))
    transcript.set_mode(Mode.READ)
    settle(qtbot, transcript)
    body = transcript.read.page.boxes[0].body
    assert len(body.layout) > 2
    transcript.read.select_all()
    assert transcript.read.selected_text == text.removesuffix("\n")


@pytest.mark.parametrize("blank", ["\n", " ", " \n"])
def test_what_is_blank_is_cut_too(blank: str) -> None:
    """As a whole it is looked through again at each of its lines, and breaking its one line takes Qt minutes."""
    text, began = blank * 200_000 + "x", time.monotonic()
    cut = list(stretches(text))
    assert time.monotonic() - began < 10
    assert (cut[0].start, cut[-1].stop) == (0, len(text))
    assert max(each.stop - each.start for each in cut) <= 2 * 6000


# ---- rendering --------------------------------------------------------------------------------------------------------


def test_only_the_last_stretch_of_a_stream_is_rendered_again(qtbot: QtBot, show: Show) -> None:
    # given an answer that is being written
    half = ANSWER.index("Last")
    transcript = show(session(turn(2, "assistant", pieces(ANSWER[:half]), status=TurnStatus.STREAMING)))
    transcript.set_mode(Mode.READ)
    settle(qtbot, transcript)
    body = transcript.read.page.boxes[0].body
    before = [body.layout.document(number) for number in range(len(body.layout))]
    # when more arrives
    transcript.append_tokens(2, pieces(ANSWER[half:]))
    qtbot.waitUntil(lambda: len(body.layout) > len(before), timeout=PATIENCE_MS)
    # then what was finished is the same object
    after = [body.layout.document(number) for number in range(len(body.layout))]
    assert [a is b for a, b in zip(before[:-1], after, strict=False)] == [True] * (len(before) - 1)


def test_what_was_typed_is_markdown_too_and_keeps_its_lines(qtbot: QtBot, show: Show) -> None:
    typed = "# Trip\n\nGo to **Lisbon**\nby tram: <b>now</b>\n\n```python\nx = 1\n```\n"
    transcript = show(
        session(turn(1, "user", run_of([typed], [1.0], Origin.TYPED)), turn(2, "system", written("**as it is**")))
    )
    transcript.set_mode(Mode.READ)
    settle(qtbot, transcript)
    layout, system = (box.body.layout for box in transcript.read.page.boxes)
    assert [layout.document(i).toPlainText() for i in range(2)] == ["Trip", "Go to Lisbon\nby tram: <b>now</b>"]
    assert layout.is_code(2)
    assert system.document(0).toPlainText() == "**as it is**"
    # what is copied is what was typed
    transcript.read.select_all()
    assert transcript.read.selected_text.startswith(typed.rstrip("\n"))


def test_markdown_is(reading: TranscriptView) -> None:
    body = reading.read.page.boxes[1].body
    assert body.layout.document(0).toPlainText() == "Spring"
    assert body.layout.document(1).toPlainText() == "Go to Lisbon, see the trams."


def test_a_long_answer_is_rendered_in_slices_and_keeps_its_end(qtbot: QtBot, show: Show) -> None:
    transcript = show(session(turn(2, "assistant", pieces(ANSWER * 60))))
    transcript.set_mode(Mode.READ)
    settle(qtbot, transcript)
    bar = transcript.read.verticalScrollBar()
    assert bar.value() == bar.maximum() > 5000


def test_selecting_and_copying_gives_the_text_as_it_is_read(qtbot: QtBot, reading: TranscriptView) -> None:
    QTest.keyClick(reading.read, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    QTest.keyClick(reading.read, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    copied = QGuiApplication.clipboard().text()
    assert copied.startswith("# my trip\nhere\n\nSpring\n\nGo to Lisbon")
    assert "def f(x):\n\n    return x" in copied


def test_dragging_selects(qtbot: QtBot, reading: TranscriptView) -> None:
    pane = reading.read
    left, box = pane.column()[0], pane.page.boxes[1]
    y = box.top + box.body.layout.tops()[1] + 14
    viewport = pane.viewport()
    QTest.mousePress(viewport, Qt.MouseButton.LeftButton, pos=QPoint(left, y))
    QTest.mouseMove(viewport, pos=QPoint(left + 60, y))
    QTest.mouseMove(viewport, pos=QPoint(left + 640, y))
    QTest.mouseRelease(viewport, Qt.MouseButton.LeftButton, pos=QPoint(left + 640, y))
    assert pane.selected_text == "Go to Lisbon, see the trams."


def test_a_link_is_only_reported_and_only_if_it_leads_to_the_web_or_to_mail(qtbot: QtBot, show: Show) -> None:
    text = "[web](https://example.org/x) [mail](mailto:a@b.org) [file](file:///etc/passwd) [run](javascript:alert)"
    transcript = show(session(turn(2, "assistant", pieces(text))))
    transcript.set_mode(Mode.READ)
    settle(qtbot, transcript)
    pane = transcript.read
    asked: list[str] = []
    transcript.read.link_requested.connect(asked.append)
    for x in range(2, 160, 4):
        QTest.mouseClick(
            pane.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(pane.column()[0] + x, pane.page.boxes[0].top + 14)
        )
    assert set(asked) == {"https://example.org/x", "mailto:a@b.org"}


def test_a_block_of_code_can_be_copied(qtbot: QtBot, reading: TranscriptView) -> None:
    pane = reading.read
    box = pane.page.boxes[1]
    code = box.body.code_at(box.body.top_of_stretch(3))
    assert code is not None
    corner = QPoint(pane.column()[0] + round(code[1].right()) - 16, box.top + round(code[1].top()) + 14)
    QTest.mouseMove(pane.viewport(), pos=corner)
    with qtbot.waitSignal(reading.copy_requested) as said:
        QTest.mouseClick(pane.viewport(), Qt.MouseButton.LeftButton, pos=corner)
    assert said.args == ["def f(x):\n\n    return x"]


@pytest.mark.parametrize("line", ["x = 1\n", "x = 1 + "])
def test_code_that_is_shown_in_parts_is_copied_whole(qtbot: QtBot, show: Show, line: str) -> None:
    # given code longer than one part, cut at lines or, where there is none, anywhere; between two other pieces
    whole = (line * (220_000 // len(line))).rstrip("\n")
    transcript = show(session(turn(1, "assistant", pieces("```\nbefore\n```\n```py\n" + whole[:150_000], 60))))
    transcript.set_mode(Mode.READ)
    settle(qtbot, transcript)
    pane = transcript.read
    # that goes on while it is shown
    transcript.append_tokens(1, pieces(whole[150_000:] + "\n```\n```\nbehind\n```", 60))
    box, bar = pane.page.boxes[0], pane.verticalScrollBar()
    qtbot.waitUntil(lambda: len(box.body.layout) == 5, timeout=PATIENCE_MS)
    settle(qtbot, transcript)
    qtbot.waitUntil(lambda: bar.maximum() > box.height - pane.viewport().height(), timeout=PATIENCE_MS)
    # when each of the pieces is copied
    copied: list[str] = []
    transcript.copy_requested.connect(copied.append)
    for top in box.body.layout.tops()[:-1]:
        bar.setValue(box.top + top)
        at = box.top + top - bar.value() + 12
        for x in (30, 40):  # a mouse that has not moved is not heard
            QTest.mouseMove(pane.viewport(), pos=QPoint(pane.column()[0] + x, at))
        right = pane.column()[0] + pane.column()[1]
        QTest.mouseClick(pane.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(right - 20, at))
    # then it comes whole, wherever it was pointed at
    assert copied == ["before", whole, whole, whole, "behind"]


# ---- safety -----------------------------------------------------------------------------------------------------------


def test_every_resource_is_a_blank_picture(qapp: QApplication, tmp_path: Path) -> None:
    # given a real picture on disk
    picture = QImage(40, 40, QImage.Format.Format_RGB32)
    picture.fill(Qt.GlobalColor.red)
    assert picture.save(str(tmp_path / "red.png"))
    document = BlankDocument()
    for name in (
        str(tmp_path / "red.png"),
        QUrl.fromLocalFile(str(tmp_path / "red.png")).toString(),
        "https://example.org/a.png",
    ):
        found = document.resource(QTextDocument.ResourceType.ImageResource.value, QUrl(name))
        assert (found.width(), found.height()) == (1, 1)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
def test_a_picture_that_is_a_fifo_does_not_hang(qapp: QApplication, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    for source in (f"![x]({tmp_path}/pipe.png)", f"<img src='{tmp_path}/pipe.png'>", "![x](file:///dev/zero)"):
        document = markdown_document(source, Faces(), LIGHT, 600)
        assert document.size().height() < 200


def test_html_is_shown_and_not_interpreted(qapp: QApplication) -> None:
    document = markdown_document("a <b>bold</b> <img src=x>", Faces(), LIGHT, 600)
    assert "<b>" in document.toPlainText()


def test_lists_and_tables_have_room(qapp: QApplication) -> None:
    document, faces = QTextDocument(), Faces()
    source = "Before:\n\n- one\n- two\n  - inner\n\n1. first\n2. second\n\nAfter.\n\n"
    source += "| left | right |\n|--|--|\n| 1 | 2 |\n\nEnd."
    fill_page(document, source, faces, LIGHT, 600)
    layout, places, block = document.documentLayout(), dict[str, QRectF](), document.begin()
    while block.isValid():
        places[block.text()] = layout.blockBoundingRect(block)
        block = block.next()
    tops = {words: place.top() for words, place in places.items()}
    assert tops["two"] - tops["one"] == tops["inner"] - tops["two"] == faces.pitch
    for above, below in (("Before:", "one"), ("inner", "first"), ("second", "After.")):  # more than between lines
        assert tops[below] - tops[above] == faces.pitch + 8 * faces.scale
    assert tops["1"] - tops["left"] >= faces.pitch + 8 * faces.scale
    assert places["right"].left() - places["left"].right() >= 0
    assert places["2"].left() - places["1"].left() > 24 * faces.scale


def test_a_rule_is_a_hairline(qapp: QApplication) -> None:
    document = markdown_document("above\n\n---\n\nbelow", Faces(), DARK, 300)
    picture = QImage(300, 120, QImage.Format.Format_RGB32)
    picture.fill(QColor(DARK.window))
    painter = QPainter(picture)
    document.drawContents(painter)
    painter.end()
    colours = [picture.pixelColor(150, y).name() for y in range(120)]
    assert [colour for colour in colours if colour != DARK.window] == [DARK.hairline]


@pytest.mark.parametrize("below", ["", "below"])
def test_a_rule_is_no_higher_where_a_text_begins_with_it(qapp: QApplication, below: str) -> None:
    def height(source: str) -> float:
        return markdown_document(source, Faces(), LIGHT, 300).size().height()

    rule = height(f"above\n\n---\n\n{below}") - height("above")
    assert rule - 10 < height(f"---\n\n{below}") <= rule + 1


HIDDEN = "a\x1b[31mb \u202eevil\u202c \U000e0041 \u200bz\r\nend"
SEEN = "aESC[31mb RLOevilPDF tag A ZWSPz\nend"


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize(("before", "after"), [("", ""), ("```python\n", "\n```\n")])
def test_what_would_hide_or_act_is_seen(qtbot: QtBot, show: Show, role: str, before: str, after: str) -> None:
    transcript = show(session(turn(2, role, run_of([before, HIDDEN, after], [1.0] * 3, Origin.SAMPLED))))
    transcript.set_mode(Mode.READ)
    settle(qtbot, transcript)
    layout = transcript.read.page.boxes[0].body.layout
    typeset = layout.document(0).toPlainText()
    shown = SEEN if before or role == "user" else SEEN.replace("\n", " ")  # in markdown a line goes on in the next
    assert shown in typeset
    if before and role == "assistant":  # and what a block's *copy* takes is the model's own text
        assert transcript.read.page.boxes[0].body.code(0) == HIDDEN


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "text",
    ["x" * 200_000, "> " * 3000, "- " * 3000, "[" * 5000, "*" * 5000, "| " * 3000 + "\n" + "|-" * 3000, "\x1b\u202e" * 9],
)
def test_hostile_markdown_is_survived(qtbot: QtBot, show: Show, text: str) -> None:
    transcript = show(session(turn(2, "assistant", run_of([text], [1.0], Origin.SAMPLED))))
    transcript.set_mode(Mode.READ)
    settle(qtbot, transcript)
    box = transcript.read.page.boxes[0]
    assert box.body.height > 0
    assert box.body.layout.done
