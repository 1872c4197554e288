"""Read mode: colours of code that names its language, formulas as pictures and as their source."""

from __future__ import annotations

import time

import pytest
from PySide6.QtCore import QPoint, QPointF, QRect, Qt
from PySide6.QtGui import QGuiApplication, QTextDocument, QTextTable, QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from runtime import Origin
from tests.ui.transcript.conftest import PATIENCE_MS, Show, settle
from tests.ui.transcript.samples import run_of, session, turn
from ui import Scheme, apply_theme
from ui.theme.palette import DARK, LIGHT, Palette
from ui.transcript import Mode, TranscriptView
from ui.transcript.read_mode.document import code_document, fill_page, markdown_document
from ui.transcript.read_mode.formulas import Formula, Formulas
from ui.transcript.read_mode.markup import MOST
from ui.transcript.read_mode.markup import formulas as formulas_in
from ui.transcript.text.faces import Faces

PYTHON = 'def f(x):  # 🐈 is kept\n    """two\n    lines"""\n    return "🐈" + x'


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises the time limit of highlighting, after which slow code stays plain."""
    monkeypatch.setattr("ui.transcript.read_mode.code_ink.PATIENCE_SECONDS", 60.0)


def coloured(document: QTextDocument) -> dict[str, str]:
    """The pieces of a document that have a colour of their own, and that colour."""
    found = {}
    for number in range(document.blockCount()):
        block = document.findBlockByNumber(number)
        units = block.text().encode("utf-16-le")
        for part in block.layout().formats():
            piece = units[2 * part.start : 2 * (part.start + part.length)].decode("utf-16-le")
            found[piece] = part.format.foreground().color().name()
    return found


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_code_that_names_its_language_is_coloured(qapp: QApplication, palette: Palette) -> None:
    document = code_document(PYTHON, "python", Faces(), palette, 600)
    assert document.toPlainText() == PYTHON
    assert coloured(document) == {
        "def": palette.accent,
        "# 🐈 is kept": palette.soft,
        '"""two': palette.literal,
        '    lines"""': palette.literal,
        "return": palette.accent,
        '"': palette.literal,
        "🐈": palette.literal,
    }
    # by the first word after the fence, whatever follows
    assert coloured(code_document("x = 1", "{.python} title=x", Faces(), palette, 600)) == {"1": palette.literal}
    # a comment at the end, too
    assert coloured(code_document("ls  # all", "bash", Faces(), palette, 600)) == {"# all": palette.soft}


def test_code_in_a_page_is_coloured_and_the_text_around_it_is_not(qapp: QApplication) -> None:
    document = QTextDocument()
    source = "def\n\n```python\ndef f():\n\n    return 1\n```\n\n1. in\n2. return\n\n```\ndef\n```\n\n```bash\nls  # all\n```\n"
    fill_page(document, source, Faces(), LIGHT, 600)
    assert coloured(document) == {"def": LIGHT.accent, "return": LIGHT.accent, "1": LIGHT.literal, "# all": LIGHT.soft}
    assert len(document.rootFrame().childFrames()) == 3  # each code block has its own background


@pytest.mark.parametrize("language", ["", "no such language", "../../etc/passwd", "<b>"])
def test_code_of_no_known_language_is_plain(qapp: QApplication, language: str) -> None:
    document = code_document(PYTHON, language, Faces(), LIGHT, 600)
    assert (coloured(document), document.toPlainText()) == ({}, PYTHON)


def test_code_of_any_size_and_shape_is_shown(qapp: QApplication) -> None:
    for source in ("x = 1\n" * 3000, "'" * 5000, "a\r\nb", "a\u2028b = 1", "", "\n\n"):
        document = code_document(source, "python", Faces(), LIGHT, 600)
        assert document.size().height() > 0


def test_colours_of_code_follow_the_theme(qtbot: QtBot, show: Show) -> None:
    pieces = ["```python\n", "def f(x):\n", "    return x\n", "```"]
    transcript = show(session(turn(1, "assistant", run_of(pieces, [1.0] * 4, Origin.SAMPLED))))
    transcript.set_mode(Mode.READ)
    settle(qtbot, transcript)
    layout = transcript.read.page.boxes[0].body.layout
    assert coloured(layout.document(0))["def"] == LIGHT.accent
    layout.set_palette_of(DARK)
    assert coloured(layout.document(0))["def"] == DARK.accent


@pytest.mark.parametrize(
    "formula",
    [
        r"\(x_i^2 * y * z\)",
        r"\[ \frac{1}{2} * a * b \]",
        "$a_1*b_2*c$",
        r"$$\sum_{i} *x_i*$$",
        "\\begin{align}\na &= b * c * d \\\\\n- 1. c &= d\n\\end{align}",
        r"\begin{bmatrix} 1 & *2* \end{bmatrix}",
    ],
)
def test_formulas_are_shown_as_source_until_their_pictures_exist(qapp: QApplication, formula: str) -> None:
    document = markdown_document(f"so *this* {formula} holds", Faces(), LIGHT, 600)
    assert document.toPlainText().replace("\u2028", "\n") == f"so this {formula} holds"


def test_text_that_is_no_formula_stays_markdown(qapp: QApplication) -> None:
    def plain(source: str) -> str:
        return markdown_document(source, Faces(), LIGHT, 600).toPlainText()

    assert plain("it is $5 and *that* is $6") == "it is $5 and that is $6"
    assert plain(r"`\(*a*\)` and `$*a*$`") == r"\(*a*\) and $*a*$"
    assert plain(r"\(never *ends*") == "(never ends"
    assert plain("$" * 3000) == "$" * 3000
    assert len(plain(r"\(" * 3000)) > 0


EULER = r"$e^{i\pi} + 1 = 0$"
SUM = r"\[ \sum_{i=0}^n i = \frac{n(n+1)}{2} \]"


def shown_text(transcript: TranscriptView) -> str:
    layout = transcript.read.page.boxes[0].body.layout
    return "\n".join(layout.document(number).toPlainText() for number in range(len(layout)))


def read(qtbot: QtBot, show: Show, text: str, **size: int) -> TranscriptView:
    """An answer in Read mode, with all pictures that can be drawn."""
    pieces = [text[at : at + 60] for at in range(0, len(text), 60)]
    transcript = show(session(turn(1, "assistant", run_of(pieces, [1.0] * len(pieces), Origin.SAMPLED))), **size)
    transcript.set_mode(Mode.READ)
    settle(qtbot, transcript)
    qtbot.waitUntil(transcript.read.viewport().updatesEnabled, timeout=PATIENCE_MS)
    transcript.grab()  # pictures are drawn only for painted formulas
    formulas = transcript.read.findChild(Formulas)
    assert formulas is not None
    qtbot.waitUntil(lambda: formulas.is_idle, timeout=PATIENCE_MS)
    settle(qtbot, transcript)
    return transcript


def lightness(transcript: TranscriptView) -> tuple[int, int]:
    """The lightness of the darkest and of the lightest pixel at the beginning of the text column."""
    image = transcript.read.viewport().grab(QRect(transcript.read.column()[0], 0, 640, 100)).toImage()
    seen = [image.pixelColor(x, y).lightness() for x in range(image.width()) for y in range(image.height())]
    return min(seen), max(seen)


@pytest.mark.slow
def test_formulas_become_pictures_and_are_copied_as_source(qtbot: QtBot, show: Show) -> None:
    transcript = read(qtbot, show, f"so *this* {EULER} holds, and then\n{SUM}\nagain")
    assert shown_text(transcript) == "so this \ufffc holds, and then\n\ufffc\nagain"
    box = transcript.read.page.boxes[0]
    assert box.body.height > 3 * transcript.read.page.faces.pitch + 10  # a sum takes more than a line
    QTest.keyClick(transcript.read, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    QTest.keyClick(transcript.read, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == f"so this {EULER} holds, and then\n{SUM}\nagain"


@pytest.mark.slow
def test_formulas_have_the_colour_and_the_size_of_the_surrounding_text(qtbot: QtBot, qapp: QApplication, show: Show) -> None:
    transcript = read(qtbot, show, SUM)
    assert lightness(transcript)[0] < 60
    normal = transcript.read.page.boxes[0].body.height
    apply_theme(qapp, Scheme.DARK)
    settle(qtbot, transcript)
    assert lightness(transcript)[1] > 200
    transcript.read.set_faces(Faces(2.0))
    settle(qtbot, transcript)
    assert transcript.read.page.boxes[0].body.height > 1.6 * normal


@pytest.mark.slow
@pytest.mark.parametrize("width", [420, 780])
def test_a_long_formula_is_no_wider_than_the_column(qtbot: QtBot, show: Show, width: int) -> None:
    transcript = read(qtbot, show, "$$" + " + ".join(f"x_{{{n}}}" for n in range(40)) + "$$", width=width)
    document = transcript.read.page.boxes[0].body.layout.document(0)
    assert document.toPlainText() == "\ufffc"
    assert document.idealWidth() <= transcript.read.column()[1] + 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "formula",
    [
        r"\(\frobnicate{x}\)",
        r"\(\text{速}\)",  # not in the font
        r"\(\frac{1}{\)",
        r"\(\href{file:///etc/passwd}{x}\)",
        r"\(\includegraphics{/etc/passwd}\)",
        r"\(\color{url(file:///etc/passwd)}x\)",
        r"\(\input{/etc/passwd}\)",
        r"\(\hspace{100000em} x\)",
        r"\(\newcommand{\a}{\a\a}\a\)",
        r"\(\def\a{\a\a}\a\)",
        "\\begin{itemize}\n\\item a\n\\end{itemize}",
        r"\(" + r"\frac{1}{" * 20 + "x" + "}" * 20 + r"\)",  # its time doubles with each level
        r"\(" + "{" * 400 + "x" + "}" * 400 + r"\)",
        r"\(" + r"\left(" * 60 + "x" + r"\right)" * 60 + r"\)",
        r"\(" + "x^{" * 200 + "x" + "}" * 200 + r"\)",
    ],
)
def test_a_formula_that_cannot_be_drawn_is_shown_as_source(qtbot: QtBot, show: Show, formula: str) -> None:
    transcript = read(qtbot, show, f"a {formula} b {EULER} c")
    assert shown_text(transcript).replace("\u2028", "\n") == f"a {formula} b \ufffc c"


@pytest.mark.parametrize("tex", ["x + ", "x^{", r"\a", r"\frac{1}{", r"\begin{a}"])
def test_ten_megabytes_are_not_treated_as_a_formula(qapp: QApplication, tex: str) -> None:
    source = tex * (10_000_000 // len(tex))
    for opening, closing in (("$$", "$$"), (r"\[", r"\]"), (r"\(", r"\)")):
        held = opening + source + closing
        assert formulas_in(opening + source[: 2 * MOST] + closing) == []
        formulas = Formulas()
        formulas.ask(held)
        assert formulas.is_idle
        assert formulas.get(held) is None


@pytest.mark.slow
def test_of_many_formulas_only_those_in_sight_are_drawn(qtbot: QtBot, show: Show) -> None:
    text = "\n\n".join(f"$a_{{{n}}}$ and $${'{' * 300}$$" for n in range(80))
    transcript = read(qtbot, show, text)
    layout = transcript.read.page.boxes[0].body.layout
    drawn = [number for number in range(len(layout)) if "\ufffc" in layout.document(number).toPlainText()]
    assert 0 < len(drawn) < 20


def test_a_paragraph_of_pictures_is_laid_out_once(qapp: QApplication) -> None:
    """A layout for each picture would take minutes."""
    picture = Formula('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>', 0.6, 0.5, 0.1)
    began = time.monotonic()
    document = markdown_document("$x$ " * 1500, Faces(), LIGHT, 600, {"$x$": picture})
    assert document.toPlainText().split() == ["\ufffc"] * 1500
    assert document.size().height() > 1000
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("picture", "columns"),
    [((3.0, 1.1, 0.1), 2), ((0.5, 0.4, 0.1), 2), ((4.0, 1.2, 0.5), 2), ((30.0, 0.8, 0.2), 2), ((30.0, 1, 1), 3)],
)
def test_formulas_in_a_table_share_the_baseline_of_the_text_and_stay_in_their_columns(
    qapp: QApplication, picture: tuple[float, float, float], columns: int
) -> None:
    formula = Formula('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>', *picture)
    row = "|".join(["one", *["$x$"] * (columns - 1), "an end"])
    source = f"{row}\n{'|'.join(['--'] * (columns + 1))}\n{row}\n"
    document = markdown_document(source, Faces(), LIGHT, 632, {"$x$": formula})
    layout, cells, block = document.documentLayout(), list[tuple[str, float, float, float]](), document.begin()
    assert layout.documentSize().width() <= 632
    while block.isValid():
        place, line = layout.blockBoundingRect(block).topLeft(), block.layout().lineAt(0)
        left = place.x() + line.x()
        cells.append((block.text(), left, left + line.naturalTextWidth(), place.y() + line.y() + line.ascent()))
        block = block.next()
    for first in (1, columns + 2):  # of a row; the block before the table is empty
        texts, lefts, rights, baselines = zip(*cells[first : first + columns + 1], strict=True)
        assert texts == ("one", *["\ufffc"] * (columns - 1), "an end")
        assert max(baselines) - min(baselines) <= 1.5
        assert all(right < left for right, left in zip(rights, lefts[1:], strict=False))


@pytest.mark.parametrize("row", ["a|b $x$|$y$", "$x$ b|$y$|c", "$x$ $y$|$x$ b|c", "a|$y$|`b` $x$"])
def test_text_in_a_table_row_shares_the_baseline_of_the_highest_formula(qapp: QApplication, row: str) -> None:
    svg = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>'
    pictures = {"$x$": Formula(svg, 0.6, 0.5, 0.1), "$y$": Formula(svg, 1.5, 1.6, 0.9)}
    document = markdown_document(f"a|b|c\n--|--|--\n{row}\n", Faces(), LIGHT, 632, pictures)
    layout, table, bases = document.documentLayout(), document.rootFrame().childFrames()[0], list[float]()
    assert isinstance(table, QTextTable)
    for column in range(3):
        block = table.cellAt(1, column).firstCursorPosition().block()
        line = block.layout().lineAt(0)
        bases.append(layout.blockBoundingRect(block).top() + line.y() + line.ascent())
    assert max(bases) - min(bases) <= 0.5


@pytest.mark.slow
def test_a_very_long_text_with_an_unclosed_formula_is_shown(qtbot: QtBot, show: Show) -> None:
    transcript = read(qtbot, show, r"\[" + "x^{" * 60_000)
    assert "\ufffc" not in transcript.read.page.boxes[0].body.layout.document(0).toPlainText()


def wheel(pane: QWidget, at: QPoint, by: QPoint, held: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier) -> None:
    """A notch of a wheel over the text."""
    where = QPointF(at)
    event = QWheelEvent(
        where, QPointF(pane.mapToGlobal(at)), QPoint(), by, Qt.MouseButton.NoButton, held, Qt.ScrollPhase.NoScrollPhase, False
    )
    QApplication.sendEvent(pane, event)


def test_long_lines_of_code_are_scrolled_and_not_broken(qtbot: QtBot, show: Show) -> None:
    transcript = read(qtbot, show, "before\n\n```python\n" + "x = 1 + " * 40 + "2\ny = 3\n```\n\nafter")
    pane, box = transcript.read, transcript.read.page.boxes[0]
    layout = box.body.layout
    assert layout.document(1).firstBlock().layout().lineCount() == 1
    at = QPoint(pane.column()[0] + 60, int(box.top + layout.origin(1).y() + 4))
    first = box.body.place_at(60, layout.origin(1).y() + 4)
    wheel(pane.viewport(), at, QPoint(0, -240), Qt.KeyboardModifier.ShiftModifier)
    second = box.body.place_at(60, layout.origin(1).y() + 4)
    assert second.position > first.position
    wheel(pane.viewport(), at, QPoint(-100_000, 0))
    far, most = layout.hidden(1)
    assert far == most > 0
    wheel(pane.viewport(), at, QPoint(100_000, 0))
    assert layout.hidden(1)[0] == 0
    assert layout.hidden(0) == (0, 0)


def test_code_blocks_show_their_language_and_that_they_were_copied(qtbot: QtBot, show: Show) -> None:
    transcript = read(qtbot, show, "```{.python} title=x\nx = 1\n```\n\n```\ny\n```")
    pane, box = transcript.read, transcript.read.page.boxes[0]
    layout = box.body.layout
    assert [layout.language(0), layout.language(1)] == ["python", ""]
    head = layout.head(0).translated(pane.column()[0], box.top).toRect()
    before = pane.viewport().grab(head).toImage()
    QTest.mouseMove(pane.viewport(), head.center())
    offered = pane.viewport().grab(head).toImage()
    QTest.mouseClick(pane.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(head.right() - 10, head.center().y()))
    copied = pane.viewport().grab(head).toImage()
    assert before != offered != copied
    QTest.mouseMove(pane.viewport(), QPoint(head.center().x(), pane.viewport().height() - 4))
    assert pane.viewport().grab(head).toImage() == before


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("see ![a cat](https://example.org/cat.png) here", "see [Image: a cat] here"),
        ("![](file:///etc/passwd) and `![](x)`", "[Image] and ![](x)"),
        ("![one](data:image/png;base64,AAAA) ![two](b.png)", "[Image: one] [Image: two]"),
    ],
)
def test_a_picture_is_replaced_by_its_name(qapp: QApplication, source: str, shown: str) -> None:
    assert markdown_document(source, Faces(), LIGHT, 600).toPlainText() == shown
