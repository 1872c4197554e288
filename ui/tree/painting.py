"""Painting a row of the full-window tree: dot, coloured text, numbers."""

from __future__ import annotations

import re

from PySide6.QtCore import QObject, QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetrics,
    QPainter,
    QPen,
    QPolygonF,
    QTextCharFormat,
    QTextLayout,
    QTextLine,
    QTextOption,
)
from PySide6.QtWidgets import QStyle, QStyledItemDelegate, QStyleOptionViewItem

from ui.port import TreeRow
from ui.theme.fonts import interface_font, scaled, text_scale
from ui.theme.palette import Palette
from ui.theme.scheme import current_theme
from ui.transcript.text.faces import format_range, x_of
from ui.tree.rows import Index, TreeRows, ways_of
from ui.widgets.numbers import signed
from ui.widgets.visible import one_line, utf16_length

ROW_HEIGHT = 32
INDENT = 22
DEEPEST_INDENT = 12  # deeper levels are drawn at this one, so that a row keeps room for its words
INDENT_SHARE = 0.3  # of a row's width, at most, for the indent
EDGE, FOLD, DOT, GAP = 10, 16, 8, 10
NUMBERS, MARKS = 58, 66  # widths of the columns at the right
LEAST_WORDS = 220  # pixels of text; the numbers are hidden if less would remain
TEXT_PX = 14.0
LEAST_LETTER = 2  # pixels of the narrowest letter
_JOINED = re.compile("[\u200d\ufe0f\U0001f3fb-\U0001f3ff]")  # in emoji of several characters, which have one colour each


class RowDelegate(QStyledItemDelegate):
    """Paints the rows of `rows`."""

    def __init__(self, rows: TreeRows, parent: QObject) -> None:
        super().__init__(parent)
        self._rows = rows
        self._theme = current_theme()
        self._theme.scaled.connect(self.take_fonts)
        self.marks: dict[tuple[int, int], str] = {}  # letters, by row key, of the rows to compare
        self.take_fonts()

    def take_fonts(self) -> None:
        self._plain, self._named = interface_font(TEXT_PX), interface_font(TEXT_PX, QFont.Weight.DemiBold)
        self._small = interface_font(11.5)

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:  # noqa: ARG002  # the signature is Qt's
        return QSize(0, scaled(ROW_HEIGHT))

    def fold_place(self, row: TreeRow, rect: QRect) -> QRect:
        """The rectangle of a row's fold marker."""
        most = min(DEEPEST_INDENT, int(rect.width() * INDENT_SHARE / scaled(INDENT)))
        left = rect.left() + scaled(EDGE) + scaled(INDENT) * min(self._rows.depth(row), most)
        return QRect(left, rect.top(), scaled(FOLD), rect.height())

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        row = self._rows.row_at(index)
        if row is None:
            return
        palette, rect = self._theme.palette, QRect(option.rect)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setLayoutDirection(Qt.LayoutDirection.LeftToRight)  # drawn by position: tokens and numbers
        self._paint_ground(painter, rect, option.state, palette)
        fold = self.fold_place(row, rect)
        if self._rows.is_parent(row):
            _paint_fold(painter, fold, QColor(palette.soft), is_open=self._rows.is_open(row))
        self._paint_dot(painter, fold, row, palette)
        words = rect.adjusted(0, 0, -scaled(EDGE), 0)
        words.setLeft(fold.right() + scaled(DOT + GAP))
        if words.width() > scaled(LEAST_WORDS + NUMBERS + MARKS):
            self._paint_numbers(painter, words, row, palette)
            words.setRight(words.right() - scaled(NUMBERS + MARKS))
        self._paint_words(painter, words, row, palette)
        painter.restore()

    def _paint_ground(self, painter: QPainter, rect: QRect, state: QStyle.StateFlag, palette: Palette) -> None:
        ground = QRectF(rect).adjusted(0.5, 0.5, -0.5, -0.5)
        chosen = bool(state & QStyle.StateFlag.State_Selected)
        if chosen or state & QStyle.StateFlag.State_MouseOver:
            colour = QColor(palette.selection)
            colour.setAlphaF(1.0 if chosen else 0.5)
            painter.setBrush(colour)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.drawRoundedRect(ground, 6, 6)
        if state & QStyle.StateFlag.State_HasFocus:
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(QColor(palette.accent), 1))
            painter.drawRoundedRect(ground, 6, 6)

    def _paint_dot(self, painter: QPainter, fold: QRect, row: TreeRow, palette: Palette) -> None:
        """Paints a ring where a branch begins, else a point; filled on the shown path."""
        begins = self._rows.begins(row)
        across, pen = scaled(DOT if begins else DOT // 2), 1.5 * text_scale()
        middle = QPointF(fold.right() + scaled(DOT) / 2, fold.center().y() + 0.5)
        accent = QColor(palette.faint if row.pruned else palette.accent)
        rest = QColor(palette.faint if row.pruned else palette.bar_rest)
        painter.setPen(QPen(accent, pen) if begins else Qt.PenStyle.NoPen)
        filled = accent if row.current or (row.on_path and not begins) else rest
        painter.setBrush(filled if row.on_path or not begins else Qt.BrushStyle.NoBrush)
        radius = (across - pen) / 2 if begins else across / 2
        painter.drawEllipse(middle, radius, radius)

    def _paint_numbers(self, painter: QPainter, room: QRect, row: TreeRow, palette: Palette) -> None:
        painter.setFont(self._small)
        painter.setPen(QColor(palette.soft))
        right = int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight)
        letter = self.marks.get(row.key, "")
        if letter:
            painter.setPen(QColor(palette.accent))
        ways, star = ways_of(row.ways) if row.ways > 1 else "", "★" if row.bookmarked else ""
        marks = " ".join(each for each in (letter, star, ways) if each)
        painter.drawText(room, right, marks)
        logprob = self._rows.logprob(row)
        painter.setPen(QColor(palette.soft))
        if logprob is not None:
            painter.drawText(room.adjusted(0, 0, -scaled(MARKS), 0), right, signed(logprob, 1))

    def _paint_words(self, painter: QPainter, room: QRect, row: TreeRow, palette: Palette) -> None:
        words = self._rows.words(row)
        given, before = one_line(row.given), one_line(row.before)
        label = (given + "   " if given else "") + (before + " " if before else "")
        if row.stem and not before and given:
            label = given + "   "
        text = label + row.stem + words.text
        own = utf16_length(label + row.stem)
        text = text[: max(room.width(), 0) // LEAST_LETTER + 1]  # more cannot be visible
        text, whole = _cut(text, self._plain, self._named if given else None, utf16_length(given), room.width())
        length = utf16_length(text)
        ink = QColor(palette.faint if row.pruned else palette.soft if row.role == "user" else palette.text)
        formats = list[QTextLayout.FormatRange]()  # parts in another colour than the pen's
        if before:
            formats.append(_format(utf16_length(given) if given else 0, utf16_length(label), QColor(palette.faint)))
        if given:
            formats.append(_format(0, utf16_length(given), QColor(palette.faint if row.pruned else palette.text), self._named))
        ramp, strength = palette.surprise, self._theme.own_strength if row.role != "assistant" else 1.0
        spans = []
        last = length if whole else length - 1
        for heat in words.heat:
            first, end = own + heat.first, min(own + heat.last, last)
            colour = ramp[min(heat.step, len(ramp) - 1)]
            if first >= end or colour is None or strength <= 0 or row.pruned:
                continue
            if heat.step == len(ramp) - 1 and strength == 1 and not _JOINED.search(words.text):
                formats.append(_format(first, end, QColor(palette.on_strongest)))
            ground = QColor(colour)
            ground.setAlphaF(strength)
            spans.append((first, end, ground))
        layout = _laid(text, self._plain, formats)
        line = layout.lineAt(0)
        high = line.height()
        top = room.top() + (room.height() - high) / 2
        painter.setPen(Qt.PenStyle.NoPen)
        for first, end, ground in spans:
            painter.setBrush(ground)
            painter.drawRoundedRect(_span(line, first, end, room.left(), top - 1, high + 2), 3, 3)
        hits = _places(text, self._rows.words_found)
        for first, end in hits:  # over the heat: the accent is not visible on all of its colours
            painter.fillRect(_span(line, first, end, room.left(), top - 1, high + 2), QColor(palette.bar_rest))
            painter.fillRect(_span(line, first, end, room.left(), top + high, 2), QColor(palette.accent))
        painter.setPen(ink)
        layout.draw(painter, QPointF(room.left(), top), [_format(*hit, QColor(palette.text)) for hit in hits])


def _paint_fold(painter: QPainter, place: QRect, colour: QColor, *, is_open: bool) -> None:
    half = scaled(3.5)
    centre = QPointF(place.left() + place.width() / 2 - 2, place.center().y() + 0.5)
    down = [QPointF(-half, -half / 2), QPointF(half, -half / 2), QPointF(0, half / 2 + 1)]
    points = down if is_open else [QPointF(point.y(), point.x()) for point in down]
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(colour)
    painter.drawPolygon(QPolygonF([centre + point for point in points]))


def _format(first: int, end: int, colour: QColor, font: QFont | None = None) -> QTextLayout.FormatRange:
    shape = QTextCharFormat()
    shape.setForeground(colour)
    if font is not None:
        shape.setFont(font)
    return format_range(first, max(end, first), shape)


def _laid(text: str, font: QFont, formats: list[QTextLayout.FormatRange]) -> QTextLayout:
    """A layout of one line that runs from left to right as a whole."""
    layout = QTextLayout(text, font)
    option = QTextOption(Qt.AlignmentFlag.AlignLeft)
    option.setWrapMode(QTextOption.WrapMode.NoWrap)
    option.setTextDirection(Qt.LayoutDirection.LeftToRight)
    layout.setTextOption(option)
    layout.setFormats(formats)
    layout.beginLayout()
    layout.createLine()
    layout.endLayout()
    return layout


def _span(line: QTextLine, first: int, end: int, left: float, top: float, height: float) -> QRectF:
    low, high = sorted((x_of(line, first), x_of(line, end)))
    return QRectF(left + low, top, high - low, height)


def _cut(text: str, font: QFont, bold: QFont | None, named: int, room: int) -> tuple[str, bool]:
    """The text that fits into `room` pixels, with an ellipsis if it is shortened; and whether it is whole."""
    extra = 0
    if bold is not None:
        given = text.encode("utf-16-le")[: 2 * named].decode("utf-16-le")
        extra = QFontMetrics(bold).horizontalAdvance(given) - QFontMetrics(font).horizontalAdvance(given)
    shown = QFontMetrics(font).elidedText(text, Qt.TextElideMode.ElideRight, max(room - max(extra, 0), 0))
    return shown, shown == text


def _places(text: str, words: str) -> list[tuple[int, int]]:
    """The places of words in a text, ignoring case: first and last QChar."""
    wanted, found, at = " ".join(words.lower().split()), list[tuple[int, int]](), 0
    searched = text.lower() if wanted else ""
    if not wanted or len(searched) != len(text):  # no search, or lower case has another length
        return []
    while (at := searched.find(wanted, at)) >= 0:
        first = utf16_length(text[:at])
        found.append((first, first + utf16_length(text[at : at + len(wanted)])))
        at += len(wanted)
    return found
