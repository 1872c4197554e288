"""The window: the only names other packages may use.

The names of the port come without Qt, so that the command line can use them; the widgets are loaded when first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ui import port
from ui.port import *  # noqa: F403  # all of them

if TYPE_CHECKING:
    from ui.core.collector import Collector
    from ui.core.shown import Spot
    from ui.inspector import Inspector
    from ui.sidebar.sessions import SessionPanel
    from ui.theme import DARK, HIGH_DARK, HIGH_LIGHT, LIGHT, Palette, apply_theme
    from ui.transcript import Measure, TranscriptView
    from ui.tree.panel import TreePanel
    from ui.window.recovery import RecoveryPage
    from ui.window.window import MainWindow, WindowState

_NAMES = {
    "ui.core.collector": ("Collector",),
    "ui.inspector": ("Inspector",),
    "ui.window.recovery": ("RecoveryPage",),
    "ui.core.shown": ("Spot",),
    "ui.sidebar.sessions": ("SessionPanel",),
    "ui.theme": ("DARK", "HIGH_DARK", "HIGH_LIGHT", "LIGHT", "Palette", "apply_theme"),
    "ui.transcript": ("Measure", "TranscriptView"),
    "ui.tree.panel": ("TreePanel",),
    "ui.window.window": ("MainWindow", "WindowState"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = [*_HOMES]


if not TYPE_CHECKING:  # or a name that is not there would pass the type checker
    __all__ += port.__all__

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'ui' has no attribute {name!r}")
        found = getattr(import_module(_HOMES[name]), name)
        globals()[name] = found  # from now on it is found without asking
        return found


def __dir__() -> list[str]:
    return sorted(__all__)
