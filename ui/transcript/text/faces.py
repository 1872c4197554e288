"""The transcript's fonts and measures at one text scale; lengths are logical pixels."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import cast

from PySide6.QtCore import Qt
from PySide6.QtGui import QFont, QFontMetricsF, QTextCharFormat, QTextLayout, QTextLine, QTextOption

from ui.theme.fonts import interface_font, mono_font, text_scale

TEXT_PX = 15.5
CODE_PX = 13.5
LINE_HEIGHT = 1.78
COLUMN_PX = 640
RAIL_PX = 104  # role, tier line and the gap before the text
_TRACKING = -0.012  # em
MARGIN_RIGHT_PX = 44
MARGIN_TOP_PX = 22
TURN_GAP_PX = 20
CHARACTERS_PER_TOKEN = 4.4  # English; for estimates from token counts


class Faces:
    """Fonts and their measures.

    Args:
        share: Text size as a share of the window's text size.

    Attributes:
        scale: The factor for all lengths that grow with the text.
    """

    def __init__(self, share: float = 1.0) -> None:
        self.share, self.scale = share, share * text_scale()
        scale = self.scale
        self.text = reading_font(share)
        self.role, self.meta = self._tracked(12), self._tracked(11.5)
        self.meta_bold = self._tracked(11.5, QFont.Weight.DemiBold)
        metrics = QFontMetricsF(self.text)
        self.pitch = round(TEXT_PX * LINE_HEIGHT * scale)  # from line to line
        self.ascent = metrics.ascent()
        self.glyphs = metrics.ascent() + metrics.descent()
        self.lead = (self.pitch - self.glyphs) / 2  # from the line's top to the glyphs' top
        self.space = metrics.horizontalAdvance(" ")
        self.average = metrics.averageCharWidth()
        self.rail = round(RAIL_PX * max(1.0, scale * 0.9))
        self._small = QTextCharFormat()
        self._small.setFont(mono_font(10.5 * share))
        self._code = mono_font(CODE_PX * share)
        self._options = {
            (towards, wrap): _option(towards, self.space, wrap=wrap) for towards in (False, True) for wrap in (False, True)
        }
        column = QFontMetricsF(self._code).horizontalAdvance(" ")
        self._code_options = {wrap: _option(False, column / 2, wrap=wrap) for wrap in (False, True)}  # tabs of four

    def _tracked(self, px: float, weight: QFont.Weight = QFont.Weight.Normal) -> QFont:
        return tracked(interface_font(px * self.share, weight), px * self.scale)

    def layout(
        self, text: str, codes: Sequence[tuple[int, int]], *, right_to_left: bool, wrap: bool, mono: bool = False
    ) -> QTextLayout:
        """A layout that has no lines yet.

        Args:
            text: The text.
            codes: Ranges of QChars that represent invisible characters; drawn small.
            right_to_left: Direction of the paragraph.
            wrap: Whether lines are broken at their width.
            mono: Whether it is a line of code.
        """
        layout = QTextLayout(text, self._code if mono else self.text)
        layout.setTextOption(self._code_options[wrap] if mono else self._options[right_to_left, wrap])
        if codes:
            layout.setFormats([format_range(a, b, self._small) for a, b in codes])
        return layout


def format_range(first: int, last: int, shape: QTextCharFormat) -> QTextLayout.FormatRange:
    """A format for the QChars from `first` up to `last` of a layout."""
    made = QTextLayout.FormatRange()
    made.start, made.length, made.format = first, last - first, shape
    return made


def reading_font(share: float = 1.0) -> QFont:
    """The font of the transcript's text; `share` as in `Faces`."""
    return tracked(interface_font(TEXT_PX * share), TEXT_PX * share * text_scale())


def tracked(font: QFont, px: float) -> QFont:
    """Sets Inter a little tighter, for reading sizes; macOS does so itself."""
    if sys.platform != "darwin":
        font.setLetterSpacing(QFont.SpacingType.AbsoluteSpacing, _TRACKING * px)
    return font


def x_of(line: QTextLine, position: int, edge: QTextLine.Edge = QTextLine.Edge.Leading) -> float:
    """The x of a QChar's edge in its line (`cursorToX` returns a pair, which Qt's stubs do not say)."""
    return cast("tuple[float, int]", line.cursorToX(position, edge))[0]


def _option(right_to_left: bool, space: float, *, wrap: bool) -> QTextOption:
    option = QTextOption()
    option.setWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere if wrap else QTextOption.WrapMode.NoWrap)
    option.setTextDirection(Qt.LayoutDirection.RightToLeft if right_to_left else Qt.LayoutDirection.LeftToRight)
    option.setAlignment(Qt.AlignmentFlag.AlignRight if right_to_left else Qt.AlignmentFlag.AlignLeft)
    option.setTabStopDistance(space * 8)
    return option
