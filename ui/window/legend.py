"""The legend of token colours: the ramp in the status bar, and its menu of measures and steps."""

from __future__ import annotations

from itertools import pairwise

from PySide6.QtCore import QPoint, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QAction, QColor, QIcon, QPainter, QPaintEvent, QPixmap
from PySide6.QtWidgets import QApplication, QMenu, QToolButton

from ui.comparison.model_facts import difference_ranges
from ui.theme.fonts import interface_font, scaled
from ui.theme.palette import Palette
from ui.theme.scheme import current_theme
from ui.transcript import SCALES, Measure

_SWATCH_PX = 12
_GAP_PX = 2
_PAD_PX = 8  # between the word and the ramp


class Legend(QToolButton):
    """The ramp with the name of the measure; opens the menu of measures and steps."""

    measure_chosen = Signal(object)  # a Measure
    difference_chosen = Signal()  # of two compared models

    def __init__(self) -> None:
        super().__init__()
        self.measure = Measure.SURPRISAL
        self._compares = self._shows_difference = False
        self._theme = current_theme()
        self.setFont(interface_font(11.5))
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.clicked.connect(self.open_menu)
        self.show_measure(self.measure)

    def show_measure(self, measure: Measure) -> None:
        self.measure = measure
        self._show()

    def show_difference(self, *, compares: bool, shown: bool) -> None:
        """Takes whether two models are compared, and whether the colours show their difference."""
        self._compares, self._shows_difference = compares, compares and shown
        self._show()

    def _show(self) -> None:
        self.setAccessibleName(self.tr("Colours show {0}: {1}").format(self._name, "; ".join(self._ranges[1:])))
        self.updateGeometry()
        self.update()

    @property
    def _name(self) -> str:
        return self.tr("difference") if self._shows_difference else name_of(self.measure)

    @property
    def _ranges(self) -> list[str]:
        return difference_ranges() if self._shows_difference else ranges(self.measure)

    @property
    def _order(self) -> tuple[int, ...]:
        """The steps from left to right; a diverging ramp has its weakest steps in the middle."""
        return (3, 2, 1, 4, 5, 6) if self._shows_difference else (1, 2, 3, 4, 5)

    def _ramp(self) -> tuple[str | None, ...]:
        palette = self._theme.palette
        return palette.difference if self._shows_difference else palette.surprise

    def sizeHint(self) -> QSize:
        words, count = self.fontMetrics().horizontalAdvance(self._name), len(self._order)
        return QSize(words + _PAD_PX + count * scaled(_SWATCH_PX) + (count - 1) * _GAP_PX + 2, scaled(22))

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        palette = self._theme.palette
        painter = QPainter(self)
        painter.setLayoutDirection(Qt.LayoutDirection.LeftToRight)  # drawn by position: tokens and numbers
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QColor(palette.text if self.underMouse() or self.hasFocus() else palette.soft))
        name = self._name
        painter.drawText(self.rect(), int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft), name)
        x = float(self.fontMetrics().horizontalAdvance(name) + _PAD_PX)
        side = scaled(_SWATCH_PX)
        for step in self._order:
            _paint_swatch(painter, palette, self._ramp()[step], QRectF(x, (self.height() - side) / 2, side, side))
            x += side + _GAP_PX
        painter.end()

    def open_menu(self) -> None:
        """Opens the menu of measures above the bar."""
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        if self._compares:
            words = self.tr("difference") + "\t" + self.tr("how much more or less likely a second model found it")
            action = QAction(words, menu, checkable=True, checked=self._shows_difference)
            action.triggered.connect(lambda _checked=False: self.difference_chosen.emit())
            menu.addAction(action)
        for measure in Measure:
            chosen = measure is self.measure and not self._shows_difference
            action = QAction(f"{name_of(measure)}\t{meaning(measure)}", menu, checkable=True, checked=chosen)
            action.triggered.connect(lambda _checked=False, measure=measure: self.measure_chosen.emit(measure))
            menu.addAction(action)
        menu.addSeparator()
        for step, words in enumerate(self._ranges):
            colour = QIcon()
            colour.addPixmap(swatch(self._theme.palette, self._ramp()[step]), QIcon.Mode.Disabled)  # Qt's own would be grey
            row = QAction(colour, words, menu)
            row.setEnabled(False)  # to be read
            menu.addAction(row)
        menu.popup(self.mapToGlobal(QPoint(self.width() - menu.sizeHint().width(), -menu.sizeHint().height() - 4)))


def name_of(measure: Measure) -> str:
    """The name of a measure in the bar and the menus."""
    translate = QApplication.translate
    return {
        Measure.SURPRISAL: translate("Legend", "surprise"),
        Measure.PROBABILITY: translate("Legend", "probability"),
        Measure.RANK: translate("Legend", "rank"),
        Measure.ENTROPY: translate("Legend", "entropy"),
        Measure.MARGIN: translate("Legend", "margin"),
        Measure.LAYER: translate("Legend", "layer"),
    }[measure]


def meaning(measure: Measure) -> str:
    """The meaning of a measure in a few words."""
    translate = QApplication.translate
    return {
        Measure.SURPRISAL: translate("Legend", "how unexpected this token was"),
        Measure.PROBABILITY: translate("Legend", "how likely the model found this token"),
        Measure.RANK: translate("Legend", "its place among all tokens"),
        Measure.ENTROPY: translate("Legend", "how undecided the model was here"),
        Measure.MARGIN: translate("Legend", "how far the likeliest token was ahead of the next"),
        Measure.LAYER: translate("Legend", "the layer from which it was likeliest; computed in Depth"),
    }[measure]


def ranges(measure: Measure) -> list[str]:
    """The range of each step of the ramp, from no colour to the strongest."""
    scale = SCALES[measure]
    translate = QApplication.translate
    if scale.counts:
        stretches = [(int(low), int(high) - 1) for low, high in pairwise((1.0, *scale.borders))]
        counted = [str(low) if low == high else translate("Legend", "{0} to {1}").format(low, high) for low, high in stretches]
        return [*counted, translate("Legend", "{0} and more").format(int(scale.borders[-1]))]
    if measure is Measure.LAYER:
        shares = [f"{border:g}" for border in (0, *scale.borders[:-1])]
        through = translate("Legend", "{0} to {1} % of the layers")
        within = [through.format(low, high) for low, high in pairwise(shares)]
        last = translate("Legend", "{0} % of the layers and more").format(f"{scale.borders[-2]:g}")
        return [*within, last, translate("Legend", "the token does not lead")]
    edges = [f"{border:g}" for border in scale.borders]
    unit = f" {scale.unit}" if scale.unit else ""
    least, most = translate("Legend", "below {0}"), translate("Legend", "{0} and more")
    first, last = (most, least) if scale.falls else (least, most)
    between = [translate("Legend", "{0} to {1}").format(low, high) + unit for low, high in pairwise(edges)]
    return [first.format(edges[0]) + unit, *between, last.format(edges[-1]) + unit]


def swatch(palette: Palette, colour: str | None) -> QPixmap:
    """The colour of a step as a pixmap; None is no colour."""
    ratio = 2.0
    pixmap = QPixmap(round(16 * ratio), round(16 * ratio))
    pixmap.setDevicePixelRatio(ratio)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    _paint_swatch(painter, palette, colour, QRectF(2, 2, _SWATCH_PX, _SWATCH_PX))
    painter.end()
    return pixmap


def _paint_swatch(painter: QPainter, palette: Palette, colour: str | None, at: QRectF) -> None:
    painter.save()
    painter.setPen(QColor(palette.hairline) if colour is None else Qt.PenStyle.NoPen)
    painter.setBrush(Qt.BrushStyle.NoBrush if colour is None else QColor(colour))
    painter.drawRoundedRect(at.adjusted(0.5, 0.5, -0.5, -0.5), 3, 3)
    painter.restore()
