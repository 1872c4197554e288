"""The settings window: the settings of the whole app, each with when a change takes effect."""

from ui.settings.settings_window import APPEARANCE, DATA, ENGINE, GENERATION, MEMORY, MODELS, SERVER, SettingsWindow

__all__ = ["APPEARANCE", "DATA", "ENGINE", "GENERATION", "MEMORY", "MODELS", "SERVER", "SettingsWindow"]
