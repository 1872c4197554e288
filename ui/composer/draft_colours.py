"""The surprise of the draft's tokens, as colours behind its text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from PySide6.QtCore import QObject, QRect
from PySide6.QtGui import QPainter, QTextLayout, QTextLine
from PySide6.QtWidgets import QPlainTextEdit

from ui.port import TokenRun
from ui.theme.scheme import current_theme
from ui.transcript.measure import Measure, steps
from ui.transcript.text.ink import Ink
from ui.transcript.text.shape import stretches
from ui.widgets.visible import utf16_length


class DraftColours(QObject):
    """Colours a field until its text changes; the text before a change keeps its colours.

    Args:
        field: The field. Colours are not part of its text: they are neither copied nor undone.
    """

    def __init__(self, field: QPlainTextEdit) -> None:
        super().__init__(field)
        self._field = field
        self._text = ""  # the scored text
        self._spans: list[tuple[int, int, int]] = []  # first and last QChar, step
        self._shown = True
        self._theme = current_theme()
        self._theme.changed.connect(self._dress)
        field.textChanged.connect(self._keep)
        self._dress()

    @property
    def spans(self) -> list[tuple[str, int]]:
        """The coloured parts of the text, each with its step on the ramp."""
        text = self._field.toPlainText().encode("utf-16-le")
        return [(text[2 * first : 2 * last].decode("utf-16-le"), step) for first, last, step in self._spans]

    @property
    def shown(self) -> bool:
        """Whether scored drafts are coloured."""
        return self._shown and bool(self._theme.own_strength)

    def show(self, shown: bool) -> None:  # a state, not an option
        self._shown = shown
        self._field.viewport().update()

    def take(self, run: TokenRun, message: str) -> None:
        """Colours the field by the scored tokens of a message that ends in the field's text."""
        draft, scored = self._field.toPlainText(), "".join(run.texts)
        begun = message.find(scored)
        if begun < 0:
            return
        at = begun - (len(message) - len(draft))  # files precede the draft
        self._text, self._spans = draft, []
        for text, step in zip(run.texts, steps(run, Measure.SURPRISAL).tolist(), strict=True):
            first, last = max(at, 0), at + len(text)
            at = last
            if step and first < last:
                self._spans.append((utf16_length(draft[:first]), utf16_length(draft[:last]), step))
        self._field.viewport().update()

    def _keep(self) -> None:
        now = self._field.toPlainText()
        same = takewhile(lambda pair: pair[0] == pair[1], zip(self._text, now, strict=False))
        kept = utf16_length(now[: sum(1 for _ in same)])
        if any(last > kept for _, last, _ in self._spans):
            self._spans = [span for span in self._spans if span[1] <= kept]
            self._field.viewport().update()

    def paint(self, clip: QRect) -> None:
        """Draws the colours inside `clip`, before the text is drawn."""
        if not self._spans or not self.shown:
            return
        field, painter = self._field, QPainter(self._field.viewport())
        block, ratio = field.firstVisibleBlock(), field.viewport().devicePixelRatio()
        while block.isValid():
            place = field.blockBoundingGeometry(block).translated(field.contentOffset())
            if place.top() > clip.bottom():
                break
            layout = block.layout()
            for line in map(layout.lineAt, range(layout.lineCount())):
                spans = list(self._on_line(layout, line, block.position()))
                top, height = round(place.top() + line.y()), round(line.height())
                self._stamps.draw(
                    painter, ((place.left() + x0, place.left() + x1, step) for x0, x1, step in spans), top, height, ratio
                )
            block = block.next()
        painter.end()

    def _on_line(self, layout: QTextLayout, line: QTextLine, start: int) -> Iterator[tuple[float, float, int]]:
        begin, end, seen = line.textStart(), line.textStart() + line.textLength(), line.naturalTextRect()
        for first, last, step in self._spans:
            low, high = max(first - start, begin), min(last - start, end)
            if low < high:
                for x0, x1, _, _ in stretches(layout, line, low, high):
                    left, right = max(x0, seen.left()), min(x1, seen.right())  # without the spaces at the line's end
                    if left < right:
                        yield left, right, step

    def _dress(self) -> None:
        self._stamps = Ink(self._theme.palette, own=self._theme.own_strength).own_stamps
        self._field.viewport().update()
