"""The text size of the window, 80 to 200 %: scales fonts, heights of lines, and widths of panels."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QWidget

from ui.theme.fonts import interface_font, scaled, set_text_scale, text_scale
from ui.theme.scheme import current_theme

WIDTH_SHARE = 0.6  # of the text's growth, for panels: they elide longer lines rather than squeeze the conversation
_HEIGHT, _WIDTH, _DIGITS = "height_at_100", "width_at_100", "digits_at_100"


def fix_height(widget: QWidget, px: int) -> None:
    """Fixes a height that scales with the text; `px` at 100 %."""
    widget.setProperty(_HEIGHT, px)
    widget.setFixedHeight(scaled(px))


def fix_width(widget: QWidget, px: int) -> None:
    """Fixes a width that scales like those of panels; `px` at 100 %."""
    widget.setProperty(_WIDTH, px)
    widget.setFixedWidth(panel_width(px))


def fix_digits(widget: QWidget, px: int) -> None:
    """Fixes a width that scales with the text, for numbers, which are never elided; `px` at 100 %."""
    widget.setProperty(_DIGITS, px)
    widget.setFixedWidth(scaled(px))


def panel_width(px: int) -> int:
    """Scales the width of a panel, `px` at 100 %, to the text size."""
    return round(px * (1 + (text_scale() - 1) * WIDTH_SHARE))


def resize_text(application: QApplication, scale: float) -> None:
    """Changes the text size of all windows; a `scale` of 1 is 100 %.

    Fonts set on widgets are scaled in place. Widgets that paint with fonts of their own listen to `Theme.scaled`, which is
    emitted last.
    """
    ratio = scale / text_scale()
    if ratio == 1:
        return
    before: dict[QWidget, float] = {}
    for widget in application.allWidgets():
        widget.ensurePolished()  # else its first polish, with a replaced style sheet, restores the former font
        before[widget] = widget.font().pointSizeF()
    set_text_scale(scale)
    application.setFont(interface_font())
    for widget, size in before.items():
        # a style sheet keeps some widgets from inheriting the font: those are scaled here
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
