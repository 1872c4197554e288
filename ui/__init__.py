"""The window: the only names other packages may use.

The names of the port come without Qt, so that the command line can use them; the widgets are loaded when first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ui.port import (
    BackendChoice,
    BranchRow,
    Composition,
    EngineState,
    Event,
    ModelChoice,
    Refusal,
    SessionChanged,
    SessionsChanged,
    SessionSummary,
    SessionView,
    StatusChanged,
    StatusView,
    Tier,
    TokensArrived,
    TurnChanged,
    TurnStats,
    TurnStatus,
    TurnView,
    Workbench,
)

if TYPE_CHECKING:
    from ui.theme import DARK, LIGHT, Palette, Scheme, Theme, apply_theme
    from ui.window import MainWindow, WindowState

__all__ = [
    "DARK",
    "LIGHT",
    "BackendChoice",
    "BranchRow",
    "Composition",
    "EngineState",
    "Event",
    "MainWindow",
    "ModelChoice",
    "Palette",
    "Refusal",
    "Scheme",
    "SessionChanged",
    "SessionSummary",
    "SessionView",
    "SessionsChanged",
    "StatusChanged",
    "StatusView",
    "Theme",
    "Tier",
    "TokensArrived",
    "TurnChanged",
    "TurnStats",
    "TurnStatus",
    "TurnView",
    "WindowState",
    "Workbench",
    "apply_theme",
]

_WIDGETS = {
    **dict.fromkeys(("DARK", "LIGHT", "Palette", "Scheme", "Theme", "apply_theme"), "ui.theme"),
    **dict.fromkeys(("MainWindow", "WindowState"), "ui.window"),
}


def __getattr__(name: str) -> object:
    if name not in _WIDGETS:
        raise AttributeError(f"module 'ui' has no attribute {name!r}")
    return getattr(import_module(_WIDGETS[name]), name)
