"""The surprise of what is being typed, as colours behind it."""

from __future__ import annotations

from itertools import takewhile

from PySide6.QtCore import QObject
from PySide6.QtGui import QColor, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QPlainTextEdit, QTextEdit

from ui.port.tokens import TokenRun
from ui.theme.scheme import current_theme
from ui.transcript.measure import Measure, steps
from ui.widgets.visible import utf16_length


class DraftColours(QObject):
    """Colours a field until its text changes; what stands in front of a change keeps its colours.

    Args:
        field: Has the text. Colours are no part of it: they are neither copied nor undone.
    """

    def __init__(self, field: QPlainTextEdit) -> None:
        super().__init__(field)
        self._field = field
        self._text = ""  # that was scored
        self._spans: list[tuple[int, int, int]] = []  # first and last QChar, step
        self._shown = True
        self._theme = current_theme()
        self._theme.changed.connect(self._paint)
        field.textChanged.connect(self._keep)

    @property
    def spans(self) -> list[tuple[str, int]]:
        """What is coloured, and the step of each."""
        text = self._field.toPlainText().encode("utf-16-le")
        return [(text[2 * first : 2 * last].decode("utf-16-le"), step) for first, last, step in self._spans]

    @property
    def shown(self) -> bool:
        """Whether a draft that is scored is coloured."""
        return self._shown and bool(self._theme.own_strength)

    def show(self, shown: bool) -> None:  # a state, not an option
        self._shown = shown
        self._paint()

    def take(self, run: TokenRun, message: str) -> None:
        """The tokens of a message that ends in the field's text, and their numbers."""
        draft, said = self._field.toPlainText(), "".join(run.texts)
        begun = message.find(said)
        if begun < 0:
            return
        at = begun - (len(message) - len(draft))  # files stand in front of the draft
        self._text, self._spans = draft, []
        for text, step in zip(run.texts, steps(run, Measure.SURPRISAL).tolist(), strict=True):
            first, last = max(at, 0), at + len(text)
            at = last
            if step and first < last:
                self._spans.append((utf16_length(draft[:first]), utf16_length(draft[:last]), step))
        self._paint()

    def _keep(self) -> None:
        now = self._field.toPlainText()
        same = takewhile(lambda pair: pair[0] == pair[1], zip(self._text, now, strict=False))
        kept = utf16_length(now[: sum(1 for _ in same)])
        if any(last > kept for _, last, _ in self._spans):
            self._spans = [span for span in self._spans if span[1] <= kept]
            self._paint()

    def _paint(self, _palette: object = None) -> None:
        strength, palette = self._theme.own_strength, self._theme.palette
        selections = []
        for first, last, step in self._spans if self.shown else ():
            made = QTextEdit.ExtraSelection()
            made.format = QTextCharFormat()
            made.format.setBackground(_over(palette.surprise[step] or palette.card, strength, palette.card))
            made.cursor = QTextCursor(self._field.document())
            made.cursor.setPosition(first)
            made.cursor.setPosition(last, QTextCursor.MoveMode.KeepAnchor)
            selections.append(made)
        self._field.setExtraSelections(selections)


def _over(colour: str, strength: float, ground: str) -> QColor:
    """A colour of that strength on a ground. As one of its own, where two spans meet no line is seen."""
    one, other = QColor(colour), QColor(ground)
    pairs = (one.red(), other.red()), (one.green(), other.green()), (one.blue(), other.blue())
    return QColor(*(round(strength * above + (1 - strength) * below) for above, below in pairs))
