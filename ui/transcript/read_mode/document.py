"""Markdown, code and plain text as Qt documents, in stretches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct
from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import (
    QColor,
    QFont,
    QImage,
    QTextBlock,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextFormat,
    QTextFrame,
    QTextFrameFormat,
    QTextImageFormat,
    QTextList,
    QTextOption,
    QTextTable,
)

from ui.port import translate
from ui.theme.fonts import mono_font
from ui.theme.palette import Palette
from ui.transcript.read_mode.code_ink import LONGEST_LINE, colour_code
from ui.transcript.read_mode.formula_ink import CELL_PADDING_PX, align_tables, draw_formulas
from ui.transcript.read_mode.formulas import Formula
from ui.transcript.read_mode.markup import NO_MARKS, formulas, with_inline_marks_alone, with_named_pictures, with_plain_maths
from ui.transcript.text.faces import TEXT_PX, Faces
from ui.widgets.visible import seen

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)")
_LIST_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)")
_LONGEST = 6000  # characters of one stretch; a longer table or list is cut at a line, a longer line anywhere
_LONGEST_CODE = 100_000
_LONGEST_WORD = 1500  # Qt takes quadratic time to break a word over many lines


class Stretch(Struct, frozen=True):
    """Characters `start` to `stop` of the source. `code` is the content of a fence, None for markdown."""

    start: int
    stop: int
    code: str | None = None
    language: str = ""
    goes_on: bool = False  # continues the code of the previous stretch


def stretches(source: str, start: int = 0) -> Iterator[Stretch]:
    """Yields the stretches from character `start` on, where one must begin.

    Fenced code is a stretch of its own; other text is cut at blank lines, but not inside a list.
    """
    begin = position = start
    in_list = blank = broken = filled = False  # broken: the stretch ends inside a word; filled: not blank up to here
    while position < len(source):
        was_broken, broken = broken, False
        stop = min(_line_end(source, position), position + _LONGEST)
        if stop - position > _LONGEST_WORD and " " not in source[position : position + _LONGEST_WORD]:
            stop, broken = position + _LONGEST_WORD, True
        line = source[position:stop]
        fence = _FENCE.match(line)
        if fence is not None:
            if filled:
                yield Stretch(begin, position)
                begin = position
            position = _fence_end(source, stop, fence.group(1))
            yield from _code(source, begin, stop, position, fence)
            begin, in_list, blank, filled = position, False, False, False
            continue
        empty = not line.strip()
        starts_item = _LIST_ITEM.match(line) is not None
        indented = line[:1] in (" ", "\t")
        cut = blank and not empty and not (in_list and (starts_item or indented))
        if (filled and (cut or was_broken)) or position - begin >= _LONGEST:
            yield Stretch(begin, position)
            begin, filled = position, False
        if not empty and (cut or not filled):
            in_list = starts_item
        in_list = in_list or (starts_item and not blank)
        blank, filled = empty, filled or not empty
        position = stop
    if filled or begin == start:
        yield Stretch(begin, len(source))


def with_marks_alone(source: str) -> str:
    """The markdown with literal marks, in code and after a backslash, replaced by `NO_MARKS`; the length stays."""
    parts, end = [], 0
    for each in stretches(source):
        text, end = source[each.start : each.stop], each.stop
        parts.append(with_inline_marks_alone(text) if each.code is None else text.translate(NO_MARKS))
    return "".join(parts) + source[end:]


def plain_stretches(source: str) -> Iterator[Stretch]:
    """Yields stretches of plain text, cut at line ends so that none takes long to typeset."""
    begin = 0
    while begin < len(source):
        stop = len(source)
        if stop - begin > _LONGEST:
            line = source.rfind("\n", begin, begin + _LONGEST)
            stop = line + 1 if line >= begin else begin + _LONGEST
        yield Stretch(begin, stop)
        begin = stop


def _line_end(source: str, position: int) -> int:
    found = source.find("\n", position)
    return len(source) if found < 0 else found + 1


def _fence_end(source: str, position: int, mark: str) -> int:
    while position < len(source):
        start, position = position, _line_end(source, position)
        if _closes(source[start:position], mark):
            break
    return position


def _closes(line: str, mark: str) -> bool:
    """Whether a line closes the fence that `mark` opened: as many of its signs or more, and nothing else."""
    signs = line.strip()
    return len(signs) >= len(mark) and not signs.strip(mark[0])


def _code(source: str, begin: int, start: int, stop: int, fence: re.Match[str]) -> Iterator[Stretch]:
    """Yields the content of a fence, from `start` on, without the closing line; long code is cut at lines."""
    lines = source[start:stop].rstrip("\n").split("\n")
    if _closes(lines[-1], fence.group(1)):
        lines.pop()
    held, language, goes_on = "\n".join(lines).rstrip("\n"), fence.group(2).strip(), False
    while len(held) > _LONGEST_CODE:
        cut = held.rfind("\n", 0, _LONGEST_CODE) + 1 or _LONGEST_CODE
        yield Stretch(begin, start + cut, held[:cut], language, goes_on)
        begin, goes_on = start + cut, True
        start, held = begin, held[cut:]
    yield Stretch(begin, stop, held, language, goes_on)


_FEATURES = QTextDocument.MarkdownFeature.MarkdownDialectGitHub | QTextDocument.MarkdownFeature.MarkdownNoHTML
_HEADING_PX = (0.0, 21.0, 18.5, 16.5, 15.5, 15.5, 15.5)
_PROPORTIONAL = QTextBlockFormat.LineHeightTypes.ProportionalHeight.value
_SINGLE = QTextBlockFormat.LineHeightTypes.SingleHeight.value
_FIXED = QTextBlockFormat.LineHeightTypes.FixedHeight.value
_CODE_LINE_PERCENT = 122
_INDENT_PX = 24  # of lists


class BlankDocument(QTextDocument):
    """Loads a blank picture for every resource; without an answer Qt would open local files."""

    def loadResource(self, kind: int, name: QUrl | str) -> QImage:  # noqa: ARG002  # Qt's signature
        blank = QImage(1, 1, QImage.Format.Format_ARGB32_Premultiplied)
        blank.fill(Qt.GlobalColor.transparent)
        return blank


def markdown_document(
    source: str, faces: Faces, palette: Palette, width: float, pictures: Mapping[str, Formula] | None = None
) -> QTextDocument:
    """GitHub's markdown without HTML, in the transcript's type; formulas as `pictures`, or as their source."""
    document = _blank(BlankDocument(), faces.text, width)
    shown = seen(source)
    document.setMarkdown(with_named_pictures(with_plain_maths(shown)), _FEATURES)
    edit = QTextCursor(document)
    edit.beginEditBlock()  # one for all changes: Qt lays out a paragraph again at the end of each
    _set_types(document, faces)
    if pictures:
        draw_formulas(document, formulas(shown), pictures, faces, palette)
    _colour(document, faces, palette, with_pictures=False)
    edit.endEditBlock()
    if pictures:
        align_tables(document, faces)
    return document


def fill_page(document: QTextDocument, source: str, faces: Faces, palette: Palette, width: float) -> None:
    """Fills an empty document with a page of GitHub's markdown, with its pictures and coloured code."""
    _blank(document, faces.text, width)
    document.setMarkdown(source, _FEATURES)
    _set_types(document, faces)
    _colour(document, faces, palette, with_pictures=True)
    framed = [(_language(code[0]), _frame(code, faces, palette)) for code in reversed(_codes(document))]
    for language, frame in framed:
        _set_code(frame, faces)
        first, text = frame.firstCursorPosition(), _selected(frame).selection().toPlainText()
        colour_code(document, text, language, palette, first=first.blockNumber())


def _codes(document: QTextDocument) -> list[list[QTextBlock]]:
    """The blocks of each fenced code."""
    found, block, before = list[list[QTextBlock]](), document.begin(), -1
    while block.isValid():
        if block.blockFormat().hasProperty(QTextFormat.Property.BlockCodeFence):
            if not found or before != block.blockNumber() - 1 or _language(block) != _language(found[-1][0]):
                found.append([])
            found[-1].append(block)
            before = block.blockNumber()
        block = block.next()
    return found


def _language(block: QTextBlock) -> str:
    return str(block.blockFormat().property(QTextFormat.Property.BlockCodeLanguage) or "")


def _frame(code: list[QTextBlock], faces: Faces, palette: Palette) -> QTextFrame:
    """Puts the blocks of a code into a frame with its own background."""
    ground = QTextFrameFormat()
    ground.setBackground(QColor(palette.code))
    ground.setPadding(10 * faces.scale)
    ground.setBottomMargin(12 * faces.scale)
    cursor = QTextCursor(code[0])
    cursor.setPosition(code[-1].position() + code[-1].length() - 1, QTextCursor.MoveMode.KeepAnchor)
    frame = cursor.insertFrame(ground)
    before = QTextCursor(cursor.document().findBlock(frame.firstPosition() - 1))
    if not before.block().text():  # the empty line that Qt leaves before a frame
        nothing = QTextBlockFormat()
        nothing.setLineHeight(1, _FIXED)
        before.setBlockFormat(nothing)
    return frame


def _selected(frame: QTextFrame) -> QTextCursor:
    cursor = frame.firstCursorPosition()
    cursor.setPosition(frame.lastPosition(), QTextCursor.MoveMode.KeepAnchor)
    return cursor


def _set_code(frame: QTextFrame, faces: Faces) -> None:
    """Sets code in the monospaced font, without wrapping; the page scrolls."""
    mono, line = QTextCharFormat(), QTextBlockFormat()
    mono.setFont(mono_font(13 * faces.share))
    line.setLineHeight(_CODE_LINE_PERCENT, _PROPORTIONAL)
    line.setNonBreakableLines(True)
    cursor = _selected(frame)
    cursor.setBlockFormat(line)
    cursor.setCharFormat(mono)
    cursor.setBlockCharFormat(mono)  # for empty lines


def plain_document(source: str, faces: Faces, width: float) -> QTextDocument:
    """Plain text with its line breaks and spaces."""
    document = _blank(BlankDocument(), faces.text, width)
    document.setPlainText(seen(source))
    _space_lines(document, faces.pitch, _FIXED)
    return document


def code_document(source: str, language: str, faces: Faces, palette: Palette, width: float) -> QTextDocument:
    """Code in the monospaced font, coloured if its language is known."""
    document = _blank(BlankDocument(), mono_font(13 * faces.share), width)
    shown = seen(source)
    if max(map(len, shown.split("\n"))) <= LONGEST_LINE:  # scrolled; a longer line would be painted whole each time
        option = document.defaultTextOption()
        option.setWrapMode(QTextOption.WrapMode.NoWrap)
        document.setDefaultTextOption(option)
    document.setPlainText(shown)
    _space_lines(document, _CODE_LINE_PERCENT, _PROPORTIONAL)
    colour_code(document, shown, language, palette)
    return document


def _blank(document: QTextDocument, font: QFont, width: float) -> QTextDocument:
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


def _set_types(document: QTextDocument, faces: Faces) -> None:
    block = document.begin()
    while block.isValid():
        _set_type(QTextCursor(block), faces, last=not block.next().isValid())
        block = block.next()


def _set_type(cursor: QTextCursor, faces: Faces, *, last: bool) -> None:
    """Sets the line height and the margins of one block."""
    held = cursor.blockFormat()
    spaced = QTextBlockFormat()
    level = held.headingLevel()
    spaced.setLineHeight(*((130, _PROPORTIONAL) if level else (faces.pitch, _FIXED)))
    together = _goes_on(cursor.currentList(), cursor.block().next()) or cursor.currentTable() is not None
    if not cursor.block().text() and _is_rule(cursor.block().next()) and not _is_rule(cursor.block()):
        spaced.setLineHeight(1, _FIXED)  # the empty block that Qt puts before a rule at the beginning of a text
        together = True
    spaced.setTopMargin(0)
    spaced.setBottomMargin(0 if last or together or level else 8 * faces.scale)
    if held.property(QTextFormat.Property.BlockQuoteLevel):
        spaced.setLeftMargin(18 * faces.scale)
    cursor.mergeBlockFormat(spaced)


def _is_rule(block: QTextBlock) -> bool:
    return block.blockFormat().hasProperty(QTextFormat.Property.BlockTrailingHorizontalRulerWidth)


def _goes_on(held: QTextList | None, following: QTextBlock) -> bool:
    """Whether the next block continues a list or an enclosing one, or begins a nested one."""
    its = following.textList()
    if held is None or its is None:
        return False
    return its.itemNumber(following) > 0 or its.format().indent() > held.format().indent()


def _colour(document: QTextDocument, faces: Faces, palette: Palette, *, with_pictures: bool) -> None:
    """Styles headings, links, code, tables and rules; pictures stay (`with_pictures`) or become words."""
    block = document.begin()
    while block.isValid():
        level = block.blockFormat().headingLevel()
        quoted = bool(block.blockFormat().property(QTextFormat.Property.BlockQuoteLevel))
        for fragment in reversed([f.fragment() for f in block]):  # type: ignore[attr-defined]  # iterable, the stubs miss it
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
            if shape.isImageFormat() and with_pictures:
                as_high = QTextBlockFormat()
                as_high.setLineHeight(0, _SINGLE)
                QTextCursor(block).mergeBlockFormat(as_high)
            elif not shape.isImageFormat():
                cursor.setCharFormat(shape)
            else:
                _name_image(cursor, shape.toImageFormat(), palette)
        if _is_rule(block):
            rule = QTextBlockFormat()
            rule.setBackground(QColor(palette.hairline))  # Qt draws the rule alone in it
            QTextCursor(block).mergeBlockFormat(rule)
        block = block.next()
    for frame in document.rootFrame().childFrames():
        if isinstance(frame, QTextTable):
            _rule_table(frame, faces, palette)


def _name_image(cursor: QTextCursor, image: QTextImageFormat, palette: Palette) -> None:
    """Replaces a picture by its description, as nothing is loaded; a picture on the web becomes a link."""
    shows = str(image.property(QTextFormat.Property.ImageAltText) or "").strip()
    shape = QTextCharFormat()
    shape.setBackground(QColor(palette.code))
    shape.setForeground(QColor(palette.soft))
    if not image.name().startswith("data:"):
        shape.setAnchor(True)
        shape.setAnchorHref(image.name())
    words = translate("Transcript", "Image: {0}").format(shows) if shows else translate("Transcript", "Image")
    cursor.insertText(f"[{words}]", shape)


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
    shape.setCellPadding(CELL_PADDING_PX * faces.scale)
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
