"""A piece of an answer as a QTextDocument that reads no file and contacts no server."""

from __future__ import annotations

from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import (
    QColor,
    QFont,
    QImage,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextFormat,
    QTextFrameFormat,
    QTextOption,
    QTextTable,
)

from ui.theme.fonts import mono_font
from ui.theme.palette import Palette
from ui.transcript.code_ink import colour_code
from ui.transcript.faces import TEXT_PX, Faces
from ui.transcript.maths import with_plain_maths
from ui.transcript.visible import seen

_FEATURES = QTextDocument.MarkdownFeature.MarkdownDialectGitHub | QTextDocument.MarkdownFeature.MarkdownNoHTML
_HEADING_PX = (0.0, 21.0, 18.5, 16.5, 15.5, 15.5, 15.5)
_PROPORTIONAL = QTextBlockFormat.LineHeightTypes.ProportionalHeight.value
_FIXED = QTextBlockFormat.LineHeightTypes.FixedHeight.value
_CODE_LINE_PERCENT = 122
_INDENT_PX = 24  # of lists


class BlankDocument(QTextDocument):
    """Whatever resource the text names, it gets a blank picture: returning nothing would let Qt open local files."""

    def loadResource(self, kind: int, name: QUrl | str) -> QImage:  # noqa: ARG002  # Qt's signature
        blank = QImage(1, 1, QImage.Format.Format_ARGB32_Premultiplied)
        blank.fill(Qt.GlobalColor.transparent)
        return blank


def markdown_document(source: str, faces: Faces, palette: Palette, width: float) -> QTextDocument:
    """GitHub's markdown without HTML, in the transcript's type."""
    document = _blank(faces.text, width)
    document.setMarkdown(with_plain_maths(seen(source)), _FEATURES)
    block = document.begin()
    while block.isValid():
        _set_type(QTextCursor(block), faces, last=not block.next().isValid())
        block = block.next()
    _colour(document, faces, palette)
    return document


def plain_document(source: str, faces: Faces, width: float) -> QTextDocument:
    """Text as it was typed: line breaks and spaces kept, nothing interpreted."""
    document = _blank(faces.text, width)
    document.setPlainText(seen(source))
    _space_lines(document, faces.pitch, _FIXED)
    return document


def code_document(source: str, language: str, faces: Faces, palette: Palette, width: float) -> QTextDocument:
    """Code in the monospaced face, coloured where its language is known."""
    document = _blank(mono_font(13 * faces.share), width)
    shown = seen(source)
    document.setPlainText(shown)
    _space_lines(document, _CODE_LINE_PERCENT, _PROPORTIONAL)
    colour_code(document, shown, language, palette)
    return document


def _blank(font: QFont, width: float) -> QTextDocument:
    document = BlankDocument()
    document.setUndoRedoEnabled(False)
    document.setDocumentMargin(0)
    document.setIndentWidth(_INDENT_PX)
    document.setDefaultFont(font)
    option = QTextOption()
    option.setWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
    document.setDefaultTextOption(option)
    document.setTextWidth(width)
    return document


def _space_lines(document: QTextDocument, height: float, kind: int) -> None:
    cursor = QTextCursor(document)
    cursor.select(QTextCursor.SelectionType.Document)
    spaced = QTextBlockFormat()
    spaced.setLineHeight(height, kind)
    cursor.mergeBlockFormat(spaced)


def _set_type(cursor: QTextCursor, faces: Faces, *, last: bool) -> None:
    """Line height and the space between paragraphs of one block."""
    held = cursor.blockFormat()
    spaced = QTextBlockFormat()
    level = held.headingLevel()
    spaced.setLineHeight(*((130, _PROPORTIONAL) if level else (faces.pitch, _FIXED)))
    together = cursor.currentList() is not None or cursor.currentTable() is not None
    spaced.setTopMargin(0)
    spaced.setBottomMargin(0 if last or together or level else 8 * faces.scale)
    if held.property(QTextFormat.Property.BlockQuoteLevel):
        spaced.setLeftMargin(18 * faces.scale)
    cursor.mergeBlockFormat(spaced)


def _colour(document: QTextDocument, faces: Faces, palette: Palette) -> None:
    """Headings, links in the accent, code on its own ground, tables and rules with hairlines."""
    block = document.begin()
    while block.isValid():
        level = block.blockFormat().headingLevel()
        quoted = bool(block.blockFormat().property(QTextFormat.Property.BlockQuoteLevel))
        for fragment in [f.fragment() for f in block]:  # type: ignore[attr-defined]  # iterable, the stubs miss it
            shape = QTextCharFormat(fragment.charFormat())
            if level:
                shape.clearProperty(QTextFormat.Property.FontSizeAdjustment)
                shape.setFontPointSize(faces.text.pointSizeF() * _HEADING_PX[min(level, 6)] / TEXT_PX)
                shape.setFontWeight(QFont.Weight.DemiBold)
            if quoted:
                shape.setForeground(QColor(palette.soft))
            _colour_fragment(shape, faces, palette)
            cursor = QTextCursor(document)
            cursor.setPosition(fragment.position())
            cursor.setPosition(fragment.position() + fragment.length(), QTextCursor.MoveMode.KeepAnchor)
            cursor.setCharFormat(shape)
        if block.blockFormat().hasProperty(QTextFormat.Property.BlockTrailingHorizontalRulerWidth):
            rule = QTextBlockFormat()
            rule.setBackground(QColor(palette.hairline))  # Qt draws the rule alone in it
            QTextCursor(block).mergeBlockFormat(rule)
        block = block.next()
    for frame in document.rootFrame().childFrames():
        if isinstance(frame, QTextTable):
            _rule_table(frame, faces, palette)


def _colour_fragment(shape: QTextCharFormat, faces: Faces, palette: Palette) -> None:
    if shape.isAnchor():
        shape.setForeground(QColor(palette.accent))
        shape.setFontUnderline(False)
    if shape.fontFixedPitch():
        mono = mono_font(13.5 * faces.share)
        shape.setFontFamilies(mono.families())
        shape.setFontPointSize(mono.pointSizeF())
        shape.setBackground(QColor(palette.code))


def _rule_table(table: QTextTable, faces: Faces, palette: Palette) -> None:
    shape = table.format()
    shape.setBorder(0)
    shape.setCellPadding(4 * faces.scale)
    shape.setCellSpacing(0)
    table.setFormat(shape)
    for row in range(table.rows()):
        for column in range(table.columns()):
            cell = table.cellAt(row, column)
            ruled = cell.format().toTableCellFormat()
            ruled.setBottomBorder(1)
            ruled.setBottomBorderStyle(QTextFrameFormat.BorderStyle.BorderStyle_Solid)
            ruled.setBottomBorderBrush(QColor(palette.hairline))
            ruled.setRightPadding(20 * faces.scale)
            cell.setFormat(ruled)
