"""The size of the window's text, from 80 to 200 %: fonts, what is as high as a line of them, and the panels' widths."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QWidget

from ui.theme.fonts import interface_font, scaled, set_text_scale, text_scale
from ui.theme.scheme import current_theme

WIDTH_SHARE = 0.6  # of what the text grows by, panels grow: longer lines are cut rather than the conversation squeezed
_HEIGHT, _WIDTH, _DIGITS = "height_at_100", "width_at_100", "digits_at_100"


def fix_height(widget: QWidget, px: int) -> None:
    """A height that goes with the text; `px` is that at 100 %."""
    widget.setProperty(_HEIGHT, px)
    widget.setFixedHeight(scaled(px))


def fix_width(widget: QWidget, px: int) -> None:
    """A width that goes with the text, by less; `px` is that at 100 %."""
    widget.setProperty(_WIDTH, px)
    widget.setFixedWidth(panel_width(px))


def fix_digits(widget: QWidget, px: int) -> None:
    """A width that goes with the text, of numbers, which are not cut; `px` is that at 100 %."""
    widget.setProperty(_DIGITS, px)
    widget.setFixedWidth(scaled(px))


def panel_width(px: int) -> int:
    """What a width of `px` at 100 % is now."""
    return round(px * (1 + (text_scale() - 1) * WIDTH_SHARE))


def resize_text(application: QApplication, scale: float) -> None:
    """Another size for all text of all windows, now; 1 is that of the drawing.

    Fonts that were set on widgets are scaled in place; a widget that paints text with fonts of its own listens to
    `Theme.scaled`, when everything else has its new size.
    """
    ratio = scale / text_scale()
    if ratio == 1:
        return
    before: dict[QWidget, float] = {}
    for widget in application.allWidgets():
        widget.ensurePolished()  # else its first look at a style sheet that was replaced meanwhile brings the former font back
        before[widget] = widget.font().pointSizeF()
    set_text_scale(scale)
    application.setFont(interface_font())
    for widget, size in before.items():
        # a style sheet keeps some widgets from inheriting: what has not followed by itself is told
        if widget.testAttribute(Qt.WidgetAttribute.WA_SetFont) or widget.font().pointSizeF() == size:
            font = widget.font()
            font.setPointSizeF(size * ratio)
            widget.setFont(font)
        height, width, digits = (widget.property(name) for name in (_HEIGHT, _WIDTH, _DIGITS))
        if height is not None:
            widget.setFixedHeight(scaled(height))
        if width is not None:
            widget.setFixedWidth(panel_width(width))
        if digits is not None:
            widget.setFixedWidth(scaled(digits))
    current_theme().scaled.emit()
