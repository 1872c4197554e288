"""The card of the token under the pointer: its entropy and its likeliest alternatives."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from PySide6.QtCore import QEasingCurve, QPointF, QRect, QRectF, QSize, Qt, QVariantAnimation
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from ui.port import TokenRecord, translate
from ui.theme.fonts import interface_font, mono_font, text_scale
from ui.theme.palette import Palette
from ui.theme.scheme import current_theme
from ui.transcript.path import TranscriptTurn
from ui.transcript.text.compose import is_hidden
from ui.transcript.text.faces import tracked
from ui.transcript.text.ink import SHADOW_PX, paint_shadow
from ui.widgets import numbers
from ui.widgets.visible import visible_bytes

_BEFORE_CHARACTERS = 14


def words_of(record: TokenRecord, resolved: Sequence[bytes]) -> list[str]:
    """The text of each alternative of a token; `#36413` if its bytes are not known.

    Args:
        record: The token; its own bytes are known without a vocabulary.
        resolved: The bytes of its alternatives; unknown ones are empty or missing at the end.
    """
    words = []
    for place, token in enumerate(record.top_ids):
        data = resolved[place] if place < len(resolved) else b""
        if token == record.token_id:
            data = record.token_bytes
        words.append(visible_bytes(data) if data else f"#{token}")
    return words


def words_before(turns: Sequence[TranscriptTurn], turn: int, index: int) -> str:
    """The last words before a token on one line, with an ellipsis if they are shortened."""
    text = ""
    while turn >= 0 and len(text) <= _BEFORE_CHARACTERS:
        tokens = turns[turn].tokens
        for position in range(index - 1, -1, -1):
            if not is_hidden(tokens.marks[position], template=False):
                text = tokens.texts[position][-2 * _BEFORE_CHARACTERS :] + text
            if len(text) > _BEFORE_CHARACTERS:
                break
        turn -= 1
        if turn >= 0 and len(text) <= _BEFORE_CHARACTERS:
            index = len(turns[turn].tokens)
            text = "\n" + text
    stripped = text.strip()
    return _shortened(visible_bytes(stripped.encode(errors="replace"))) if stripped else ""


def _shortened(text: str) -> str:
    """Whole words from the end."""
    if len(text) <= _BEFORE_CHARACTERS:
        return text
    tail = text[-_BEFORE_CHARACTERS:]
    space = tail.find(" ")
    return "…" + (tail[space + 1 :] if 0 <= space < len(tail) - 1 else tail)


ALTERNATIVES = 4
_WIDTH, _PAD_X, _PAD_Y, _ROW, _GAP = 218, 12, 10, 23, 8
_WORD_LEAST, _WORD_MOST, _BAR, _BAR_HEIGHT, _RADIUS = 62, 130, 74, 5, 10
_BELOW_PX = 8  # between the token's span and the card
_BASELINE = 0.19  # distance below the middle of a row, in row heights
_BEFORE_PX = 4  # how far the card begins left of the token


class CardRow(Struct, frozen=True):
    """One alternative."""

    word: str
    probability: float
    chosen: bool


class CardContent(Struct, frozen=True):
    """The content of the card, drawn as plain text."""

    before: str
    entropy: str
    rows: tuple[CardRow, ...]
    lines: tuple[tuple[str, str], ...] = ()  # left and right text of the lines about a second model

    @property
    def spoken(self) -> str:
        """The same in one sentence, for a screen reader."""
        chosen = translate("Transcript", " (chosen)")
        rows = ", ".join(f"{r.word} {numbers.probability(r.probability)}{chosen if r.chosen else ''}" for r in self.rows)
        more = "".join(f"; {left} {right}" for left, right in self.lines)
        return translate("Transcript", "after {0}, {1}: {2}").format(self.before, self.entropy, rows + more)


def card_content(record: TokenRecord, before: str, words: Sequence[str], own: str) -> CardContent | None:
    """The card of a token; None if it was not scored.

    Args:
        record: The token.
        before: The end of the text in front of it.
        words: The text of each of the record's alternatives, in order.
        own: The text of the token itself.
    """
    if record.logprob is None:
        return None
    rows = [
        CardRow(words[i], math.exp(record.top_logprobs[i]), chosen=token == record.token_id)
        for i, token in enumerate(record.top_ids[:ALTERNATIVES])
    ]
    if not any(row.chosen for row in rows):
        rows.append(CardRow(own, math.exp(record.logprob), chosen=True))
    return CardContent(before, "" if record.entropy is None else numbers.bits(record.entropy), tuple(rows))


class Card(QWidget):
    """A small sheet that floats over the transcript and takes no part in mouse or focus."""

    def __init__(self, palette: Palette, parent: QWidget) -> None:
        super().__init__(parent)
        self._palette = palette
        self._content: CardContent | None = None
        self._fade = 1.0
        self._animation = QVariantAnimation(self)
        self._animation.valueChanged.connect(self._set_fade)
        self._animation.setEasingCurve(QEasingCurve.Type.OutCubic)
        self._animation.finished.connect(self._faded)
        self._leaving = False  # fading out
        self.set_scale(1.0)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.hide()

    @property
    def content(self) -> CardContent | None:
        """The shown content; None while hidden."""
        return self._content if self.isVisible() and not self._leaving else None

    def set_palette_of(self, palette: Palette) -> None:
        self._palette = palette
        self.update()

    def set_scale(self, share: float) -> None:
        """Sets the text size, as a share of the window's text size."""
        self._scale = share * text_scale()
        self._text = tracked(interface_font(12.5 * share), 12.5 * self._scale)
        self._mono = mono_font(12.5 * share)
        self._mono_bold = mono_font(12.5 * share, QFont.Weight.Bold)

    def show_at(self, content: CardContent, token: QRect, within: QRect) -> None:
        """Shows the card under the token (above, where there is no room below), inside `within`."""
        self._content = content
        size = self._sheet_size()
        x = min(max(token.left() - _BEFORE_PX, within.left() + 4), max(within.right() - size.width() - 4, within.left()))
        y = token.bottom() + _BELOW_PX
        if y + size.height() > within.bottom() - 4:
            y = max(token.top() - _BELOW_PX - size.height(), within.top() + 4)
        self.setGeometry(QRect(x, y, size.width(), size.height()).adjusted(-SHADOW_PX, -SHADOW_PX, SHADOW_PX, SHADOW_PX))
        self.setAccessibleName(content.spoken)
        self.raise_()
        arriving = not self.isVisible() or self._leaving
        self._leaving = False
        self.show()
        self.update()
        if arriving:
            self._run(1.0)

    def leave(self) -> None:
        if self.isVisible() and not self._leaving:
            self._leaving = True
            self._run(0.0)

    def _set_fade(self, value: float) -> None:
        self._fade = value
        self.update()

    def _run(self, to: float) -> None:
        self._animation.stop()
        duration = current_theme().fade_ms
        if not duration:
            self._fade = to
            self._faded()
            return
        self._animation.setDuration(duration)
        self._fade = self._fade if to == 0.0 or self._fade < 1.0 else 0.0
        self._animation.setStartValue(self._fade)
        self._animation.setEndValue(to)
        self._animation.start()

    def _faded(self) -> None:
        if self._leaving:
            self.hide()
            self._leaving = False
            self._fade = 0.0

    # ---- painting -------------------------------------------------------------------------------------------------

    def _word_width(self) -> float:
        assert self._content is not None
        metrics = QFontMetricsF(self._mono_bold)
        widest = max((metrics.horizontalAdvance(r.word) for r in self._content.rows), default=0.0)
        return min(max(widest + 2, _WORD_LEAST * self._scale), _WORD_MOST * self._scale)

    def _sheet_size(self) -> QSize:
        assert self._content is not None
        rows = 1 + len(self._content.rows) + len(self._content.lines)
        width = _WIDTH * self._scale + self._word_width() - _WORD_LEAST * self._scale
        return QSize(round(width), round((rows * _ROW + 2 * _PAD_Y) * self._scale))

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # Qt's signature
        if self._content is None:
            return
        painter = QPainter(self)
        painter.setLayoutDirection(Qt.LayoutDirection.LeftToRight)  # drawn by position: tokens and numbers
        try:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setOpacity(self._fade)
            self._paint(painter, self._content)
        finally:
            painter.end()

    def _paint(self, painter: QPainter, content: CardContent) -> None:
        sheet = QRectF(self.rect()).adjusted(SHADOW_PX, SHADOW_PX, -SHADOW_PX, -SHADOW_PX)
        paint_shadow(painter, sheet, _RADIUS, dark=self._palette.dark)
        painter.setPen(QPen(QColor(self._palette.hairline), 1) if self._palette.dark else Qt.PenStyle.NoPen)
        painter.setBrush(QColor(self._palette.card))
        painter.drawRoundedRect(sheet, _RADIUS, _RADIUS)
        inner = sheet.adjusted(_PAD_X * self._scale, _PAD_Y * self._scale, -_PAD_X * self._scale, -_PAD_Y * self._scale)
        row = QRectF(inner.left(), inner.top(), inner.width(), _ROW * self._scale)
        self._paint_head(painter, row, content)
        top = max((r.probability for r in content.rows), default=1.0) or 1.0
        for alternative in content.rows:
            row.translate(0, row.height())
            self._paint_row(painter, row, alternative, top)
        for place, line in enumerate(content.lines):
            row.translate(0, row.height())
            self._paint_line(painter, row, line, ruled=not place)

    def _paint_head(self, painter: QPainter, row: QRectF, content: CardContent) -> None:
        painter.setPen(QColor(self._palette.soft))
        painter.setFont(self._text)
        metrics = QFontMetricsF(self._text)
        right = metrics.horizontalAdvance(content.entropy)
        _write(painter, row, content.entropy, Qt.AlignmentFlag.AlignRight)
        lead = translate("Transcript", "after") if content.before else translate("Transcript", "at the start")
        _write(painter, row, lead)
        x = metrics.horizontalAdvance(lead) + _GAP * self._scale
        room = row.width() - x - right - _GAP * self._scale
        painter.setFont(self._mono)
        before = QFontMetricsF(self._mono).elidedText(content.before, Qt.TextElideMode.ElideLeft, room)
        _write(painter, row.adjusted(x, 0, 0, 0), before)

    def _paint_row(self, painter: QPainter, row: QRectF, alternative: CardRow, top: float) -> None:
        palette, scale = self._palette, self._scale
        font = self._mono_bold if alternative.chosen else self._mono
        painter.setFont(font)
        painter.setPen(QColor(palette.accent if alternative.chosen else palette.text))
        word = self._word_width()
        _write(painter, row, QFontMetricsF(font).elidedText(alternative.word, Qt.TextElideMode.ElideRight, word))
        width = max(_BAR * scale * alternative.probability / top, 2.0)
        height = _BAR_HEIGHT * scale
        bar = QRectF(row.left() + word + _GAP * scale, row.center().y() - height / 2, width, height)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(palette.bar))
        radius = min(3.0 * scale, width / 2, height / 2)
        painter.drawRoundedRect(bar, radius, radius)
        painter.setFont(self._text)
        painter.setPen(QColor(palette.soft))
        _write(painter, row, numbers.probability(alternative.probability), Qt.AlignmentFlag.AlignRight)

    def _paint_line(self, painter: QPainter, row: QRectF, line: tuple[str, str], *, ruled: bool) -> None:
        if ruled:
            painter.setPen(QPen(QColor(self._palette.hairline), 1))
            painter.drawLine(QPointF(row.left(), round(row.top()) + 0.5), QPointF(row.right(), round(row.top()) + 0.5))
        painter.setFont(self._text)
        painter.setPen(QColor(self._palette.text))
        _write(painter, row, line[0])
        _write(painter, row, line[1], Qt.AlignmentFlag.AlignRight)


def _write(painter: QPainter, row: QRectF, text: str, align: Qt.AlignmentFlag = Qt.AlignmentFlag.AlignLeft) -> None:
    """Writes a word or number; both faces share a baseline, half a capital's height below the middle of the row."""
    metrics = QFontMetricsF(painter.font())
    x = row.right() - metrics.horizontalAdvance(text) if align is Qt.AlignmentFlag.AlignRight else row.left()
    painter.drawText(QPointF(x, round(row.center().y() + row.height() * _BASELINE)), text)
