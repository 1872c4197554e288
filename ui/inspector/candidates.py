"""What became of the likeliest tokens: raw probability, what the sampler made of it, or which stage cut them.

Of one stage: probability before it, the mass up to there, and probability after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from ui.inspector.replay import Candidate
from ui.inspector.words import token
from ui.port.sampling import SAMPLER_STAGES
from ui.theme.fonts import caption_font, interface_font, mono_font, scaled
from ui.theme.scheme import current_theme
from ui.theme.text_size import panel_width
from ui.widgets.numbers import probability

ROW_HEIGHT, HEAD_HEIGHT = 23, 20
TOKEN_PX, SHARE_PX, AFTER_PX = 84, 44, 62
SO_FAR_PX = 54  # the mass up to a token, in numbers
_BAR_HEIGHT = 9
_MIDDLE = int(Qt.AlignmentFlag.AlignVCenter)
_RIGHT = _MIDDLE | int(Qt.AlignmentFlag.AlignRight)
CUT_WORDS = {spec.name: spec.label for spec in SAMPLER_STAGES if spec.label}


class CandidateLine(Struct, frozen=True):
    """One candidate as it is drawn."""

    data: bytes
    candidate: Candidate
    pinned: bool  # it is the token that stands there
    drawn: bool  # it is the one that the settings draw


class Candidates(QWidget):
    """A small table, painted: bars from raw (light) to after the sampler (dark), a thin line for the cumulative mass."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = current_theme()
        self._theme.scaled.connect(self._take_fonts)
        self._take_fonts()
        self.lines: tuple[CandidateLine, ...] = ()
        self.stage = ""
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        return QSize(300, scaled(HEAD_HEIGHT) + scaled(ROW_HEIGHT) * len(self.lines))

    def _take_fonts(self) -> None:
        self._number, self._head = interface_font(12), caption_font()
        self._mono, self._bold = mono_font(12.5), mono_font(12.5, QFont.Weight.DemiBold)
        self._token_px, self._share_px, self._after_px = (panel_width(px) for px in (TOKEN_PX, SHARE_PX, AFTER_PX))
        self._so_far_px = panel_width(SO_FAR_PX)
        self.updateGeometry()
        self.update()

    def show_lines(self, lines: Sequence[CandidateLine], stage: str = "") -> None:
        """Shows these, the likeliest first: before and after one stage, or ("") all of them."""
        resized = len(lines) != len(self.lines)
        self.lines, self.stage = tuple(lines), stage
        self.setAccessibleName(self.tr("Candidates"))
        self.setAccessibleDescription("; ".join(self._spoken(line) for line in self.lines))
        if resized:
            self.updateGeometry()
        self.update()

    def _spoken(self, line: CandidateLine) -> str:
        one = line.candidate
        after = self.tr("cut by {0}").format(cut_words(one.cut_by)) if one.cut_by else probability(one.after)
        data, before = token(line.data), probability(one.before)
        if not self.stage:
            return self.tr("{0}: raw {1}, after the sampler {2}").format(data, before, after)
        so_far, stage = probability(one.cumulative), cut_words(self.stage)
        return self.tr("{0}: before {1} {2}, mass so far {3}, after it {4}").format(data, stage, before, so_far, after)

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        if not self.lines:
            return
        palette = self._theme.palette
        painter = QPainter(self)
        painter.setLayoutDirection(Qt.LayoutDirection.LeftToRight)  # drawn by position: tokens and numbers
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        bars = QRectF(self._token_px + 6, 0, self._before_px - self._share_px - self._token_px - 12, 0)
        self._paint_heads(painter)
        top = max(max(line.candidate.before, line.candidate.after) for line in self.lines) or 1.0
        points: list[QPointF] = []
        for place, line in enumerate(self.lines):
            y = scaled(HEAD_HEIGHT) + place * scaled(ROW_HEIGHT)
            self._paint_line(painter, line, QRectF(bars.left(), y, bars.width(), scaled(ROW_HEIGHT)), top)
            points.append(QPointF(bars.left() + bars.width() * min(line.candidate.cumulative, 1.0), y + scaled(ROW_HEIGHT) / 2))
        painter.setPen(QPen(QColor(palette.soft), 1))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawPolyline(points)
        painter.end()

    @property
    def _before_px(self) -> int:
        """Where the column of the probability before ends; behind it stand the mass so far, of one stage, and what came out."""
        return self.width() - self._after_px - (self._so_far_px if self.stage else 0)

    def _paint_heads(self, painter: QPainter) -> None:
        height = scaled(HEAD_HEIGHT) - 4
        heads = {self._before_px: self.tr("RAW"), self.width(): self.tr("SAMPLER")}
        if self.stage:
            heads = {self._before_px: self.tr("BEFORE"), self.width(): self.tr("AFTER")}
            heads[self.width() - self._after_px] = self.tr("SO FAR")
        painter.setFont(self._head)
        painter.setPen(QColor(self._theme.palette.faint))
        for right, words in heads.items():
            painter.drawText(QRectF(0, 0, right, height), _RIGHT, words)

    def _paint_line(self, painter: QPainter, line: CandidateLine, bar: QRectF, top: float) -> None:
        palette, one, width = self._theme.palette, line.candidate, self.width()
        y, height = bar.top(), bar.height()
        cut = bool(one.cut_by)
        font = self._bold if line.pinned or line.drawn else self._mono
        painter.setFont(font)
        painter.setPen(QColor(palette.faint if cut else palette.accent if line.drawn else palette.text))
        metrics = QFontMetrics(font)
        words = metrics.elidedText(token(line.data), Qt.TextElideMode.ElideRight, self._token_px)
        painter.drawText(QRectF(0, y, self._token_px + 4, height), _MIDDLE, words)
        if cut:
            middle = y + height / 2 + 0.5
            painter.drawLine(QPointF(0, middle), QPointF(min(metrics.horizontalAdvance(words), self._token_px), middle))
        painter.setPen(Qt.PenStyle.NoPen)
        for share, colour, inset in ((one.before, palette.bar_rest, 0.0), (one.after, palette.bar, 2.5)):
            if share > 0:
                painter.setBrush(QColor(palette.hairline if cut else colour))
                thick = _BAR_HEIGHT - 2 * inset
                painter.drawRoundedRect(
                    QRectF(bar.left(), y + (height - thick) / 2, max(2.0, bar.width() * share / top), thick), 2, 2
                )
        painter.setFont(self._number)
        painter.setPen(QColor(palette.soft))
        painter.drawText(QRectF(0, y, self._before_px, height), _RIGHT, probability(one.before))
        if self.stage:
            painter.drawText(QRectF(0, y, width - self._after_px, height), _RIGHT, probability(one.cumulative))
        painter.setPen(QColor(palette.faint if cut else palette.text))
        painter.drawText(QRectF(0, y, width, height), _RIGHT, cut_words(one.cut_by) if cut else probability(one.after))


def cut_words(stage: str) -> str:
    """A stage as it is called in the window."""
    return CUT_WORDS.get(stage, stage)
