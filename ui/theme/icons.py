"""Lucide icons from resources, drawn in any colour."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

from PySide6.QtCore import QByteArray, QRectF, Qt
from PySide6.QtGui import QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

SIZE_PX = 16
_SCALES = (1, 2, 3)


@lru_cache(maxsize=256)
def icon(name: str, colour: str, px: int = SIZE_PX) -> QIcon:
    """The icon `name` (a file of resources/icons) in `colour` ("#rrggbb"), `px` wide and high, at 1, 2 and 3 dots per pixel.

    Raises:
        FileNotFoundError: No such icon is shipped.
    """
    svg = (resources.files("resources") / "icons" / f"{name}.svg").read_text()
    # Lucide draws on a 24 px grid: 2.25 there is 1.5 px at our size.
    svg = svg.replace("currentColor", colour).replace('stroke-width="2"', 'stroke-width="2.25"')
    renderer = QSvgRenderer(QByteArray(svg.encode()))
    drawn = QIcon()
    for scale in _SCALES:
        pixmap = QPixmap(px * scale, px * scale)
        pixmap.fill(Qt.GlobalColor.transparent)
        painter = QPainter(pixmap)
        renderer.render(painter, QRectF(0, 0, px * scale, px * scale))
        painter.end()
        pixmap.setDevicePixelRatio(scale)
        drawn.addPixmap(pixmap)
    return drawn
