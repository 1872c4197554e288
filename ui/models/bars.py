"""Painted bars: how far something is, and what a model takes of the machine's memory."""

from __future__ import annotations

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QWidget

from ui.numbers import size
from ui.port import FitView
from ui.theme.fonts import interface_font, scaled
from ui.theme.palette import Palette
from ui.theme.scheme import current_theme
from ui.theme.text_size import fix_height
from ui.widgets import ElidedLabel

THIN, THICK, SWATCH = 3, 9, 8  # pixels at 100 % text


class ThinBar(QWidget):
    """A line that fills from the left; it only shows."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name, self._share = name, 0.0
        self.setAccessibleName(name)
        self._theme = current_theme()
        self._theme.changed.connect(self._recolour)
        fix_height(self, THIN)

    def show_share(self, done: int, total: int) -> None:
        """So much of all."""
        share = min(done / total, 1.0) if total else 0.0
        if share != self._share:
            self._share = share
            self.setAccessibleDescription(f"{100 * share:.0f} %")
            self.update()

    def _recolour(self, _palette: Palette) -> None:
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        palette, whole = self._theme.palette, QRectF(self.rect())
        for colour, part in ((palette.hairline, 1.0), (palette.accent, self._share)):
            if part > 0:
                painter.setBrush(QColor(colour))
                width = max(whole.width() * part, whole.height())
                painter.drawRoundedRect(QRectF(0, 0, width, whole.height()), whole.height() / 2, whole.height() / 2)
        painter.end()


class FitBar(QWidget):
    """Weights, KV and work as parts of the machine's memory; what goes beyond it is warm."""

    def __init__(self) -> None:
        super().__init__()
        self._fit: FitView | None = None
        self._theme = current_theme()
        self._theme.changed.connect(self._recolour)
        fix_height(self, THICK)

    def show_fit(self, fit: FitView) -> None:
        """Draws this one."""
        self._fit = fit
        self.setAccessibleName(self.tr("About {0} of {1} of memory").format(size(fit.total), size(fit.memory)))
        self.update()

    def _recolour(self, _palette: Palette) -> None:
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        if self._fit is None:
            return
        palette, fit = self._theme.palette, self._fit
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        whole = QRectF(self.rect())
        scale = whole.width() / max(fit.total, fit.memory, 1)
        painter.setBrush(QColor(palette.hairline))
        painter.drawRoundedRect(whole, 3, 3)
        left = 0.0
        for colour, part in zip(colours(palette), (fit.weights, fit.kv, fit.working, fit.loading), strict=True):
            width = part * scale
            painter.fillRect(QRectF(left, 0, width, whole.height()), QColor(colour))
            left += width
        if not fit.fits:
            beyond = fit.memory * scale
            painter.fillRect(QRectF(beyond, 0, left - beyond, whole.height()), QColor(palette.surprise[5]))
        painter.end()


class FitLegend(QWidget):
    """What the parts of a `FitBar` are, each with its colour and its bytes."""

    def __init__(self) -> None:
        super().__init__()
        self._labels = [ElidedLabel("", "soft", interface_font(11.5)) for _ in range(4)]
        line = QHBoxLayout(self)
        line.setContentsMargins(0, 0, 0, 0)
        line.setSpacing(5)
        self._swatches = [_Swatch(place) for place in range(4)]
        for swatch, label in zip(self._swatches, self._labels, strict=True):
            line.addWidget(swatch)
            line.addWidget(label)
            line.addSpacing(9)
        line.addStretch(1)

    def show_fit(self, fit: FitView) -> None:
        """Names these."""
        self._labels[0].setText(self.tr("weights {0}").format(size(fit.weights)))
        self._labels[1].setText(self.tr("KV {0}").format(size(fit.kv)))
        self._labels[2].setText(self.tr("work {0}").format(size(fit.working)))
        self._labels[3].setText(self.tr("while loading {0} more").format(size(fit.loading)))
        for part in (self._swatches[3], self._labels[3]):
            part.setVisible(bool(fit.loading))


class _Swatch(QWidget):
    """A square in the colour of one part."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self._place = place
        self._theme = current_theme()
        self._theme.changed.connect(self._recolour)
        self._theme.scaled.connect(self._resize)
        self._resize()

    def _resize(self) -> None:
        self.setFixedSize(scaled(SWATCH), scaled(SWATCH))

    def _recolour(self, _palette: Palette) -> None:
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        painter = QPainter(self)
        painter.fillRect(self.rect(), QColor(colours(self._theme.palette)[self._place]))
        painter.end()


def colours(palette: Palette) -> tuple[str, str, str, str]:
    """Of weights, KV, work, and what is needed while loading."""
    return palette.accent, palette.disk, palette.bar_rest, palette.faint
