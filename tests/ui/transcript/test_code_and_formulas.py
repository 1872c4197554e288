"""Read mode: colours of code that names its language, and formulas as their source."""

from __future__ import annotations

import pytest
from PySide6.QtGui import QTextDocument
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from runtime import Origin
from tests.ui.transcript.conftest import Show, settle
from tests.ui.transcript.samples import run_of, session, turn
from ui.theme.palette import DARK, LIGHT, Palette
from ui.transcript import Mode
from ui.transcript.read_mode.document import code_document, markdown_document
from ui.transcript.text.faces import Faces

PYTHON = 'def f(x):  # 🐈 is kept\n    """two\n    lines"""\n    return "🐈" + x'


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is slow to be read stays plain, so that others are painted; here it is read to its end."""
    monkeypatch.setattr("ui.transcript.read_mode.code_ink.PATIENCE_SECONDS", 60.0)


def coloured(document: QTextDocument) -> dict[str, str]:
    """What of a document has another colour than the rest, and which."""
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
    # by what stands first behind the fence, whatever else does
    assert coloured(code_document("x = 1", "{.python} title=x", Faces(), palette, 600)) == {"1": palette.literal}


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
def test_formulas_are_shown_as_their_source(qapp: QApplication, formula: str) -> None:
    document = markdown_document(f"so *this* {formula} holds", Faces(), LIGHT, 600)
    assert document.toPlainText().replace("\u2028", "\n") == f"so this {formula} holds"


def test_what_is_no_formula_stays_markdown(qapp: QApplication) -> None:
    def read(source: str) -> str:
        return markdown_document(source, Faces(), LIGHT, 600).toPlainText()

    assert read("it is $5 and *that* is $6") == "it is $5 and that is $6"
    assert read(r"`\(*a*\)` and `$*a*$`") == r"\(*a*\) and $*a*$"
    assert read(r"\(never *ends*") == "(never ends"
    assert read("$" * 3000) == "$" * 3000
    assert len(read(r"\(" * 3000)) > 0
