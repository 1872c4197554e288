"""One visible line: its glyphs, the spans of its tokens, and the token at a point."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from PySide6.QtCore import QTextBoundaryFinder
from PySide6.QtGui import QTextLayout, QTextLine

from ui.transcript.text.compose import Composed, TurnPlace, is_hidden, shown
from ui.transcript.text.faces import Faces, x_of
from ui.transcript.text.wrap import LineTable
from ui.transcript.tokens import RARE, STEP, TEMPLATE, Tokens
from ui.widgets.visible import is_right_to_left

_SLOT_PX = 6.0  # width drawn for a token that has none: a newline, the first bytes of a character
_THIN_PX = 3.0
_TOUCHING_PX = 0.5
_OVERHANG_PX = 12.0  # width of spaces at a paragraph's end outside the column, at most


@dataclass(slots=True)
class Span:
    """Tokens drawn as one: usually one token, several if they share a character. x is relative to the column."""

    first: int
    last: int
    x0: float
    x1: float
    start: int  # QChars in the line
    stop: int
    step: int
    rare: bool
    template: bool

    def token_at(self, x: float) -> int:
        """The token at x; each of the span's tokens has an equal share of its width."""
        share = (x - self.x0) / max(self.x1 - self.x0, 1e-6) * (self.last - self.first + 1)
        return min(max(self.first + int(share), self.first), self.last)


class ShapedLine:
    """The glyphs of one line and the spans of its tokens; made for visible lines."""

    def __init__(self, tokens: Tokens, table: LineTable, line: int, faces: Faces) -> None:
        self._number = line
        start = table.start(line)
        self.composed = table.text_of(line)
        rtl = table.is_right_to_left(line)
        mono = table.is_code(line)
        self.layout = faces.layout(self.composed.text, self.composed.codes, right_to_left=rtl, wrap=False, mono=mono)
        self.layout.beginLayout()
        self.line: QTextLine = self.layout.createLine()
        self.line.setLineWidth(table.width)  # aligns right-to-left lines; nothing is wrapped
        self.layout.endLayout()
        self._starts: list[float] = []
        self._width, self._leftwards = table.width, rtl
        self._reversed = rtl or is_right_to_left(self.composed.text)
        self._slot = _SLOT_PX * faces.scale
        soft_wrapped = not self.composed.newline and line + 1 < len(table)
        self.spans = self._cut(tokens, table, start, soft_wrapped=soft_wrapped, last=line + 1 >= len(table))
        self.end_x = self._tail(self.spans)

    def take_marks(self, marks: bytearray) -> None:
        """Takes other numbers of the tokens; the spans keep their places."""
        for span in self.spans:
            held = marks[span.first : span.last + 1]
            span.step, span.rare = max(mark & STEP for mark in held), any(mark & RARE for mark in held)

    def span_at(self, x: float) -> Span | None:
        """The span at x; of two overlapping ones the narrower."""
        if self._reversed:
            return min((s for s in self.spans if s.x0 <= x < s.x1), key=lambda s: s.x1 - s.x0, default=None)
        if not self._starts:
            self._starts = [s.x0 for s in self.spans]
        index = bisect_right(self._starts, x) - 1
        if index < 0:
            return None
        found, before = self.spans[index], self.spans[index - 1] if index else None
        if before is not None and before.x0 <= x < before.x1 and before.x1 - before.x0 < found.x1 - found.x0:
            return before
        return found if x < found.x1 else None

    def spans_of(self, token: int) -> list[Span]:
        """The spans of a token; several if the writing direction changes inside it."""
        return [s for s in self.spans if s.first <= token <= s.last]

    def place_at(self, x: float) -> TurnPlace:
        """The place between characters that is nearest to x."""
        return self.composed.place(self.line.xToCursor(x))

    def x_at(self, place: TurnPlace) -> float:
        """The x of a place between characters; the nearer end of the line if the place is on another line."""
        composed = self.composed
        for piece, token in enumerate(composed.tokens):
            if token == place.token:
                return float(x_of(self.line, composed.starts[piece] + max(place.offset - composed.offsets[piece], 0)))
        return 0.0 if composed.tokens and place.token < composed.tokens[0] else self.end_x

    def ranges(self, first: TurnPlace, last: TurnPlace) -> list[tuple[float, float]]:
        """Left and right x of each part of the text between two places."""
        found = []
        composed = self.composed
        for piece, token in enumerate(composed.tokens):
            start = composed.starts[piece]
            stop = composed.starts[piece + 1] if piece + 1 < len(composed.starts) else len_qchars(composed, self.line)
            if TurnPlace(token, composed.offsets[piece]) >= last or token < first.token:
                continue
            low = start + max(first.offset - composed.offsets[piece], 0) if token == first.token else start
            high = start + last.offset - composed.offsets[piece] if token == last.token else stop
            if min(high, stop) > low:
                found += [(x0, x1) for x0, x1, _, _ in self._parts_between(low, min(high, stop))]
        return found

    def _cut(self, tokens: Tokens, table: LineTable, start: TurnPlace, *, soft_wrapped: bool, last: bool) -> list[Span]:
        composed, marks = self.composed, tokens.marks
        length = len_qchars(composed, self.line)
        left, right = self._slot - _OVERHANG_PX, table.width + _OVERHANG_PX - self._slot  # spaces beyond share one slot
        if soft_wrapped and not self._reversed:
            right = self._text_end(length)
        spans: list[Span] = []
        newline: Span | None = None
        hung = False  # the last span is that slot
        for piece, (x0, x1, begin, stop) in self._extents(length):
            token, hangs = composed.tokens[piece], False
            if x0 < left or x1 > right or begin == stop:
                if x1 > right and soft_wrapped and x0 >= right - 0.01 and token == table.start(self._number + 1).token:
                    continue  # the space in front of a word that went to the next line
                x0, x1 = min(max(x0, left), right), min(max(x1, left), right)  # right-to-left paragraphs end at the left
                hangs = x0 == x1 and x0 in (left, right)
            mark = marks[token]
            span = Span(token, token, x0, x1, begin, stop, mark & STEP, mark & RARE > 0, mark & TEMPLATE > 0)
            if hung and hangs:
                _join(spans[-1], span)
            elif begin == stop:
                newline = span
            else:
                spans.append(span)
            hung = hangs
        if not composed.text.isascii():
            spans = _join_graphemes(spans, composed.text)
        _widen(spans, self._slot, leftwards=self._leftwards)
        if newline is not None:
            newline.x0 = newline.x1 = min(max(self._tail(spans), left), right)
            spans.append(newline)
        _take_fragments(spans, tokens, composed, template=table.template)
        if last and not composed.newline:
            held = composed.tokens
            first = held[-1] + 1 if held else _first_fragment(tokens, start.token, template=table.template)
            _add_fragments(spans, tokens, first, self._tail(spans), length, template=table.template)
        _widen(spans[-1:], self._slot, leftwards=self._leftwards)
        return spans

    def _tail(self, spans: list[Span]) -> float:
        """The x where more text would follow, in the direction of the paragraph."""
        if self._leftwards:
            return min((s.x0 for s in spans), default=self._width)
        return max((s.x1 for s in spans), default=0.0)

    def _extents(self, length: int) -> Iterator[tuple[int, tuple[float, float, int, int]]]:
        """For each piece its parts (several if the direction changes): left, right, first and last QChar."""
        starts = self.composed.starts
        ends = [*starts[1:], length]
        if self._reversed:
            for piece, (begin, stop) in enumerate(zip(starts, ends, strict=False)):
                for part in stretches(self.layout, self.line, begin, stop):
                    yield piece, part
            return
        xs = [x_of(self.line, position) for position in (*starts, length)]
        for piece, begin in enumerate(starts):
            yield piece, (xs[piece], xs[piece + 1], begin, ends[piece])

    def _parts_between(self, begin: int, stop: int) -> list[tuple[float, float, int, int]]:
        if self._reversed:
            return stretches(self.layout, self.line, begin, stop)
        return [(x_of(self.line, begin), x_of(self.line, stop), begin, stop)]

    def _text_end(self, length: int) -> float:
        """The x where the text ends without trailing spaces and tabs, which are not drawn on a wrapped line."""
        text = self.composed.text
        return x_of(self.line, length - len(text) + len(text.rstrip(" \t")))


def stretches(layout: QTextLayout, line: QTextLine, begin: int, stop: int) -> list[tuple[float, float, int, int]]:
    """The contiguous parts of a range of QChars on its line: left, right, first and last QChar of each."""
    if begin == stop:
        return [(x_of(line, begin), x_of(line, begin), begin, stop)]
    parts: list[tuple[float, float, int, int]] = []
    for position in range(begin, stop):
        if position > begin and not layout.isValidCursorPosition(position):
            continue  # inside a character, where Qt knows no edges
        x0, x1 = sorted((x_of(line, position), x_of(line, position, QTextLine.Edge.Trailing)))
        if parts:
            left, right, first, _ = parts[-1]
            if x0 <= right + _TOUCHING_PX and x1 >= left - _TOUCHING_PX:
                parts[-1] = (min(left, x0), max(right, x1), first, position + 1)
                continue
        parts.append((x0, x1, position, position + 1))
    return parts


def len_qchars(composed: Composed, line: QTextLine) -> int:
    """The number of QChars of the line's text."""
    return line.textLength() if composed.text else 0


def _join_graphemes(spans: list[Span], text: str) -> list[Span]:
    """Joins spans whose border is inside a grapheme cluster."""
    finder = QTextBoundaryFinder(QTextBoundaryFinder.BoundaryType.Grapheme, text)
    joined: list[Span] = []
    for span in spans:
        finder.setPosition(span.start)
        if joined and span.start < span.stop and not finder.isAtBoundary():
            _join(joined[-1], span)
        else:
            joined.append(span)
    return joined


def _join(held: Span, span: Span) -> None:
    """Extends `held` by `span`, which follows it."""
    held.last, held.stop = span.last, span.stop
    held.step, held.rare = max(held.step, span.step), held.rare or span.rare
    if span.x0 < span.x1:  # a span without width keeps its neighbour's place, as Qt's is arbitrary in mixed directions
        held.x0, held.x1 = min(held.x0, span.x0), max(held.x1, span.x1)


def _widen(spans: list[Span], slot: float, *, leftwards: bool) -> None:
    """Gives spans without width one that can be seen and pointed at, to the left in `leftwards` text."""
    for span in spans:
        if span.x1 - span.x0 < _THIN_PX:
            width = slot if span.start == span.stop or span.last > span.first else _THIN_PX
            span.x0, span.x1 = (span.x1 - width, span.x1) if leftwards else (span.x0, span.x0 + width)


def _take_fragments(spans: list[Span], tokens: Tokens, composed: Composed, *, template: bool) -> None:
    """Extends spans by the tokens before them that have the first bytes of their characters."""
    begun = composed.offsets[0] if composed.offsets else 0
    hung = begun and not shown(tokens.texts[composed.tokens[0]]).text[:begun].strip(" ")  # on the previous line, not drawn
    for number, span in enumerate(spans):
        if number or not begun or hung:
            first = _first_fragment(tokens, span.first, template=template)
            for token in range(first, span.first):
                span.step = max(span.step, tokens.marks[token] & STEP)
                span.rare = span.rare or bool(tokens.marks[token] & RARE)
            span.first = first


def _first_fragment(tokens: Tokens, token: int, *, template: bool) -> int:
    """The first token with bytes of the character that `token` completes."""
    first = token
    while first and not tokens.texts[first - 1] and not is_hidden(tokens.marks[first - 1], template=template):
        first -= 1
    return first


def _add_fragments(spans: list[Span], tokens: Tokens, first: int, x: float, at: int, *, template: bool) -> None:
    """Adds a slot for bytes at the end of the text that no token has completed (yet)."""
    loose = [t for t in range(first, len(tokens)) if not tokens.texts[t] and not is_hidden(tokens.marks[t], template=template)]
    if loose:
        step = max(tokens.marks[t] & STEP for t in loose)
        spans.append(Span(loose[0], loose[-1], x, x, at, at, step, rare=False, template=False))
