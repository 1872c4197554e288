"""The draw as a line from 0 to 1: each token has the length of its probability, and u points at one of them."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPolygonF
from PySide6.QtWidgets import QSizePolicy, QWidget

from ui.theme.scheme import current_theme

HEIGHT, LINE_TOP, LINE_HEIGHT = 26, 10, 10
_GAP_PX = 1.0  # between two tokens
_LEAST_PX = 1.5  # narrower ones are drawn as one rest


class DrawLine(QWidget):
    """Draws the last distribution in its order; the token that u falls on in the accent."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = current_theme()
        self._shares: tuple[float, ...] = ()
        self._u: float | None = None
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        return QSize(200, HEIGHT)

    def show_draw(self, shares: Sequence[float], u: float | None, spoken: str) -> None:
        """Shows probabilities by falling order (they need not add up to 1: the rest is beyond) and the number drawn."""
        self._shares, self._u = tuple(shares), u
        self.setAccessibleName(spoken)
        self.update()

    def hit(self) -> int | None:
        """The place of the token that u falls on; None beyond what is known, or without u."""
        if self._u is None:
            return None
        edge = 0.0
        for place, share in enumerate(self._shares):
            edge += share
            if self._u < edge:
                return place
        return None

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        palette, width = self._theme.palette, float(self.width() - 8)
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(palette.hairline))
        painter.drawRoundedRect(QRectF(4, LINE_TOP, width, LINE_HEIGHT), 3, 3)
        hit, edge = self.hit(), 0.0
        for place, share in enumerate(self._shares):
            left, length = 4 + width * edge, width * share
            edge += share
            if length < _LEAST_PX and place != hit:
                continue
            painter.setBrush(QColor(palette.bar if place == hit else palette.bar_rest))
            painter.drawRoundedRect(QRectF(left, LINE_TOP, max(length - _GAP_PX, _LEAST_PX), LINE_HEIGHT), 2, 2)
        if self._u is not None:
            x = 4 + width * self._u
            painter.setBrush(QColor(palette.text))
            painter.drawPolygon(QPolygonF([QPointF(x - 4, 2), QPointF(x + 4, 2), QPointF(x, LINE_TOP - 1)]))
            painter.drawRect(QRectF(x - 0.5, LINE_TOP - 2, 1, LINE_HEIGHT + 4))
        painter.end()
