"""A piece of an answer as a QTextDocument that reads no file and contacts no server."""

from __future__ import annotations

from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import (
    QBrush,
    QColor,
    QFont,
    QImage,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextFormat,
    QTextOption,
)

from ui.theme.fonts import mono_font
from ui.theme.palette import Palette
from ui.transcript.faces import TEXT_PX, Faces

_FEATURES = QTextDocument.MarkdownFeature.MarkdownDialectGitHub | QTextDocument.MarkdownFeature.MarkdownNoHTML
_HEADING_PX = (0.0, 21.0, 18.5, 16.5, 15.5, 15.5, 15.5)
_PROPORTIONAL = QTextBlockFormat.LineHeightTypes.ProportionalHeight.value
_CODE_LINE_PERCENT = 122


class BlankDocument(QTextDocument):
    """Whatever resource the text names, it gets a blank picture: returning nothing would let Qt open local files."""

    def loadResource(self, kind: int, name: QUrl | str) -> QImage:
        blank = QImage(1, 1, QImage.Format.Format_ARGB32_Premultiplied)
        blank.fill(Qt.GlobalColor.transparent)
        return blank


def markdown_document(source: str, faces: Faces, palette: Palette, width: float) -> QTextDocument:
    """GitHub's markdown without HTML, in the transcript's type."""
    document = _blank(faces.text, width)
    document.setMarkdown(source, _FEATURES)
    block = document.begin()
    while block.isValid():
        _set_type(QTextCursor(block), faces, last=not block.next().isValid())
        block = block.next()
    _colour(document, faces, palette)
    return document


def plain_document(source: str, faces: Faces, width: float) -> QTextDocument:
    """Text as it was typed: line breaks and spaces kept, nothing interpreted."""
    document = _blank(faces.text, width)
    document.setPlainText(source)
    _space_lines(document, round(100 * faces.pitch / faces.glyphs))
    return document


def code_document(source: str, faces: Faces, width: float) -> QTextDocument:
    """Code in the monospaced face."""
    document = _blank(mono_font(13 * faces.scale), width)
    document.setPlainText(source)
    _space_lines(document, _CODE_LINE_PERCENT)
    return document


def _blank(font: QFont, width: float) -> QTextDocument:
    document = BlankDocument()
    document.setUndoRedoEnabled(False)
    document.setDocumentMargin(0)
    document.setDefaultFont(font)
    option = QTextOption()
    option.setWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
    document.setDefaultTextOption(option)
    document.setTextWidth(width)
    return document


def _space_lines(document: QTextDocument, percent: int) -> None:
    cursor = QTextCursor(document)
    cursor.select(QTextCursor.SelectionType.Document)
    spaced = QTextBlockFormat()
    spaced.setLineHeight(percent, _PROPORTIONAL)
    cursor.mergeBlockFormat(spaced)


def _set_type(cursor: QTextCursor, faces: Faces, *, last: bool) -> None:
    """Line height, headings and the space between paragraphs of one block."""
    held = cursor.blockFormat()
    spaced = QTextBlockFormat()
    level = held.headingLevel()
    spaced.setLineHeight(round(100 * faces.pitch / faces.glyphs) if not level else 130, _PROPORTIONAL)
    in_list = cursor.currentList() is not None
    spaced.setTopMargin(6 * faces.scale if level else 0)
    spaced.setBottomMargin(0 if last or in_list or cursor.currentTable() is not None else 8 * faces.scale)
    cursor.mergeBlockFormat(spaced)
    if level:
        big = QTextCharFormat()
        big.setProperty(QTextFormat.Property.FontSizeAdjustment, 0)
        big.setFontPointSize(faces.text.pointSizeF() * _HEADING_PX[min(level, 6)] / TEXT_PX)
        big.setFontWeight(QFont.Weight.DemiBold)
        cursor.select(QTextCursor.SelectionType.BlockUnderCursor)
        cursor.mergeCharFormat(big)


def _colour(document: QTextDocument, faces: Faces, palette: Palette) -> None:
    """Links in the accent, code on its own ground, tables with hairlines."""
    mono = mono_font(13.5 * faces.scale)
    block = document.begin()
    while block.isValid():
        for fragment in [f.fragment() for f in block]:
            given = fragment.charFormat()
            changed = QTextCharFormat()
            if given.isAnchor():
                changed.setForeground(QColor(palette.accent))
            if given.fontFixedPitch():
                changed.setFontFamilies(mono.families())
                changed.setFontPointSize(mono.pointSizeF())
                changed.setBackground(QColor(palette.code))
            if changed.propertyCount():
                cursor = QTextCursor(document)
                cursor.setPosition(fragment.position())
                cursor.setPosition(fragment.position() + fragment.length(), QTextCursor.MoveMode.KeepAnchor)
                cursor.mergeCharFormat(changed)
        table = QTextCursor(block).currentTable()
        if table is not None:
            shape = table.format()
            shape.setBorderBrush(QBrush(QColor(palette.hairline)))
            shape.setBorderCollapse(True)
            shape.setBorder(1)
            shape.setCellPadding(5 * faces.scale)
            shape.setCellSpacing(0)
            table.setFormat(shape)
        block = block.next()
