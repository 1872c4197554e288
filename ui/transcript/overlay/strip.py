"""The entropy of the path's generated tokens as a thin line with its maximum marked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from time import perf_counter

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QLineF, QPointF, QRectF, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QColor, QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from ui.theme.palette import Palette
from ui.transcript.path import TranscriptTurn
from ui.transcript.tokens import Tokens

_HEIGHT_PX, _TOP_PX, _BOTTOM_PX = 44, 10, 16  # a hairline at the top, the line between
_LINE_PX, _DOT_PX = 1.4, 3.2
_PIXELS_A_POINT = 2
AT_ONCE_SECONDS = 0.0002  # for reading another path at once, which is enough for a short one
SLICE_SECONDS = 0.0015  # for reading in each later slice
SLICE_MS = 4  # between slices
_REACH_PX = 3  # maximum distance of a click from a peak
_STREAM_MS = 100  # between updates while tokens stream
_LEAST_SPAN = 1.0  # nats of the full height, at least, so that low entropies look low


class _Series:
    """The entropies of one turn's generated tokens; reads only new tokens."""

    def __init__(self, turn: TranscriptTurn) -> None:
        self.turn = turn
        self._tokens: Tokens | None = None  # the object that was read
        self._revision = turn.revision
        self._read = 0
        self._count = 0
        self._indices = np.empty(0, np.int32)
        self._values = np.empty(0, np.float32)

    @property
    def indices(self) -> npt.NDArray[np.int32]:
        """Indices into the run, ascending."""
        return self._indices[: self._count]

    @property
    def values(self) -> npt.NDArray[np.float32]:
        """Entropies of these tokens in nats; NaN for unscored tokens."""
        return self._values[: self._count]

    def read(self) -> None:
        """Reads the turn's new tokens, or all of them if they changed."""
        if self._tokens is not self.turn.tokens or self._revision != self.turn.revision:
            self._tokens, self._revision, self._read, self._count = self.turn.tokens, self.turn.revision, 0, 0
        new = self._tokens.generated(self._read)
        if len(new):
            end = self._count + len(new)
            if end > len(self._values):
                self._indices = np.resize(self._indices, end * 3 // 2)
                self._values = np.resize(self._values, end * 3 // 2)
            self._indices[self._count : end] = new
            self._values[self._count : end] = self._tokens.entropy(self._read)[new - self._read]
            self._count = end
        self._read = len(self._tokens)


class EntropyStrip(QWidget):
    """A line of entropies, the maximum per point. Unchanged turns are not read again."""

    token_clicked = Signal(int, int)  # node_id, index

    def __init__(self, palette: Palette, parent: QWidget) -> None:
        super().__init__(parent)
        self._palette = palette
        self._series: list[_Series] = []
        self._stale: set[int] = set()
        self._drawn = np.empty(0, np.float32)  # entropies; of the previous path until this one is read
        self._follow = QTimer(self, singleShot=True, interval=_STREAM_MS)
        self._follow.timeout.connect(self.update)
        self._slices = QTimer(self, singleShot=True, interval=SLICE_MS)
        self._slices.timeout.connect(self._slice)
        self.setFixedHeight(_HEIGHT_PX)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setAccessibleName(self.tr("Entropy of the generated tokens"))
        self.setToolTip(self.tr("Entropy of the generated tokens: how open each choice was. A click shows the token."))

    def sizeHint(self) -> QSize:
        return QSize(300, _HEIGHT_PX)

    def set_palette_of(self, palette: Palette) -> None:
        self._palette = palette
        self.update()

    def set_turns(self, turns: Sequence[TranscriptTurn]) -> None:
        held = {id(series.turn): series for series in self._series}
        self._series = [held.get(id(turn)) or _Series(turn) for turn in turns]
        self._stale = set(range(len(turns)))
        self._slice(AT_ONCE_SECONDS)

    def turn_changed(self, index: int) -> None:
        """Redraws the line within a tenth of a second, as turn `index` has changed."""
        self._stale.add(index)
        if not self._follow.isActive():
            self._follow.start()

    @property
    def is_read(self) -> bool:
        """Whether the whole path was read; until then the line of the previous path is drawn."""
        return not self._stale

    @property
    def is_empty(self) -> bool:
        count = 0
        for series in self._series:
            series.read()
            count += int(np.count_nonzero(~np.isnan(series.values)))  # servers report none
            if count > 1:
                return False
        return True

    def token_at(self, x: float) -> tuple[int, int] | None:
        """Node id and index of the token at x; of several tokens near x, the one with the highest entropy."""
        self._read()
        values = self._joined()
        if not len(values):
            return None
        per_pixel = (len(values) - 1) / max(self.width() - 2 * _DOT_PX, 1.0)
        at = (x - _DOT_PX) * per_pixel
        reach = _REACH_PX * per_pixel if per_pixel * _REACH_PX > 1 else 0
        low = min(max(round(at - reach), 0), len(values) - 1)
        high = min(max(round(at + reach), low), len(values) - 1) + 1
        return self._token(low + int(np.argmax(np.nan_to_num(values[low:high], nan=-1.0))))

    def _slice(self, seconds: float = SLICE_SECONDS) -> None:
        self._read(perf_counter() + seconds)
        if not self._stale:  # until then the previous line stays
            self._slices.stop()
            self.update()
        else:
            self._slices.start()

    def _read(self, deadline: float | None = None) -> None:
        while self._stale:
            self._series[self._stale.pop()].read()
            if deadline is not None and perf_counter() > deadline:
                break

    def _joined(self) -> npt.NDArray[np.float32]:
        filled = [series.values for series in self._series if len(series.values)]
        if len(filled) == 1:
            return filled[0]
        return np.concatenate(filled) if filled else np.empty(0, np.float32)

    def _token(self, at: int) -> tuple[int, int]:
        for series in self._series:
            if at < len(series.values):
                return series.turn.node_id, int(series.indices[at])
            at -= len(series.values)
        raise IndexError(f"the strip has no token {at}")

    def mousePressEvent(self, event: QMouseEvent) -> None:
        found = self.token_at(event.position().x())
        if event.button() is Qt.MouseButton.LeftButton and found is not None:
            self.token_clicked.emit(*found)

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # Qt's signature
        if not self._slices.isActive():
            self._read()
        painter = QPainter(self)
        painter.setLayoutDirection(Qt.LayoutDirection.LeftToRight)  # drawn by position: tokens and numbers
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
        painter.setPen(QPen(QColor(self._palette.accent), _LINE_PX, c=Qt.PenCapStyle.SquareCap))
        painter.drawLines([QLineF(*ends) for ends in pairwise(points)])  # a tenth of the time of one path with joins
        peak = min(points, key=lambda p: p.y())
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(self._palette.surprise[-1]))
        painter.drawEllipse(peak, _DOT_PX, _DOT_PX)

    def _points(self) -> list[QPointF]:
        """One point per token; of a long path the maximum of each group of tokens."""
        if not self._stale:
            self._drawn = self._joined()
        values = self._drawn
        width = max(self.width() - 2 * _DOT_PX, 1.0)
        most = int(width / _PIXELS_A_POINT)
        if len(values) > most:
            edges = np.linspace(0, len(values), most, endpoint=False).astype(np.int64)
            values = np.fmax.reduceat(values, edges)
        values = np.nan_to_num(values, nan=0.0)
        if len(values) < 2:
            return []
        top = max(float(values.max()), _LEAST_SPAN)
        drawn = self.height() - _TOP_PX - _BOTTOM_PX
        xs = np.linspace(_DOT_PX, _DOT_PX + width, len(values))
        ys = _TOP_PX + drawn * (1 - values / top)
        return [QPointF(x, y) for x, y in zip(xs.tolist(), ys.tolist(), strict=True)]
