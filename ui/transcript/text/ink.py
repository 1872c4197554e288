"""Colours, cached spans of tokens, and shadows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QColor, QImage, QPainter, QPen, QPixmap

from ui.theme.palette import Palette
from ui.theme.scheme import HALF

_UNDERLINE = 0.45  # opacity


class Ink:
    """Colours ready to paint with.

    Args:
        palette: The theme's colours.
        diverging: Whether spans have the palette's `difference` rather than its `surprise`.
        own: Strength of the spans in what the user wrote, 0 to 1.

    Attributes:
        hit: The ground of found words; it replaces the spans, as the accent is not visible on all of their colours.
        strongest: The step whose text has a colour of its own; None: no step has.
        rare: The underline of tokens beyond rank 10.
        own_rare: The same in what the user wrote.
        template: The chat template's words: between text and soft, legible on every step but the last.
    """

    def __init__(self, palette: Palette, diverging: bool = False, own: float = HALF) -> None:
        self.palette, self.own = palette, own
        self.window, self.text = QColor(palette.window), QColor(palette.text)
        self.soft, self.faint = QColor(palette.soft), QColor(palette.faint)
        self.hairline, self.accent, self.disk = QColor(palette.hairline), QColor(palette.accent), QColor(palette.disk)
        self.selection, self.hit = _faded(palette.accent, 0.26), QColor(palette.bar_rest)
        ramp = palette.difference if diverging else palette.surprise
        self.strongest = None if diverging else len(ramp) - 1
        self.stamps = self.own_stamps = Stamps(tuple(None if c is None else QBrush(QColor(c)) for c in ramp))
        if own < 1:
            self.own_stamps = Stamps(tuple(None if c is None or own <= 0 else QBrush(_faded(c, own)) for c in ramp))
        self.rare, self.own_rare = (QPen(_faded(palette.text, _UNDERLINE * strength), 1) for strength in (1.0, own))
        self.pin = QPen(self.accent, 2)
        self.pin.setJoinStyle(Qt.PenJoinStyle.RoundJoin)
        self.on_strongest = QColor(palette.on_strongest)
        self.template = _between(self.text, self.soft)


def _faded(name: str, strength: float) -> QColor:
    colour = QColor(name)
    colour.setAlphaF(strength)
    return colour


def _between(one: QColor, other: QColor) -> QColor:
    return QColor(*((getattr(one, part)() + getattr(other, part)()) // 2 for part in ("red", "green", "blue")))


RADIUS_PX = 3.0
_WIDEST_PX = 240  # wider spans are rare; they are drawn as paths
_KEPT = 1024


class Stamps:
    """Draws rounded spans in the colours of one ramp, from cached pixmaps."""

    def __init__(self, steps: tuple[QBrush | None, ...]) -> None:
        self._steps = steps
        self._held: dict[tuple[int, int, int, int], QPixmap] = {}

    def draw(self, painter: QPainter, spans: Iterable[tuple[float, float, int]], top: float, height: int, ratio: float) -> None:
        """Fills spans of one line; their sides are rounded to whole pixels, so that neighbours meet without a seam.

        Args:
            painter: Its origin is on a whole pixel.
            spans: Left, right, and step on the ramp, above 0.
            top: Top of all spans, a whole pixel.
            height: Height of all spans.
            ratio: Device pixels per pixel.
        """
        scale, steps, held, draw = int(ratio), self._steps, self._held, painter.drawPixmap
        for x0, x1, step in spans:
            brush = steps[step]
            if brush is None:
                continue
            left, right = round(x0 * scale), round(x1 * scale)
            if scale != ratio or right - left > _WIDEST_PX * scale:
                painter.setPen(Qt.PenStyle.NoPen)
                painter.setBrush(brush)
                painter.drawRoundedRect(QRectF(x0, top, x1 - x0, height), RADIUS_PX, RADIUS_PX)
                continue
            key = (step, right - left, height, scale)
            draw(QPointF(left / scale, top), held.get(key) or self._make(key, brush))

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


SHADOW_PX = 36  # margin that a widget needs around its sheet
_BLUR_PX, _DROP_PX = 28, 8
_NEAR_PX = 3


def paint_shadow(painter: QPainter, sheet: QRectF, radius: float, *, dark: bool) -> None:
    """Paints the shadow of a sheet."""
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
    """Paints nested sheets whose opacities add up to a Gaussian edge of standard deviation `blur / 2`."""
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
