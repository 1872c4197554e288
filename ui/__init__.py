"""The window: the only names other packages may use.

The names of the port come without Qt, so that the command line can use them; the widgets are loaded when first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ui.port import (
    AdapterChoice,
    AdapterLine,
    AnswerFormat,
    AppSettings,
    BackendChoice,
    Backup,
    BeamRules,
    BranchDiff,
    BranchRow,
    CacheCheck,
    CacheView,
    Column,
    ColumnKind,
    Columns,
    ColumnsChanged,
    ColumnTokens,
    Composition,
    ContextPart,
    DataFacts,
    DiffPart,
    DiffSide,
    Drawing,
    DrawingUses,
    EdgeView,
    EngineState,
    Event,
    ExportKind,
    FolderView,
    FormatKind,
    Guess,
    ImportResult,
    Made,
    ModelChoice,
    ModelFacts,
    NoRoomRefusal,
    OnCompared,
    OnTransfer,
    OptionView,
    PartKind,
    PathComparison,
    Refusal,
    SecondChoice,
    SecondCommands,
    SessionChanged,
    SessionCopied,
    SessionsChanged,
    SessionSetup,
    SessionSummary,
    SessionTrashed,
    SessionView,
    Setting,
    SettingsCommands,
    SettingsView,
    SetupCommands,
    ShelfCommands,
    ShownElsewhere,
    StatusChanged,
    StatusView,
    TextFile,
    Tier,
    TokensArrived,
    ToolCard,
    TrashedSession,
    TurnChanged,
    TurnStats,
    TurnStatus,
    TurnView,
    WindowWanted,
    Workbench,
)

if TYPE_CHECKING:
    from ui.collector import Collector
    from ui.inspector import Inspector
    from ui.recovery import RecoveryPage
    from ui.sessions import SessionPanel
    from ui.shown import Spot
    from ui.theme import DARK, LIGHT, Palette, Scheme, Theme, apply_theme
    from ui.transcript import Measure, TranscriptView
    from ui.window import MainWindow, WindowState

__all__ = [
    "DARK",
    "LIGHT",
    "AdapterChoice",
    "AdapterLine",
    "AnswerFormat",
    "AppSettings",
    "BackendChoice",
    "Backup",
    "BeamRules",
    "BranchDiff",
    "BranchRow",
    "CacheCheck",
    "CacheView",
    "Collector",
    "Column",
    "ColumnKind",
    "ColumnTokens",
    "Columns",
    "ColumnsChanged",
    "Composition",
    "ContextPart",
    "DataFacts",
    "DiffPart",
    "DiffSide",
    "Drawing",
    "DrawingUses",
    "EdgeView",
    "EngineState",
    "Event",
    "ExportKind",
    "FolderView",
    "FormatKind",
    "Guess",
    "ImportResult",
    "Inspector",
    "Made",
    "MainWindow",
    "Measure",
    "ModelChoice",
    "ModelFacts",
    "NoRoomRefusal",
    "OnCompared",
    "OnTransfer",
    "OptionView",
    "Palette",
    "PartKind",
    "PathComparison",
    "RecoveryPage",
    "Refusal",
    "Scheme",
    "SecondChoice",
    "SecondCommands",
    "SessionChanged",
    "SessionCopied",
    "SessionPanel",
    "SessionSetup",
    "SessionSummary",
    "SessionTrashed",
    "SessionView",
    "SessionsChanged",
    "Setting",
    "SettingsCommands",
    "SettingsView",
    "SetupCommands",
    "ShelfCommands",
    "ShownElsewhere",
    "Spot",
    "StatusChanged",
    "StatusView",
    "TextFile",
    "Theme",
    "Tier",
    "TokensArrived",
    "ToolCard",
    "TranscriptView",
    "TrashedSession",
    "TurnChanged",
    "TurnStats",
    "TurnStatus",
    "TurnView",
    "WindowState",
    "WindowWanted",
    "Workbench",
    "apply_theme",
]

_NAMES = {
    "ui.collector": ("Collector",),
    "ui.inspector": ("Inspector",),
    "ui.recovery": ("RecoveryPage",),
    "ui.shown": ("Spot",),
    "ui.sessions": ("SessionPanel",),
    "ui.theme": ("DARK", "LIGHT", "Palette", "Scheme", "Theme", "apply_theme"),
    "ui.transcript": ("Measure", "TranscriptView"),
    "ui.window": ("MainWindow", "WindowState"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


if not TYPE_CHECKING:  # or a name that is not there would pass the type checker

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'ui' has no attribute {name!r}")
        found = getattr(import_module(_HOMES[name]), name)
        globals()[name] = found  # from now on it is found without asking
        return found


def __dir__() -> list[str]:
    return sorted(__all__)
