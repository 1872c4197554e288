"""The pictures of formulas in a document, in place of their sources, which are copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from PySide6.QtCore import QByteArray, QRect, QRectF, QSizeF, Qt
from PySide6.QtGui import (
    QColor,
    QFontMetricsF,
    QPainter,
    QPixmap,
    QPixmapCache,
    QPyTextObject,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextFormat,
    QTextTable,
    QTextTableCell,
)
from PySide6.QtSvg import QSvgRenderer

from ui.theme.palette import Palette
from ui.transcript.read_mode.formulas import Formula, is_display
from ui.transcript.text.faces import TEXT_PX, Faces
from ui.widgets.visible import utf16_length

_OBJECT = QTextFormat.ObjectTypes.UserObject.value + 1
_SOURCE = QTextFormat.Property.UserProperty.value + 1
_ROOM = QTextFormat.Property.UserProperty.value + 2  # maximum width, pixels
CELL_PADDING_PX = 4
_CELL_PX, _SHORT_COLUMN_PX = 32.0, 80.0  # of a column: what its formula cannot use; the least width
_PLACE = "\ufffc"  # represents an object in the text of a document
_LINE_BREAK = "\u2028"
_SIZE = 1.06  # relative to the surrounding text, as the letters of the mathematical font are lower
_AIR_EM = 0.35  # above and below a display
_MINIMUM = QTextBlockFormat.LineHeightTypes.MinimumHeight.value


def draw_formulas(
    document: QTextDocument, sources: Sequence[str], pictures: Mapping[str, Formula], faces: Faces, palette: Palette
) -> None:
    """Replaces sources by their pictures.

    Args:
        document: Contains the sources as text.
        sources: The formulas in the order of the document.
        pictures: Pictures by source; other sources stay text.
        faces: Fonts of the surrounding text.
        palette: Colours.
    """
    handler = _Handler(document, pictures, faces, palette)
    document.documentLayout().registerHandler(_OBJECT, handler)
    at = 0
    for source in sources:
        found = document.find(source.replace("\n", _LINE_BREAK), at, QTextDocument.FindFlag.FindCaseSensitively)
        if found.isNull():
            continue
        at = found.selectionEnd()
        if source in pictures and not found.charFormat().fontFixedPitch():
            _place(found, source, faces)
            at = found.position()
    for frame in document.rootFrame().childFrames():
        if isinstance(frame, QTextTable):
            _fit(frame, document.textWidth(), handler)


def _fit(table: QTextTable, width: float, handler: _Handler) -> None:
    """Limits the width of long formulas in a table to the room that the other columns leave."""
    columns, long = table.columns(), list[tuple[int, QTextCursor]]()
    for cell in _cells(table):
        place = cell.firstCursorPosition()
        if place.block().text() == _PLACE:
            place.setPosition(place.position() + 1, QTextCursor.MoveMode.KeepAnchor)
            if handler.size(place.charFormat())[0] > width / columns - _CELL_PX:
                long.append((cell.column(), place))
    shared = len({column for column, _ in long})
    room = QTextCharFormat()
    room.setProperty(_ROOM, (width - _SHORT_COLUMN_PX * (columns - shared)) / max(shared, 1) - _CELL_PX)
    for _, place in long:
        place.mergeCharFormat(room)


def _cells(table: QTextTable) -> list[QTextTableCell]:
    """All cells, row by row."""
    return [table.cellAt(row, column) for row in range(table.rows()) for column in range(table.columns())]


def align_tables(document: QTextDocument, faces: Faces) -> None:
    """Lowers cells of tables, so that the cells of a row share their first baseline; lays out the document."""
    layout, edit, bases = document.documentLayout(), QTextCursor(document), list[tuple[QTextTableCell, float, float]]()
    for table in document.rootFrame().childFrames():
        rows: dict[int, list[tuple[QTextTableCell, float]]] = {}
        for cell in _cells(table) if isinstance(table, QTextTable) else ():
            block = cell.firstCursorPosition().block()
            line = block.layout().lineAt(0)
            base = layout.blockBoundingRect(block).top() + line.y() + line.ascent()
            rows.setdefault(cell.row(), []).append((cell, base))
        bases += [(cell, base, max(base for _, base in row)) for row in rows.values() for cell, base in row]
    edit.beginEditBlock()
    for cell, base, lowest in bases:
        if base < lowest:
            lower = cell.format().toTableCellFormat()
            lower.setTopPadding(CELL_PADDING_PX * faces.scale + lowest - base)
            cell.setFormat(lower)
    edit.endEditBlock()


def source_of(cursor: QTextCursor) -> str:
    """The selected text with the sources of its formulas, and with Qt's separators of paragraphs and lines."""
    text = cursor.selectedText()
    if _PLACE not in text:
        return text
    parts, at = [], cursor.selectionStart()
    for piece in text.split(_PLACE)[:-1]:
        at += utf16_length(piece) + 1
        probe = QTextCursor(cursor.document())
        probe.setPosition(at)  # its format is that of the character before
        parts += [piece, probe.charFormat().property(_SOURCE) or _PLACE]
    return "".join([*parts, text.rpartition(_PLACE)[2]])


def _place(found: QTextCursor, source: str, faces: Faces) -> None:
    shape = QTextCharFormat(found.charFormat())
    shape.setObjectType(_OBJECT)
    shape.setProperty(_SOURCE, source)
    shape.setVerticalAlignment(QTextCharFormat.VerticalAlignment.AlignMiddle)
    found.insertText(_PLACE, shape)
    spaced = QTextBlockFormat()
    spaced.setLineHeight(faces.pitch, _MINIMUM)
    if is_display(source):
        _give_line(found)
        if found.block().length() == 2:  # the object and the paragraph's end
            spaced.setAlignment(Qt.AlignmentFlag.AlignHCenter)
    if found.currentTable() is not None and found.block().length() == 2:
        spaced.setNonBreakableLines(True)  # else Qt makes its column as narrow as its letters were
    found.mergeBlockFormat(spaced)


def _give_line(found: QTextCursor) -> None:
    """Puts a display on a line of its own, with line breaks in place of the spaces around it."""
    text, place = found.block().text(), found.positionInBlock() - 1
    plain = QTextCharFormat(found.charFormat())
    plain.setObjectType(QTextFormat.ObjectTypes.NoObject.value)
    plain.clearProperty(_SOURCE)
    plain.setVerticalAlignment(QTextCharFormat.VerticalAlignment.AlignNormal)
    units = text.encode("utf-16-le")
    before, after = (units[part].decode("utf-16-le", "replace") for part in (slice(2 * place), slice(2 * place + 2, None)))
    edge = QTextCursor(found)
    if after.strip():
        edge.setPosition(found.position() + len(after) - len(after.lstrip(" ")), QTextCursor.MoveMode.KeepAnchor)
        if not after.startswith(_LINE_BREAK):
            edge.insertText(_LINE_BREAK, plain)
            found.setPosition(edge.position() - 1)
    if before.strip() and not before.endswith(_LINE_BREAK):
        edge.setPosition(found.position() - 1 - (len(before) - len(before.rstrip(" "))))
        edge.setPosition(found.position() - 1, QTextCursor.MoveMode.KeepAnchor)
        edge.insertText(_LINE_BREAK, plain)


class _Handler(QPyTextObject):
    """Measures and draws the formulas of one document, its parent."""

    def __init__(self, document: QTextDocument, pictures: Mapping[str, Formula], faces: Faces, palette: Palette) -> None:
        super().__init__(document)
        self._pictures, self._faces, self._palette = pictures, faces, palette
        self._width = document.textWidth()

    def intrinsicSize(self, document: QTextDocument, position: int, shape: QTextFormat) -> QSizeF:  # noqa: ARG002
        width, above, under = self.size(shape)
        return QSizeF(width, above + under)

    def size(self, shape: QTextFormat) -> tuple[float, float, float]:
        """Width, and height above and below the baseline; Qt aligns the middles of the object and the text."""
        picture, em = self._measured(shape)
        if picture is None:
            return 0.0, 0.0, 0.0
        half = QFontMetricsF(shape.toCharFormat().font()).xHeight() / 2
        air = _AIR_EM if is_display(shape.property(_SOURCE)) else 0.0
        under = max((picture.ascent + air) * em - half, (picture.descent + air) * em)
        return picture.width * em, under + half, under

    def drawObject(
        self,
        painter: QPainter,
        rect: QRectF | QRect,
        document: QTextDocument,
        position: int,
        shape: QTextFormat,
    ) -> None:
        picture, em = self._measured(shape)
        if picture is None:
            return
        format_ = shape.toCharFormat()
        block = document.findBlock(position)
        line = block.layout().lineForTextPosition(position - block.position())
        baseline = document.documentLayout().blockBoundingRect(block).top() + line.y() + line.ascent()
        coloured = format_.hasProperty(QTextFormat.Property.ForegroundBrush.value)
        colour = format_.foreground().color() if coloured else QColor(self._palette.text)
        area = QRectF(rect.left(), baseline - picture.ascent * em, picture.width * em, (picture.ascent + picture.descent) * em)
        painter.drawPixmap(area, _pixmap(picture, area.size(), colour, painter.device().devicePixelRatio()), QRectF())

    def _measured(self, shape: QTextFormat) -> tuple[Formula | None, float]:
        """The picture and its em in pixels: that of the surrounding text, or less if the picture would be too wide."""
        picture = self._pictures.get(cast("str", shape.property(_SOURCE)))
        if picture is None:
            return None, 0.0
        text = self._faces.text.pointSizeF()
        em = TEXT_PX * self._faces.scale * _SIZE * (shape.toCharFormat().fontPointSize() or text) / text
        room = cast("float", shape.property(_ROOM) or self._width)
        return picture, min(em, max(room, 1.0) / picture.width)


def _pixmap(picture: Formula, size: QSizeF, colour: QColor, ratio: float) -> QPixmap:
    key = f"formula {hash(picture)} {size.width():.2f} {size.height():.2f} {colour.name()} {ratio}"
    drawn = QPixmap()
    if not QPixmapCache.find(key, drawn):
        drawn = QPixmap((size * ratio).toSize().expandedTo(QSizeF(1, 1).toSize()))
        drawn.fill(Qt.GlobalColor.transparent)
        painter = QPainter(drawn)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        QSvgRenderer(QByteArray(picture.coloured(colour.name()))).render(painter, QRectF(drawn.rect()))
        painter.end()
        QPixmapCache.insert(key, drawn)
    return drawn
