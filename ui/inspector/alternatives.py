"""The alternatives of a token as bars that are buttons, and the buttons for continuations and beams."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontMetrics, QKeyEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QAbstractButton, QDoubleSpinBox, QPushButton, QSizePolicy, QWidget

from ui.inspector.words import likely, percent, token
from ui.port import BeamSearchRules
from ui.theme.fonts import interface_font, mono_font, scaled
from ui.theme.scheme import current_theme
from ui.theme.text_size import fix_height, fix_width, panel_width
from ui.widgets.controls import Combo, button, column_in, row, row_in
from ui.widgets.labels import ElidedLabel, Label, plain_tooltip

ROW_HEIGHT = 26
USUAL = 11  # rows: the ten likeliest tokens, and the token itself
TOKEN_PX, MOST_TOKEN_PX = 74, 118  # limits of the width of the token column
RANK_PX = 22
_RANK_GAP_PX = 5
_RANK_FONT_PX = 11


class Alternative(Struct, frozen=True):
    """One candidate: `place` is its rank from 1, `share` its probability over that of the first."""

    token_id: int
    data: bytes
    logprob: float
    place: int
    share: float
    chosen: bool
    forbidden: str = ""  # why it could not be drawn; "" if it could
    so_far: float | None = None  # mass of this and all likelier tokens; None if unknown


class AlternativeList(QWidget):
    """The candidates of one place, the likeliest first."""

    chosen = Signal(int)  # token id
    previewed = Signal(int)  # token id: Space on its bar

    def __init__(self) -> None:
        super().__init__()
        self._column = column_in(self, spacing=0)
        self._shown: Sequence[Alternative] = ()
        self.buttons: list[AlternativeButton] = []
        for _ in range(USUAL):
            self._add()  # now, for a widget that is added later is the last in the tab order
        current_theme().scaled.connect(self._measure)

    def _add(self) -> None:
        bar = AlternativeButton()
        bar.clicked.connect(lambda: self._press(bar))
        bar.previewed.connect(self.previewed)
        bar.hide()
        self.buttons.append(bar)
        self._column.addWidget(bar)

    def show_alternatives(self, alternatives: Sequence[Alternative], *, can_choose: bool) -> None:
        """Shows alternatives; with `can_choose` they can be pressed."""
        while len(self.buttons) < len(alternatives):
            self._add()
        self._shown = alternatives
        self._measure()
        for bar, alternative in zip(self.buttons, alternatives, strict=False):
            bar.show_alternative(alternative, can_choose=can_choose and not alternative.chosen)
        for bar in self.buttons[len(alternatives) :]:
            bar.hide()

    def _measure(self) -> None:
        """Fits the columns of tokens and ranks to their texts at this text size."""
        metrics = QFontMetrics(mono_font(weight=QFont.Weight.DemiBold))
        widest = max((metrics.horizontalAdvance(token(alternative.data)) for alternative in self._shown), default=0)
        ranks = rank_width(self._shown)
        for bar in self.buttons:
            bar.token_px = min(max(widest, scaled(TOKEN_PX)), panel_width(MOST_TOKEN_PX))
            bar.rank_px = ranks
            bar.update()

    def press(self, place: int) -> None:
        """Presses an alternative by its number key (1-9)."""
        if place <= len(self.buttons) and not self.buttons[place - 1].isHidden():
            self.buttons[place - 1].click()

    def _press(self, bar: AlternativeButton) -> None:
        if bar.alternative is not None:
            self.chosen.emit(bar.alternative.token_id)


def rank_width(alternatives: Sequence[Alternative]) -> int:
    """Width of the rank column in pixels: the rank of a typed token may have several digits."""
    metrics = QFontMetrics(interface_font(_RANK_FONT_PX))
    widest = max((metrics.horizontalAdvance(str(each.place)) for each in alternatives), default=0)
    return max(scaled(RANK_PX), widest + scaled(_RANK_GAP_PX))


class AlternativeButton(QAbstractButton):
    """Rank, token, bar, probability. Return or a click chooses the token, Space previews its continuation."""

    previewed = Signal(int)  # token id

    def __init__(self) -> None:
        super().__init__()
        self.alternative: Alternative | None = None
        self.token_px, self.rank_px = TOKEN_PX, RANK_PX
        self._marked = False
        self._theme = current_theme()
        self._theme.scaled.connect(self._take_fonts)
        self._take_fonts()
        fix_height(self, ROW_HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setAttribute(Qt.WidgetAttribute.WA_Hover)

    def sizeHint(self) -> QSize:
        return QSize(300, scaled(ROW_HEIGHT))

    def _take_fonts(self) -> None:
        self._number, self._probability = interface_font(_RANK_FONT_PX), interface_font(12)
        self._token, self._token_chosen = mono_font(), mono_font(weight=QFont.Weight.DemiBold)
        self.update()

    def show_alternative(self, alternative: Alternative, *, can_choose: bool) -> None:
        self.alternative = alternative
        self.setEnabled(can_choose)
        self.setCursor(Qt.CursorShape.PointingHandCursor if can_choose else Qt.CursorShape.ArrowCursor)
        words = self.tr("{0}, probability {1}, rank {2}").format(
            token(alternative.data), likely(alternative.logprob), alternative.place
        )
        words = self.tr("{0}, {1}").format(words, alternative.forbidden) if alternative.forbidden else words
        so_far = alternative.so_far
        self.setAccessibleDescription("" if so_far is None else self.tr("{0} up to here").format(percent(so_far)))
        self.setAccessibleName(self.tr("{0}, chosen").format(words) if alternative.chosen else words)
        self.setToolTip(plain_tooltip(alternative.forbidden))
        self.show()
        self.update()

    def mark(self, marked: bool) -> None:  # a state, not an option
        """Highlights the button as the target of the next Return."""
        self._marked = marked
        self.update()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Space and self.alternative is not None:
            self.previewed.emit(self.alternative.token_id)
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.click()
        else:
            super().keyPressEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        shown = self.alternative
        if shown is None:
            return
        palette = self._theme.palette
        painter = QPainter(self)
        painter.setLayoutDirection(Qt.LayoutDirection.LeftToRight)  # drawn by position: tokens and numbers
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        middle = int(Qt.AlignmentFlag.AlignVCenter)
        height, width = self.height(), self.width()
        if self._marked:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(palette.selection))
            painter.drawRoundedRect(QRectF(0, 0.5, width, height - 1), 4, 4)
        painter.setFont(self._number)
        painter.setPen(QColor(palette.faint))
        painter.drawText(QRectF(0, 0, self.rank_px - 2, height), middle, str(shown.place))
        font = self._token_chosen if shown.chosen else self._token
        painter.setFont(font)
        hovered = self.isEnabled() and (self.underMouse() or self.hasFocus())
        ink = palette.faint if shown.forbidden else palette.text
        painter.setPen(QColor(palette.accent if hovered else ink))
        text = QFontMetrics(font).elidedText(token(shown.data), Qt.TextElideMode.ElideRight, self.token_px)
        painter.drawText(QRectF(self.rank_px, 0, self.token_px + 4, height), middle, text)
        painter.setFont(self._probability)
        painter.setPen(QColor(palette.faint if shown.forbidden else palette.soft))
        right = middle | int(Qt.AlignmentFlag.AlignRight)
        share_px = scaled(46)
        painter.drawText(QRectF(width - share_px, 0, share_px, height), right, likely(shown.logprob))
        left = self.rank_px + self.token_px + 8
        room = width - left - share_px - 8
        bar = QRectF(left, (height - 9) / 2, max(3.0, room * min(shown.share, 1.0)), 9)
        painter.setPen(Qt.PenStyle.NoPen)
        fill = palette.hairline if shown.forbidden else palette.bar_rest
        painter.setBrush(QColor(palette.bar if shown.chosen or hovered else fill))
        painter.drawRoundedRect(bar, 3, 3)
        if shown.forbidden:
            painter.setFont(self._number)
            painter.setPen(QColor(palette.soft))
            words = QFontMetrics(self._number).elidedText(shown.forbidden, Qt.TextElideMode.ElideRight, int(room) - 8)
            painter.drawText(QRectF(left + 6, 0, room - 6, height), middle, words)
        if self.hasFocus():
            painter.setPen(QPen(QColor(palette.accent), 1))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            edge = self.rank_px - 5.5  # around token and bar, without rank and probability
            painter.drawRoundedRect(QRectF(edge, 1.5, left + room + 6 - edge, height - 3), 4, 4)
        painter.end()


COUNTS = (2, 4, 8)


class CountButtons(QWidget):
    """A button for each of `COUNTS`, followed by words."""

    wanted = Signal(int)  # the count

    def __init__(self, words: str) -> None:
        super().__init__()
        row = row_in(self, spacing=7)
        self.buttons: dict[int, QPushButton] = {}
        for count in COUNTS:
            choice = QPushButton(str(count))
            choice.setProperty("kind", "quiet")
            choice.setFont(interface_font(12.5))
            fix_width(choice, 32)
            choice.setAccessibleName(f"{count} {words}")
            choice.clicked.connect(lambda _checked=False, count=count: self.wanted.emit(count))
            self.buttons[count] = choice
            row.addWidget(choice)
        row.addWidget(ElidedLabel(words, "soft", interface_font(12.5)), 1)


STEEPEST = 50.0  # bound of the length penalty on both sides, as in the runtime
FONT_PX = 12.5


class BeamRows(QWidget):
    """The buttons that start a beam search, and a link that unfolds its rules."""

    def __init__(self) -> None:
        super().__init__()
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.ways = CountButtons(self.tr("beams from here"))
        self.more = button(self.tr("rules"), "link")
        self.more.setFont(interface_font(FONT_PX))
        self.more.setCheckable(True)
        self.more.setAccessibleName(self.tr("Rules of the beam search"))
        self.penalty = QDoubleSpinBox()
        self.penalty.setRange(-STEEPEST, STEEPEST)
        self.penalty.setSingleStep(0.1)
        self.penalty.setValue(BeamSearchRules().length_penalty)
        self.penalty.setFont(interface_font(FONT_PX))
        self.penalty.setAccessibleName(self.tr("Length penalty"))
        hint = self.tr(
            "Log-probabilities are divided by the length to this power: above 0 favours longer beams, below 0 shorter ones."
        )
        fix_width(self.penalty, 64)
        self.penalty.lineEdit().setTextMargins(5, 0, 0, 0)
        self.ends = Combo(self.tr("The search ends"))
        for words, rule in (
            (self.tr("when no unfinished beam is better"), False),
            (self.tr("when enough beams are complete"), True),
            (self.tr("when no unfinished beam can become better"), "never"),
        ):
            self.ends.addItem(words, rule)
        self.ends.setMinimumContentsLength(12)
        self.ends.setSizeAdjustPolicy(Combo.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self._rules = QWidget()
        length, ends = (Label(words, "soft", interface_font(FONT_PX)) for words in (self.tr("length penalty"), self.tr("ends")))
        for part in (length, self.penalty):
            part.setToolTip(plain_tooltip(hint))
        self.penalty.setAccessibleDescription(hint)
        rules = column_in(self._rules, row(length, 1, self.penalty), spacing=4)
        rules.addLayout(row(ends, (self.ends, 1)))
        self._rules.hide()
        self.more.toggled.connect(self._rules.setVisible)
        column_in(self, row((self.ways, 1), self.more), self._rules, spacing=6)

    @property
    def rules(self) -> BeamSearchRules:
        """The rules as they are set, for the buttons and for the menu."""
        return BeamSearchRules(self.penalty.value(), self.ends.currentData())
