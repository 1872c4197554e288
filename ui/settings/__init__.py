"""The settings window: what holds for the whole app, each row with when it holds."""

from ui.settings.window import APPEARANCE, DATA, ENGINE, GENERATION, MEMORY, MODELS, SERVER, SettingsWindow

__all__ = ["APPEARANCE", "DATA", "ENGINE", "GENERATION", "MEMORY", "MODELS", "SERVER", "SettingsWindow"]
