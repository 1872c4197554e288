"""The entropy of the path's generated tokens as one thin line; its highest point is marked."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QPointF, QRectF, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QColor, QMouseEvent, QPainter, QPainterPath, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from ui.theme.palette import Palette
from ui.transcript.turn import Turn

_HEIGHT_PX, _TOP_PX, _BOTTOM_PX = 44, 10, 16  # a hairline at the top, the line between
_LINE_PX, _DOT_PX = 1.4, 3.2
_STREAM_MS = 100  # how often the line follows a stream
_LEAST_SPAN = 1.0  # nats: an even text is not blown up to full height


class EntropyStrip(QWidget):
    """A line of max-per-pixel entropies. Turns that did not change are not read again."""

    token_clicked = Signal(int, int)  # node_id, index

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
        self._turns: list[Turn] = []
        self._indices: list[npt.NDArray[np.int64]] = []  # generated tokens of each turn
        self._values: list[npt.NDArray[np.float32]] = []  # their entropies, nats
        self._stale: set[int] = set()
        self._follow = QTimer(self)
        self._follow.setSingleShot(True)
        self._follow.setInterval(_STREAM_MS)
        self._follow.timeout.connect(self.update)
        self.setFixedHeight(_HEIGHT_PX)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setAccessibleName(self.tr("Entropy of the generated tokens"))

    def sizeHint(self) -> QSize:
        return QSize(300, _HEIGHT_PX)

    def set_palette_of(self, palette: Palette) -> None:
        """Other colours."""
        self._palette = palette
        self.update()

    def set_turns(self, turns: Sequence[Turn]) -> None:
        """Shows another path."""
        self._turns = list(turns)
        self._indices = [np.empty(0, np.int64)] * len(turns)
        self._values = [np.empty(0, np.float32)] * len(turns)
        self._stale = set(range(len(turns)))
        self.update()

    def turn_changed(self, index: int) -> None:
        """Turn `index` has more tokens or other numbers; drawn within a tenth of a second."""
        self._stale.add(index)
        if not self._follow.isActive():
            self._follow.start()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        self._read()
        return sum(len(v) for v in self._values) < 2

    def token_at(self, x: float) -> tuple[int, int] | None:
        """Node and index of the token at x: the highest of those that share the pixel."""
        self._read()
        values = self._joined()
        if not len(values):
            return None
        per_pixel = len(values) / max(self.width(), 1)
        low = min(max(int((x - 0.5) * per_pixel), 0), len(values) - 1)
        high = max(min(int((x + 0.5) * per_pixel), len(values)), low + 1)
        return self._token(low + int(np.nanargmax(np.nan_to_num(values[low:high], nan=-1.0))))

    def _read(self) -> None:
        for index in self._stale:
            tokens = self._turns[index].tokens
            generated = tokens.generated()
            self._indices[index] = generated
            self._values[index] = tokens.entropy()[generated] if len(generated) else np.empty(0, np.float32)
        self._stale.clear()

    def _joined(self) -> npt.NDArray[np.float32]:
        return np.concatenate(self._values) if self._values else np.empty(0, np.float32)

    def _token(self, at: int) -> tuple[int, int]:
        starts = np.cumsum([0, *(len(v) for v in self._values)]).tolist()
        turn = bisect_right(starts, at) - 1
        return self._turns[turn].node_id, int(self._indices[turn][at - starts[turn]])

    def mousePressEvent(self, event: QMouseEvent) -> None:
        found = self.token_at(event.position().x())
        if event.button() is Qt.MouseButton.LeftButton and found is not None:
            self.token_clicked.emit(*found)

    def paintEvent(self, event: QPaintEvent) -> None:
        self._read()
        painter = QPainter(self)
        try:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.fillRect(QRectF(0, 0, self.width(), 1), QColor(self._palette.hairline))
            self._paint_line(painter)
        finally:
            painter.end()

    def _paint_line(self, painter: QPainter) -> None:
        points = self._points()
        if len(points) < 2:
            return
        path = QPainterPath(points[0])
        for point in points[1:]:
            path.lineTo(point)
        painter.setPen(QPen(QColor(self._palette.accent), _LINE_PX, j=Qt.PenJoinStyle.RoundJoin))
        painter.drawPath(path)
        peak = min(points, key=lambda p: p.y())
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(self._palette.surprise[-1]))
        painter.drawEllipse(peak, _DOT_PX, _DOT_PX)

    def _points(self) -> list[QPointF]:
        """One point a token, or one a pixel (the highest of its tokens) where there are more tokens than pixels."""
        values = np.nan_to_num(self._joined(), nan=0.0)
        width = max(self.width() - 2 * _DOT_PX, 1.0)
        if len(values) > width:
            edges = np.linspace(0, len(values), int(width), endpoint=False).astype(np.int64)
            values = np.maximum.reduceat(values, edges)
        if len(values) < 2:
            return []
        top = max(float(values.max()), _LEAST_SPAN)
        drawn = self.height() - _TOP_PX - _BOTTOM_PX
        xs = np.linspace(_DOT_PX, _DOT_PX + width, len(values))
        ys = _TOP_PX + drawn * (1 - values / top)
        return [QPointF(x, y) for x, y in zip(xs.tolist(), ys.tolist(), strict=True)]
