"""The look of the window: colours, fonts, style sheet, icons."""

from ui.theme.palette import DARK, HIGH_DARK, HIGH_LIGHT, LIGHT, Palette
from ui.theme.scheme import Contrast, Motion, Scheme, Theme, apply_theme, current_theme

__all__ = [
    "DARK",
    "HIGH_DARK",
    "HIGH_LIGHT",
    "LIGHT",
    "Contrast",
    "Motion",
    "Palette",
    "Scheme",
    "Theme",
    "apply_theme",
    "current_theme",
]
