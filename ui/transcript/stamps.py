"""Coloured spans as small pictures, made once per width: drawing one is several times quicker than a rounded path."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QPainter, QPixmap

RADIUS_PX = 3.0
_WIDEST_PX = 240  # wider spans are rare; they are drawn as paths
_KEPT = 1024


class Stamps:
    """Rounded spans of one height, in the colours of one ramp."""

    def __init__(self, steps: tuple[QBrush | None, ...]) -> None:
        self._steps = steps
        self._held: dict[tuple[int, int, int, int], QPixmap] = {}

    def draw(self, painter: QPainter, rect: QRectF, step: int, ratio: float) -> None:
        """Fills the span; its sides are moved to whole pixels, so that neighbours meet without a seam.

        Args:
            painter: Its origin stands on a whole pixel.
            rect: The span; top and height are whole.
            step: Its place on the ramp, above 0.
            ratio: Device pixels per pixel.
        """
        brush = self._steps[step]
        if brush is None:
            return
        scale = int(ratio)
        left, right = round(rect.left() * scale), round(rect.right() * scale)
        if scale != ratio or right - left > _WIDEST_PX * scale:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(brush)
            painter.drawRoundedRect(rect, RADIUS_PX, RADIUS_PX)
            return
        key = (step, right - left, round(rect.height()), scale)
        stamp = self._held.get(key)
        if stamp is None:
            stamp = self._make(key, brush)
        painter.drawPixmap(QPointF(left / scale, rect.top()), stamp)

    def _make(self, key: tuple[int, int, int, int], brush: QBrush) -> QPixmap:
        if len(self._held) >= _KEPT:
            self._held.clear()
        _, width, height, scale = key
        stamp = QPixmap(max(width, 1), height * scale)
        stamp.setDevicePixelRatio(scale)
        stamp.fill(Qt.GlobalColor.transparent)
        painter = QPainter(stamp)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(brush)
        painter.drawRoundedRect(QRectF(0, 0, width / scale, height), RADIUS_PX, RADIUS_PX)
        painter.end()
        self._held[key] = stamp
        return stamp
