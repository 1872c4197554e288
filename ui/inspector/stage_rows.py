"""The sampler's stages as rows, and a table of the likeliest tokens before and after them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from PySide6.QtCore import QPointF, QRectF, QSignalBlocker, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QPushButton, QSizePolicy, QWidget

from ui.inspector import words
from ui.inspector.replay import Candidate, Outcome
from ui.inspector.words import token
from ui.port import SAMPLER_STAGES, SamplingOptions, Stage, translate
from ui.theme.fonts import caption_font, interface_font, mono_font, scaled
from ui.theme.scheme import current_theme
from ui.theme.text_size import fix_digits, fix_height, fix_width, panel_width
from ui.widgets.controls import fill, row_in
from ui.widgets.dials import Dial, DialSlider
from ui.widgets.labels import Label, plain_tooltip
from ui.widgets.numbers import UNKNOWN, count, probability

_SPECS = {spec.name: spec for spec in SAMPLER_STAGES}
RANDOM = {"draw", *(spec.name for spec in SAMPLER_STAGES if spec.draws is not None)}  # stages with a random number
CUTTING = {spec.name for spec in SAMPLER_STAGES if spec.label}  # stages that remove tokens and change no score
ROW_HEIGHT, HEAD_HEIGHT = 23, 20
TOKEN_PX, SHARE_PX, AFTER_PX = 84, 44, 62
SO_FAR_PX = 54  # the column of the cumulative mass
_BAR_HEIGHT = 9
_MIDDLE = int(Qt.AlignmentFlag.AlignVCenter)
_RIGHT = _MIDDLE | int(Qt.AlignmentFlag.AlignRight)
CUT_WORDS = {spec.name: spec.label for spec in SAMPLER_STAGES if spec.label}


def stage_words(outcome: Outcome, stage: Stage, sampling: SamplingOptions) -> str:
    """Describes a stage: how many tokens it left, their mass before it, and its random number."""
    place = outcome.stages.index(stage)
    if place == 0:
        return translate("Stages", "The model's own probabilities of {0} tokens, unchanged.").format(count(stage.kept))
    before = outcome.stages[place - 1]
    said = _numbered(stage, before, sampling) if stage.name in RANDOM else ""
    return " ".join(part for part in (_left(stage, before), said) if part)


def _left(stage: Stage, before: Stage) -> str:
    if stage.kept == before.kept:
        all_left = translate("Stages", "All {0} tokens are left.").format(count(stage.kept))
        return "" if stage.name in RANDOM else all_left
    left = translate("Stages", "{0} of {1} tokens are left").format(count(stage.kept), count(before.kept))
    if stage.name not in CUTTING:
        return f"{left}."
    # both normalisers are sums of the same weights
    mass = probability(stage.normaliser / before.normaliser)
    return translate("Stages", "{0}, which had {1} of the mass.").format(left, mass)


def _numbered(stage: Stage, before: Stage, sampling: SamplingOptions) -> str:
    """Describes the effect of a stage's random number."""
    if stage.name == "draw":
        if stage.u is None:
            return translate("Stages", "Temperature 0: the likeliest token is taken, without a random number.")
        said = translate("Stages", "u\u00a0=\u00a0{0} points into the {1} that are left.")
        return said.format(words.share(stage.u), count(before.kept))
    if stage.u is None:
        return ""
    spec, number = _SPECS[stage.name], translate("Stages", "u\u00a0=\u00a0{0}").format(words.share(stage.u))
    chance = None if spec.chance is None else getattr(sampling, spec.parameters[0].name)
    if spec.chance is None or chance is None:
        return f"{number}."
    if stage.u >= chance:
        return translate("Stages", "{0} is not below its chance of {1}: it did nothing.").format(number, probability(chance))
    threshold = getattr(sampling, spec.parameters[1].name)
    least = probability(spec.parameters[1].default if threshold is None else threshold)
    said = translate("Stages", "{0} is below its chance of {1}").format(number, probability(chance))
    return translate("Stages", spec.chance.idle if stage.kept == before.kept else spec.chance.acted).format(said, least)


NAME_PX, KEPT_PX, CHANCE_PX = 92, 50, 36
STAGE_HEIGHT = 25
_BEYOND_PX = 6  # the background of a chosen row extends so far to both sides


class StageName(QPushButton):
    """A stage's name as a button that shows the stage's numbers; elided if it does not fit."""

    def __init__(self) -> None:
        super().__init__()
        self.setCheckable(True)
        self.setFlat(True)
        self.setFont(interface_font(12))
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self._theme = current_theme()
        fix_width(self, NAME_PX)

    def sizeHint(self) -> QSize:
        return QSize(self.width(), self.fontMetrics().height())

    def setText(self, text: str) -> None:
        super().setText(text)
        cut = self.fontMetrics().horizontalAdvance(text) > self.width()
        self.setToolTip(plain_tooltip(text) if cut else "")

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        palette = self._theme.palette
        active = self.isChecked() or (self.isEnabled() and self.underMouse())
        painter = QPainter(self)
        painter.setPen(QColor(palette.accent if self.hasFocus() else palette.text if active else palette.soft))
        shown = self.fontMetrics().elidedText(self.text(), Qt.TextElideMode.ElideRight, self.width())
        painter.drawText(self.rect(), int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft), shown)
        if self.hasFocus():
            y = self.rect().center().y() + self.fontMetrics().height() // 2
            painter.drawLine(0, y, self.fontMetrics().horizontalAdvance(shown), y)
        painter.end()


class StageRow(QWidget):
    """Name at the left, a widget in the middle, tokens left and a probability at the right.

    Args:
        stage: Its name among `Stage.name`.
        words: Its name in the window.
        middle: The widget in the middle; None: empty.
    """

    chosen = Signal(str, bool)  # stage, whether its numbers are to be shown

    def __init__(self, stage: str, words: str = "", middle: QWidget | None = None) -> None:
        super().__init__()
        fix_height(self, STAGE_HEIGHT)
        self.stage = stage
        self._theme = current_theme()
        self.name = StageName()
        self.name.setText(words)
        self.name.toggled.connect(lambda on: self.chosen.emit(self.stage, on))
        self.kept = Label("", "faint", interface_font(11))
        self.share = Label("", "", interface_font(12))
        for label, width in ((self.kept, KEPT_PX), (self.share, CHANCE_PX)):
            fix_digits(label, width)
            label.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        row = row_in(self, self.name, spacing=4, margins=(_BEYOND_PX, 0, _BEYOND_PX, 0))
        fill(row, (QWidget() if middle is None else middle, 1), self.kept, self.share)

    @property
    def stops(self) -> tuple[QWidget, ...]:
        return (self.name,)

    def show_result(self, kept: int | None, share: float | None) -> None:
        """Shows the number of tokens left, and the probability of the pinned token; None: the stage does nothing."""
        self.kept.setText("" if kept is None else count(kept))
        self.kept.setAccessibleName("" if kept is None else self.tr("{0} tokens left").format(count(kept)))
        words = UNKNOWN if kept is not None else ""
        self.share.setText(words if share is None else self.tr("cut") if share == 0 else probability(share))

    def can_be_chosen(self, can: bool) -> None:
        """Enables the name, if the stage has numbers to show."""
        self.name.setEnabled(can)
        self.name.setCursor(Qt.CursorShape.PointingHandCursor if can else Qt.CursorShape.ArrowCursor)

    def mark(self, on: bool) -> None:
        """Marks the row as chosen or not; emits nothing."""
        with QSignalBlocker(self.name):
            self.name.setChecked(on)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        if not self.name.isChecked():
            return
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(self._theme.palette.selection))
        painter.drawRoundedRect(QRectF(self.rect()), 4, 4)
        painter.end()


class DialRow(StageRow):
    """A stage with a slider for one setting."""

    moved = Signal(str, object)  # setting, value

    def __init__(self, dial: Dial) -> None:
        self.slider = DialSlider(dial)
        super().__init__(dial.stage, middle=self.slider)
        self.slider.moved.connect(self._moved)
        self._name()

    @property
    def stops(self) -> tuple[QWidget, ...]:
        return self.name, self.slider

    def set_value(self, value: float) -> None:
        """Shows a value, even beyond the slider's range; emits nothing."""
        self.slider.show_setting(value)
        self._name()

    def _moved(self, value: float) -> None:
        self._name()
        self.moved.emit(self.slider.dial.setting, value)

    def _name(self) -> None:
        self.name.setText(f"{self.slider.dial.words} {self.slider.words}")


class CandidateLine(Struct, frozen=True):
    """One row of the table of candidates."""

    data: bytes
    candidate: Candidate
    pinned: bool  # the token of the text
    drawn: bool  # the token that the settings draw


class Candidates(QWidget):
    """A painted table: bars before (light) and after the sampler (dark), a thin line for the cumulative mass."""

    def __init__(self) -> None:
        super().__init__()
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
        """Shows candidates, the likeliest first: before and after one stage, or ("") all stages."""
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
        """The right edge of the first number column; right of it are the cumulative mass (for one stage) and the result."""
        return self.width() - self._after_px - (self._so_far_px if self.stage else 0)

    def _paint_heads(self, painter: QPainter) -> None:
        height = scaled(HEAD_HEIGHT) - 4
        heads = {self._before_px: self.tr("RAW"), self.width(): self.tr("SAMPLER")}
        if self.stage:
            heads = {self._before_px: self.tr("BEFORE"), self.width(): self.tr("AFTER")}
            heads[self.width() - self._after_px] = self.tr("SO FAR")
        painter.setFont(self._head)
        painter.setPen(QColor(self._theme.palette.faint))
        for right, head in heads.items():
            painter.drawText(QRectF(0, 0, right, height), _RIGHT, head)

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
    """The name of a stage in the window."""
    return CUT_WORDS.get(stage, stage)
