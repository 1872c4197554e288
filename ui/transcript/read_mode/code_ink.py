"""Syntax colours of code that names its language: few and cool, as warm colours show uncertainty."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from PySide6.QtGui import QColor, QTextCharFormat, QTextDocument, QTextLayout

from ui.theme.palette import Palette
from ui.transcript.text.faces import format_range
from ui.widgets.visible import utf16_length

if TYPE_CHECKING:
    from pygments.lexer import Lexer


MOST_CHARACTERS = 10_000  # longer code stays plain, as colouring delays painting
LONGEST_LINE = 2_000
PATIENCE_SECONDS = 0.03  # the rest of the code stays plain


def colour_code(document: QTextDocument, source: str, language: str, palette: Palette, *, first: int = 0) -> None:
    """Colours the blocks that show `source`, from block `first` on, if its language is known; none is guessed."""
    lines = source.split("\n")
    too_long = len(source) > MOST_CHARACTERS or max(map(len, lines)) > LONGEST_LINE
    if too_long or document.blockCount() < first + len(lines):
        return
    lexer = _lexer(language)
    if lexer is None:
        return
    for number, ranges in _ranges(lexer, source, lines, _formats(palette)).items():
        block = document.findBlockByNumber(first + number)
        block.layout().setFormats(ranges)
        document.markContentsDirty(block.position(), block.length())


def _lexer(language: str) -> Lexer | None:
    words = language.split()
    if not words:
        return None
    from pygments.lexers import get_lexer_by_name  # imported late: the window opens without it
    from pygments.util import ClassNotFound

    try:
        return get_lexer_by_name(words[0].strip("{.}").lower())
    except ClassNotFound:
        return None


def _ranges(
    lexer: Lexer, source: str, lines: list[str], formats: dict[str, QTextCharFormat]
) -> dict[int, list[QTextLayout.FormatRange]]:
    """The coloured ranges of each line, in QChars."""
    found: dict[int, list[QTextLayout.FormatRange]] = {}
    give_up = perf_counter() + PATIENCE_SECONDS
    line, start = 0, 0  # the current line, and its first character in the source
    for at, kind, text in lexer.get_tokens_unprocessed(source + "\n"):  # some lexers need the line end after a comment
        shape = formats.get(_colour_of(str(kind)))
        for piece in text.splitlines(keepends=True):
            if shape is None:
                break
            while at >= start + len(lines[line]) + 1:
                start += len(lines[line]) + 1
                line += 1
            shown = piece.rstrip("\n")
            if shown.strip():
                begin = utf16_length(lines[line][: at - start]) if at > start else 0
                found.setdefault(line, []).append(format_range(begin, begin + utf16_length(shown), shape))
            at += len(piece)
        if perf_counter() > give_up:
            break
    return found


def _colour_of(kind: str) -> str:
    """The colour of a kind of token, by pygments' names; "" for most."""
    if kind.startswith("Token.Comment"):
        return "comment"
    if kind.startswith(("Token.Keyword", "Token.Name.Tag", "Token.Operator.Word", "Token.Name.Decorator")):
        return "keyword"
    return "literal" if kind.startswith("Token.Literal") else ""


def _formats(palette: Palette) -> dict[str, QTextCharFormat]:
    made = {}
    for name, colour in (("comment", palette.soft), ("keyword", palette.accent), ("literal", palette.literal)):
        made[name] = QTextCharFormat()
        made[name].setForeground(QColor(colour))
    return made
