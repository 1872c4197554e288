"""A soft shadow under a rounded sheet, painted without an effect so that it costs one blit after the first time."""

from __future__ import annotations

import math
from functools import lru_cache

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QImage, QPainter

SHADOW_PX = 36  # room a widget needs around its sheet
_BLUR_PX, _DROP_PX = 28, 8
_NEAR_PX = 3


def paint_shadow(painter: QPainter, sheet: QRectF, radius: float, *, dark: bool) -> None:
    """Paints what lies around and under the sheet."""
    image = _shadow(round(sheet.width()), round(sheet.height()), radius, dark)
    painter.drawImage(QPointF(sheet.left() - SHADOW_PX, sheet.top() - SHADOW_PX), image)


@lru_cache(maxsize=8)
def _shadow(width: int, height: int, radius: float, dark: bool) -> QImage:
    image = QImage(width + 2 * SHADOW_PX, height + 2 * SHADOW_PX, QImage.Format.Format_ARGB32_Premultiplied)
    image.fill(Qt.GlobalColor.transparent)
    painter = QPainter(image)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    sheet = QRectF(SHADOW_PX, SHADOW_PX, width, height)
    tint, far, near = ("#000000", 0.5, 0.5) if dark else ("#1e1e14", 0.14, 0.12)
    _soft(painter, sheet.translated(0, _DROP_PX), radius, QColor(tint), strength=far, blur=_BLUR_PX)
    _soft(painter, sheet.translated(0, 1), radius, QColor(tint), strength=near, blur=_NEAR_PX)
    painter.end()
    return image


def _soft(painter: QPainter, sheet: QRectF, radius: float, tint: QColor, *, strength: float, blur: float) -> None:
    """Nested sheets whose opacities add up to a Gaussian edge of standard deviation blur / 2."""
    steps = max(int(blur), 4)
    reached = 0.0
    for step in range(steps):
        spread = blur * (1 - 2 * step / (steps - 1))  # from blur outside to blur inside
        wanted = strength * 0.5 * (1 + math.erf(-spread / (blur / 2) / math.sqrt(2)))
        layer = (wanted - reached) / (1 - reached)
        reached = wanted
        tint.setAlphaF(max(layer, 0.0))
        painter.setBrush(tint)
        grown = sheet.adjusted(-spread, -spread, spread, spread)
        if grown.width() <= 0 or grown.height() <= 0:
            return
        corner = max(radius + spread, 1.0)
        painter.drawRoundedRect(grown, corner, corner)
