"""The window itself: its parts wired to the desk, from start to end."""

from ui.window.window import MainWindow, WindowState

__all__ = ["MainWindow", "WindowState"]
