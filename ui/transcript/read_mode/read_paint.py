"""Painting one turn of Read mode: stretches, code, selection, the caret of a stream."""

from __future__ import annotations

from collections.abc import Iterator

from PySide6.QtCore import QPointF, QRectF, QRegularExpression, Qt
from PySide6.QtGui import QAbstractTextDocumentLayout, QColor, QPainter, QPalette, QPen, QTextCharFormat, QTextDocument

from ui.transcript.read_mode.read_layout import ReadLayout, ReadPlace
from ui.transcript.text.faces import x_of
from ui.transcript.text.ink import Ink

_CODE_RADIUS = 6.0
_CARET_PX = 2
_BAR_PX = 4.0


def paint_stretches(
    painter: QPainter,
    ink: Ink,
    layout: ReadLayout,
    clip: tuple[float, float],
    selection: tuple[ReadPlace, ReadPlace] | None,
    words: QRegularExpression | None,
) -> None:
    """Draws the stretches between the y of `clip`; the painter's origin is the text's top left.

    Args:
        painter: Of the viewport.
        ink: Colours.
        layout: The stretches.
        clip: First and last y.
        selection: First and last place of the selection.
        words: All matches are marked.
    """
    tops = layout.tops()
    for number, top in enumerate(tops[:-1]):
        if top >= clip[1] or tops[number + 1] <= clip[0]:
            continue
        document = layout.document(number)
        layout.ask_for_formulas(number)
        if layout.is_code(number):
            painter.setPen(QPen(ink.hairline, 1))
            painter.setBrush(QColor(ink.palette.code))
            painter.drawRoundedRect(layout.box(number).adjusted(0.5, 0.5, -0.5, -0.5), _CODE_RADIUS, _CODE_RADIUS)
        context = QAbstractTextDocumentLayout.PaintContext()
        context.palette.setColor(QPalette.ColorRole.Text, ink.text)
        context.selections = list(_hits(document, words, ink)) if words is not None else []
        if selection is not None and selection[0].stretch <= number <= selection[1].stretch:
            chosen = QAbstractTextDocumentLayout.Selection()
            chosen.cursor = layout.cursor(number, *selection)
            chosen.format = QTextCharFormat()
            chosen.format.setBackground(ink.selection)
            context.selections = [*context.selections, chosen]
        painter.save()
        if layout.is_code(number):
            _paint_head_and_foot(painter, ink, layout, number)
            painter.setClipRect(layout.box(number).adjusted(1, 0, -1, 0), Qt.ClipOperation.IntersectClip)
        origin = layout.origin(number)
        painter.translate(origin)
        context.clip = QRectF(0, clip[0] - origin.y(), document.idealWidth() + layout.box(number).width(), clip[1] - clip[0])
        document.documentLayout().draw(painter, context)
        painter.restore()


def _paint_head_and_foot(painter: QPainter, ink: Ink, layout: ReadLayout, number: int) -> None:
    """Paints the language of a code, and a scroll indicator if it is wider than the column."""
    painter.setFont(layout.faces.meta)
    painter.setPen(ink.soft)
    head = layout.head(number)
    painter.drawText(head, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter, layout.language(number))
    at, most = layout.hidden(number)
    if most > 0:
        shown = head.width() / (head.width() + most)
        left = head.left() + at / (head.width() + most) * head.width()
        bar = QRectF(left, layout.box(number).bottom() - _BAR_PX - 4, head.width() * shown, _BAR_PX)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(ink.faint)
        painter.drawRoundedRect(bar, _BAR_PX / 2, _BAR_PX / 2)


def _hits(document: QTextDocument, words: QRegularExpression, ink: Ink) -> Iterator[QAbstractTextDocumentLayout.Selection]:
    cursor = document.find(words, 0)
    while not cursor.isNull():
        hit = QAbstractTextDocumentLayout.Selection()
        hit.cursor, hit.format = cursor, QTextCharFormat()
        hit.format.setBackground(ink.hit)
        hit.format.setForeground(ink.text)
        hit.format.setFontUnderline(True)
        hit.format.setUnderlineColor(ink.accent)
        yield hit
        cursor = document.find(words, cursor)


def paint_caret(painter: QPainter, ink: Ink, layout: ReadLayout) -> None:
    """Draws the caret after the last character."""
    faces = layout.faces
    if not len(layout):
        painter.fillRect(QRectF(0, faces.lead, _CARET_PX, faces.glyphs), ink.accent)
        return
    number = len(layout) - 1
    document = layout.document(number)
    block = document.lastBlock()
    lines = block.layout()
    if not lines.lineCount():
        return
    line = lines.lineAt(lines.lineCount() - 1)
    at = layout.origin(number) + document.documentLayout().blockBoundingRect(block).topLeft() + QPointF(line.x(), line.y())
    x = at.x() + x_of(line, line.textStart() + line.textLength()) + 2
    bottom = at.y() + line.height()
    painter.fillRect(QRectF(x, bottom - faces.glyphs - 2, _CARET_PX, faces.glyphs), ink.accent)
