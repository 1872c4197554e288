"""The text of one turn in Tokens mode: wrapped lines, spans, and places of tokens."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from PySide6.QtCore import QLineF, QPointF, QRect, QRectF, Qt
from PySide6.QtGui import QPainter, QRegion

from ui.transcript.path import TranscriptTurn
from ui.transcript.text.compose import TurnPlace
from ui.transcript.text.faces import CHARACTERS_PER_TOKEN, Faces
from ui.transcript.text.ink import Ink
from ui.transcript.text.shape import ShapedLine, Span
from ui.transcript.text.wrap import LineTable

_CACHED_LINES = 120  # shaped lines per turn; a tall screen shows about 60
_HIT_LINE_PX = 2
_PADDING = 1.5  # above and below the glyphs


class TokensBody:
    """The lines of one turn. While it is wrapped to a new width, the old lines are shown."""

    def __init__(self, turn: TranscriptTurn, faces: Faces, width: float, *, template: bool) -> None:
        self._turn = turn
        self._tokens = turn.tokens
        self._faces = faces
        self._template = template
        self._table = self._fresh(width)
        self._next: LineTable | None = None
        self._shaped: dict[int, ShapedLine] = {}
        self.selection: tuple[TurnPlace, TurnPlace] | None = None
        self.hits: Sequence[tuple[TurnPlace, TurnPlace]] = ()  # matches of a search, in order

    @property
    def height(self) -> int:
        """Pixels; estimated for the unwrapped part. 0 if the turn has no visible text."""
        return 0 if self._turn.is_bare(template=self._template) else self._lines() * self._faces.pitch

    @property
    def done(self) -> bool:
        """Whether everything is wrapped to the current width."""
        return self._next is None and self._table.done and self._tokens is self._turn.tokens

    def set_width(self, width: float) -> None:
        """Sets another width; call `prepare` to wrap."""
        if self._table.is_untouched:
            self._start_again(width)
        elif (self._next or self._table).width != width:
            self._next = self._fresh(width)

    def set_faces(self, faces: Faces, width: float) -> None:
        self._faces = faces
        self._start_again(width)

    def set_template_visible(self, visible: bool) -> None:
        if visible != self._template:
            self._template = visible
            self._start_again(self._table.width)

    def prepare(self, deadline: float | None) -> int | None:
        """Wraps until the deadline.

        Returns:
            The first pixel row that may look different; None if nothing changed.
        """
        if self._tokens is not self._turn.tokens:
            self._tokens = self._turn.tokens
            self._start_again((self._next or self._table).width)
            self._table.extend(deadline)
            return 0
        if self._next is not None:
            self._next.extend(deadline)
            if not self._next.done:
                return None
            self._table, self._next = self._next, None
            self._shaped.clear()
            return 0
        if self._table.done:
            return None
        line = self._table.extend(deadline)
        if line and not self._tokens.texts[self._table.start(line).token - 1]:
            line -= 1  # its last bytes move to the next line if their character is completed there
        for held in [k for k in self._shaped if k >= line]:
            del self._shaped[held]
        return line * self._faces.pitch

    def refresh(self) -> None:
        """Takes the tokens' other numbers."""
        for shaped in self._shaped.values():
            shaped.take_marks(self._tokens.marks)

    # ---- places ---------------------------------------------------------------------------------------------------

    def line_at(self, y: float) -> int:
        """The line at y; the first or last one beyond the text."""
        return min(max(int(y // self._faces.pitch), 0), max(len(self._table) - 1, 0))

    def token_at(self, x: float, y: float) -> int | None:
        """The token at a point; None beside the text."""
        if not 0 <= y < len(self._table) * self._faces.pitch:
            return None
        span = self.shaped(self.line_at(y)).span_at(x)
        return None if span is None else span.token_at(x)

    def place_at(self, x: float, y: float) -> TurnPlace:
        """The place between characters nearest to a point; before the first or after the last line, the ends."""
        if y < 0:
            return TurnPlace(0)
        if y >= len(self._table) * self._faces.pitch:
            return TurnPlace(len(self._tokens))
        return self.shaped(self.line_at(y)).place_at(x)

    def top_of(self, token: int) -> int:
        """The y of the line where a token begins."""
        return self._table.line_of(TurnPlace(token, 1)) * self._faces.pitch  # a leading space may hang on the line before

    def first_token(self, y: float) -> int:
        """The first token of the line at y."""
        return self._table.start(self.line_at(y)).token

    def rects_of(self, token: int) -> list[QRectF]:
        """The rectangles of a token's spans."""
        rects: list[QRectF] = []
        line = self._table.line_of(TurnPlace(token))
        for candidate in range(line, min(line + 3, len(self._table))):
            spans = self.shaped(candidate).spans_of(token)
            if rects and not spans:
                break
            rects += [self._rect(span, candidate * self._faces.pitch) for span in spans]
        return rects

    def before(self, token: int) -> QPointF:
        """Left and top of the caret before a token's first visible character."""
        text = self._tokens.texts[token]
        place = TurnPlace(token, len(text) - len(text.lstrip(" ")) if text.strip(" ") else 0)
        line = self._table.line_of(TurnPlace(token, 1))  # a leading space may hang on the line before
        return QPointF(self.shaped(line).x_at(place), line * self._faces.pitch + self._faces.lead)

    def end_of_text(self) -> QPointF:
        """Left and top of the caret of a stream."""
        line = max(len(self._table) - 1, 0)
        x = self.shaped(line).end_x if len(self._tokens) else 0.0
        return QPointF(x, line * self._faces.pitch + self._faces.lead)

    def shaped(self, line: int) -> ShapedLine:
        """The line with its glyphs, cached."""
        found = self._shaped.get(line)
        if found is None:
            if len(self._shaped) >= _CACHED_LINES:
                for old in list(self._shaped)[: _CACHED_LINES // 2]:
                    del self._shaped[old]
            found = self._shaped[line] = ShapedLine(self._tokens, self._table, line, self._faces)
        return found

    # ---- painting -------------------------------------------------------------------------------------------------

    def paint(self, painter: QPainter, ink: Ink, clip: tuple[float, float]) -> None:
        """Draws the lines between the y of `clip`; the painter's origin is the text's top left."""
        pitch = self._faces.pitch
        last = min(int(clip[1] // pitch) + 1, len(self._table))
        rare: list[QLineF] = []
        for line in range(max(int(clip[0] // pitch), 0), last):
            shaped = self.shaped(line)
            self._paint_line(painter, ink, shaped, line * pitch)
            y = round(line * pitch + self._faces.lead + self._faces.ascent) + 3.5
            rare += [QLineF(span.x0 + 1.5, y, span.x1 - 1.5, y) for span in shaped.spans if span.rare]
        if rare:
            painter.setPen(ink.rare if self._turn.is_answer else ink.own_rare)
            painter.drawLines(rare)

    def _paint_line(self, painter: QPainter, ink: Ink, shaped: ShapedLine, top: float) -> None:
        padding = round(self._faces.lead - _PADDING)  # whole pixels: crisp edges, and as much above as below
        y, height = top + padding, self._faces.pitch - 2 * padding
        ratio = painter.device().devicePixelRatio()
        stamps = ink.stamps if self._turn.is_answer else ink.own_stamps
        stamps.draw(painter, ((span.x0, span.x1, span.step) for span in shaped.spans if span.step), y, height, ratio)
        hits = QRegion()
        for first, last in self._hits_on(shaped):
            for left, right in shaped.ranges(first, last):
                ground = QRect(round(left), round(top) + 1, round(right) - round(left), round(self._faces.pitch) - 2)
                painter.fillRect(ground, ink.hit)
                painter.fillRect(ground.adjusted(0, ground.height() - _HIT_LINE_PX, 0, 0), ink.accent)
                hits += ground
        if self.selection is not None:
            for left, right in shaped.ranges(*self.selection):
                painter.fillRect(QRectF(left, top + 1, right - left, self._faces.pitch - 2), ink.selection)
        baseline = top + self._faces.lead + self._faces.ascent
        self._paint_glyphs(painter, ink, shaped, top, baseline, hits)

    def _hits_on(self, shaped: ShapedLine) -> Sequence[tuple[TurnPlace, TurnPlace]]:
        """The matches that touch a line."""
        held = shaped.composed.tokens
        if not self.hits or not held:
            return ()
        first = bisect_left(self.hits, held[0], key=lambda hit: hit[1].token)
        return self.hits[first : bisect_right(self.hits, held[-1], key=lambda hit: hit[0].token)]

    def _paint_glyphs(
        self, painter: QPainter, ink: Ink, shaped: ShapedLine, top: float, baseline: float, hits: QRegion
    ) -> None:
        """Draws the glyphs once per colour, clipped (of two adjacent format ranges Qt would colour only one)."""
        pitch, strongest = self._faces.pitch, ink.strongest if self._turn.is_answer or ink.own == 1 else None
        rest = QRegion(-2 * pitch, int(top) - pitch, int(self._table.width) + 4 * pitch, 3 * pitch)
        on_strongest, template = QRegion(), QRegion()
        for span in shaped.spans:
            if span.step == strongest or span.template:
                left, right = round(span.x0), round(span.x1)
                part = QRegion(left, int(top) - pitch, right - left, 3 * pitch)
                if span.step == strongest:
                    on_strongest += part
                else:
                    template += part
        on_strongest -= hits  # matches have their own ground
        at = QPointF(0, baseline - shaped.line.ascent())
        if on_strongest.isEmpty() and template.isEmpty():
            painter.setPen(ink.text)
            shaped.layout.draw(painter, at)
            return
        for region, colour in (
            (rest - on_strongest - template, ink.text),
            (on_strongest, ink.on_strongest),
            (template, ink.template),
        ):
            if not region.isEmpty():
                painter.save()
                painter.setClipRegion(region, Qt.ClipOperation.IntersectClip)
                painter.setPen(colour)
                shaped.layout.draw(painter, at)
                painter.restore()

    def _rect(self, span: Span, top: float) -> QRectF:
        padding = round(self._faces.lead - _PADDING)  # whole pixels: crisp edges, and as much above as below
        return QRectF(span.x0, top + padding, span.x1 - span.x0, self._faces.pitch - 2 * padding)

    def _lines(self) -> int:
        lines = len(self._table)
        if self._table.done or self._next is not None:
            return max(lines, 1)
        per_line = max(self._table.width / (self._faces.average * CHARACTERS_PER_TOKEN), 1)
        return lines + int(self._table.remaining / per_line)

    def _start_again(self, width: float) -> None:
        self._table, self._next = self._fresh(width), None
        self._shaped.clear()

    def _fresh(self, width: float) -> LineTable:
        return LineTable(self._tokens, self._faces, width, template=self._template)
