"""The look of the window: colours, fonts, style sheet, icons."""

from ui.theme.palette import DARK, HIGH_DARK, HIGH_LIGHT, LIGHT, Palette
from ui.theme.scheme import Theme, apply_theme, current_theme

__all__ = [
    "DARK",
    "HIGH_DARK",
    "HIGH_LIGHT",
    "LIGHT",
    "Palette",
    "Theme",
    "apply_theme",
    "current_theme",
]
