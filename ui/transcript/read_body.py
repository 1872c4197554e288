"""The text of one turn in Read mode: typeset stretches of markdown, built when they are needed."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from time import perf_counter

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import (
    QAbstractTextDocumentLayout,
    QColor,
    QPainter,
    QPalette,
    QPen,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
)

from ui.port import TurnStatus
from ui.theme.palette import LIGHT, Palette
from ui.transcript.document import code_document, markdown_document, plain_document
from ui.transcript.faces import Faces, x_of
from ui.transcript.ink import Ink
from ui.transcript.source import Source
from ui.transcript.turn import Turn

_KEPT_DOCUMENTS = 80
_GAP_PX = 12  # between stretches
_GAP_AFTER_HEADING_PX = 6
_GAP_BEFORE_HEADING_PX = 18
_CODE_PAD_PX = 12
_CODE_RADIUS = 6.0
_CARET_PX = 2


@dataclass(frozen=True, slots=True, order=True)
class ReadPlace:
    """A place in a turn: a character of a stretch's document."""

    stretch: int
    position: int


@dataclass(slots=True)
class _Laid:
    height: int | None = None
    shift: float = 0.0  # moves the first baseline to where Tokens mode has it
    document: QTextDocument | None = field(default=None, repr=False)


class ReadBody:
    """Stretches one under the other. Only the last one is rendered again while tokens arrive."""

    def __init__(self, turn: Turn, faces: Faces, width: float) -> None:
        self._turn = turn
        self._faces = faces
        self._width = width
        self._palette: Palette = LIGHT
        self._source = Source(turn)
        self._laid: list[_Laid] = []  # one for each stretch
        self._held_tops: list[int] = []  # of `_tops`; empty when a height changed
        self.selection: tuple[ReadPlace, ReadPlace] | None = None

    @property
    def height(self) -> int:
        """Pixels; estimated for stretches that were not rendered yet. Nothing where there is only the line under it."""
        if self._turn.is_bare(template=False):
            return 0
        if not self._laid:
            return self._faces.pitch if self._source.is_read else self._estimate(len(self._turn.tokens) * 4)
        return self._tops()[-1] - self._gap(len(self._laid) - 1)

    @property
    def done(self) -> bool:
        """Whether every stretch was rendered once."""
        return self._source.is_current and all(laid.height is not None for laid in self._laid)

    def set_width(self, width: float) -> None:
        """Another width from now on; call `prepare`."""
        if width != self._width:
            self._width = width
            self._forget(0)

    def set_faces(self, faces: Faces, width: float) -> None:
        """Other measures."""
        self._faces, self._width = faces, width
        self._forget(0)

    def set_template_visible(self, visible: bool) -> None:
        """Read mode never shows the template."""

    def refresh(self) -> None:
        """The turn's state changed; its text is compared when it is prepared."""

    def prepare(self, deadline: float | None) -> int | None:
        """Renders until the deadline; the first row that changed, or None."""
        self._read()
        missing = [number for number, laid in enumerate(self._laid) if laid.height is None]
        row = self._tops()[missing[0]] if missing else None
        for number in missing:
            self._document(number)
            if deadline is not None and perf_counter() > deadline:
                break
        return row

    # ---- places ---------------------------------------------------------------------------------------------------

    def top_of(self, token: int) -> int:
        """The height of the line where a token stands: the token's share of its stretch, looked up in the typeset text."""
        self._read()
        if not self._laid:
            return 0
        at = self._source.character_of(token)
        number = max(bisect_right([s.start for s in self._source.stretches], at) - 1, 0)
        document, stretch = self._document(number), self._source.stretches[number]
        share = min((at - stretch.start) / max(stretch.stop - stretch.start, 1), 1)
        position = int(share * (document.characterCount() - 1))
        block = document.findBlock(position)
        line = block.layout().lineForTextPosition(position - block.position())
        y = document.documentLayout().blockBoundingRect(block).top() + (line.y() if line.isValid() else 0)
        return self._tops()[number] + int(self._inset(number) + self._laid[number].shift + y)

    def first_token(self, y: float) -> int:
        """The first token of the line at a height."""
        self._read()
        if not self._laid:
            return 0
        number, point = self._inside(0, y)
        document, stretch = self._document(number), self._source.stretches[number]
        position = document.documentLayout().hitTest(point, Qt.HitTestAccuracy.FuzzyHit)
        share = max(position, 0) / max(document.characterCount() - 1, 1)
        return self._source.token_of(stretch.start + share * (stretch.stop - stretch.start))

    def nearest(self, token: int, words: str) -> tuple[ReadPlace, ReadPlace] | None:
        """Where words stand in the typeset text, as near to a token as may be; None where markup stands between them."""
        self._read()
        if not self._laid:
            return None
        at = self._source.character_of(token)
        number = max(bisect_right([s.start for s in self._source.stretches], at) - 1, 0)
        document, stretch = self._document(number), self._source.stretches[number]
        wanted = (at - stretch.start) / max(stretch.stop - stretch.start, 1) * document.characterCount()
        cursor, best = document.find(words, 0), None
        while not cursor.isNull():
            if best is None or abs(cursor.selectionStart() - wanted) < abs(best[0] - wanted):
                best = cursor.selectionStart(), cursor.selectionEnd()
            cursor = document.find(words, cursor)
        return None if best is None else (ReadPlace(number, best[0]), ReadPlace(number, best[1]))

    def place_at(self, x: float, y: float) -> ReadPlace:
        """The place between characters nearest to a point."""
        if not self._laid:
            return ReadPlace(0, 0)
        number, point = self._inside(x, y)
        hit = self._document(number).documentLayout().hitTest(point, Qt.HitTestAccuracy.FuzzyHit)
        return ReadPlace(number, max(hit, 0))

    def end(self) -> ReadPlace:
        """The place behind the last character."""
        last = len(self._laid) - 1
        return ReadPlace(0, 0) if last < 0 else ReadPlace(last, self._document(last).characterCount() - 1)

    def link_at(self, x: float, y: float) -> str:
        """The target of the link under a point; empty where there is none."""
        if not self._laid or not 0 <= y < self.height:
            return ""
        number, point = self._inside(x, y)
        return self._document(number).documentLayout().anchorAt(point)

    def code_at(self, y: float) -> tuple[int, QRectF] | None:
        """The stretch of code at a height and its box; None where there is none."""
        if not self._laid or not 0 <= y < self.height:
            return None
        number = self._number_at(y)
        return (number, self._box(number)) if self._is_code(number) else None

    def top_of_stretch(self, number: int) -> int:
        """Where a stretch begins."""
        return self._tops()[number]

    def code(self, number: int) -> str:
        """What a stretch of code holds."""
        return self._source.stretches[number].code or ""

    def text_between(self, first: ReadPlace, last: ReadPlace) -> str:
        """The text as it is read, between two places."""
        parts = []
        for number in range(first.stretch, min(last.stretch + 1, len(self._laid))):
            cursor = self._cursor(number, first, last)
            parts.append(cursor.selectedText().replace("\u2029", "\n").replace("\u2028", "\n"))
        return ("\n" if self._source.is_typed else "\n\n").join(parts)

    # ---- painting -------------------------------------------------------------------------------------------------

    def paint(self, painter: QPainter, ink: Ink, clip: tuple[float, float]) -> None:
        """Draws the stretches that meet the heights `clip`; the painter's origin is the text's top left."""
        if ink.palette is not self._palette:
            self._palette = ink.palette
            for laid in self._laid:
                laid.document = None
        tops = self._tops()
        for number, top in enumerate(tops[:-1]):
            if top < clip[1] and tops[number + 1] > clip[0]:
                self._paint_stretch(painter, ink, number, top)
        if self._turn.view.status is TurnStatus.STREAMING:
            self._paint_caret(painter, ink, tops)

    def _paint_stretch(self, painter: QPainter, ink: Ink, number: int, top: int) -> None:
        document = self._document(number)
        inset = self._inset(number)
        if self._is_code(number):
            painter.setPen(QPen(ink.hairline, 1))
            painter.setBrush(QColor(ink.palette.code))
            painter.drawRoundedRect(self._box(number).adjusted(0.5, 0.5, -0.5, -0.5), _CODE_RADIUS, _CODE_RADIUS)
        context = QAbstractTextDocumentLayout.PaintContext()
        context.palette.setColor(QPalette.ColorRole.Text, ink.text)
        if self.selection is not None and self.selection[0].stretch <= number <= self.selection[1].stretch:
            chosen = QAbstractTextDocumentLayout.Selection()
            chosen.cursor = self._cursor(number, *self.selection)
            chosen.format = QTextCharFormat()
            chosen.format.setBackground(ink.selection)
            context.selections = [chosen]
        painter.save()
        painter.translate(inset, top + inset + self._laid[number].shift)
        document.documentLayout().draw(painter, context)
        painter.restore()

    def _paint_caret(self, painter: QPainter, ink: Ink, tops: list[int]) -> None:
        if not self._laid:
            painter.fillRect(QRectF(0, self._faces.lead, _CARET_PX, self._faces.glyphs), ink.accent)
            return
        number = len(self._laid) - 1
        block = self._document(number).lastBlock()
        layout, inset = block.layout(), self._inset(number)
        if not layout.lineCount():
            return
        line = layout.lineAt(layout.lineCount() - 1)
        origin = self._document(number).documentLayout().blockBoundingRect(block).topLeft()
        x = origin.x() + line.x() + x_of(line, line.textStart() + line.textLength()) + inset + 2
        bottom = tops[number] + inset + self._laid[number].shift + origin.y() + line.y() + line.height()
        painter.fillRect(QRectF(x, bottom - self._faces.glyphs - 2, _CARET_PX, self._faces.glyphs), ink.accent)

    # ---- layout ---------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        changed = self._source.read()
        if changed is not None:
            self._laid[changed:] = [_Laid() for _ in self._source.stretches[changed:]]
            self._held_tops = []

    def _forget(self, first: int) -> None:
        self._laid[first:] = [_Laid() for _ in self._laid[first:]]
        self._held_tops = []

    def _document(self, number: int) -> QTextDocument:
        laid = self._laid[number]
        if laid.document is None:
            self._make_room()
            laid.document = self._typeset(number)
            height = max(round(laid.document.size().height()) + 2 * self._inset(number), 1)
            if height != laid.height:
                laid.height, self._held_tops = height, []
            laid.shift = self._shift(number, laid.document)
        return laid.document

    def _typeset(self, number: int) -> QTextDocument:
        code, markdown = self._source.stretches[number].code, self._source.markdown(number)
        if code is not None:
            return code_document(code, self._faces, self._width - 2 * _CODE_PAD_PX)
        if markdown is not None:
            return markdown_document(markdown, self._faces, self._palette, self._width)
        return plain_document(self._source.plain(number).removesuffix("\n"), self._faces, self._width)

    def _shift(self, number: int, document: QTextDocument) -> float:
        layout = document.firstBlock().layout()
        if self._is_code(number) or self._source.is_heading(number) or not layout.lineCount():
            return 0.0
        return self._faces.lead + self._faces.ascent - layout.lineAt(0).y() - layout.lineAt(0).ascent()

    def _make_room(self) -> None:
        held = [laid for laid in self._laid if laid.document is not None]
        if len(held) >= _KEPT_DOCUMENTS:
            for laid in held[: _KEPT_DOCUMENTS // 2]:
                laid.document = None

    def _tops(self) -> list[int]:
        """Where each stretch begins, and where one more would; headings stand nearer to what they head."""
        if self._held_tops:
            return self._held_tops
        tops = [0]
        for number, laid in enumerate(self._laid):
            stretch = self._source.stretches[number]
            height = laid.height if laid.height is not None else self._estimate(stretch.stop - stretch.start)
            tops.append(tops[-1] + height + self._gap(number))
        self._held_tops = tops
        return tops

    def _gap(self, number: int) -> int:
        """Below a stretch."""
        if self._source.is_typed:
            return 0
        if self._source.is_heading(number):
            return _GAP_AFTER_HEADING_PX
        last = number + 1 == len(self._laid)
        return _GAP_PX if last or not self._source.is_heading(number + 1) else _GAP_BEFORE_HEADING_PX

    def _estimate(self, characters: int) -> int:
        per_line = max(self._width / self._faces.average, 1)
        return (int(characters / per_line) + 1) * self._faces.pitch

    def _is_code(self, number: int) -> bool:
        return self._source.stretches[number].code is not None

    def _number_at(self, y: float) -> int:
        return min(max(bisect_right(self._tops(), y) - 1, 0), len(self._laid) - 1)

    def _inset(self, number: int) -> int:
        return _CODE_PAD_PX if self._is_code(number) else 0

    def _box(self, number: int) -> QRectF:
        tops = self._tops()
        return QRectF(0, tops[number], self._width, tops[number + 1] - tops[number] - self._gap(number))

    def _inside(self, x: float, y: float) -> tuple[int, QPointF]:
        """The stretch at a height, and the point in its document's coordinates."""
        number = self._number_at(y)
        self._document(number)
        inset = self._inset(number)
        return number, QPointF(x - inset, y - self._tops()[number] - inset - self._laid[number].shift)

    def _cursor(self, number: int, first: ReadPlace, last: ReadPlace) -> QTextCursor:
        document = self._document(number)
        end = document.characterCount() - 1
        cursor = QTextCursor(document)
        cursor.setPosition(min(first.position, end) if number == first.stretch else 0)
        stop = min(last.position, end) if number == last.stretch else end
        cursor.setPosition(stop, QTextCursor.MoveMode.KeepAnchor)
        return cursor
