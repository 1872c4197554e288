"""How the window looks: colours, type, style sheet, icons."""

from ui.theme.palette import DARK, LIGHT, Palette
from ui.theme.scheme import Scheme, Theme, apply_theme, current_theme

__all__ = ["DARK", "LIGHT", "Palette", "Scheme", "Theme", "apply_theme", "current_theme"]
