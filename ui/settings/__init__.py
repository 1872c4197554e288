"""The settings window: what holds for the whole app, each row with when it holds."""

from ui.settings.window import SettingsWindow

__all__ = ["SettingsWindow"]
