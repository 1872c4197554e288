"""What the window needs from the rest of the app: one Protocol and the plain values it trades in.

Nothing in `ui` knows a model, a database or a process; `app.workbench` satisfies `Workbench`. All members are called on
the window's thread, inside the running event loop. Commands are coroutines; what happens meanwhile arrives as events at
the listener given to `subscribe`, on the same thread, in order.
"""

from __future__ import annotations

from ui.port.answers import AnswerCommands, Made, Setting
from ui.port.cache import CacheCheck, CacheCommands, CacheView, EdgeView
from ui.port.drafts import Composition, ContextPart, DraftCommands, PartKind
from ui.port.drawing import BeamRules, Column, ColumnKind, Columns, Drawing, DrawingUses
from ui.port.engine import BackendChoice, EngineCommands, EngineState, ModelChoice, StatusView
from ui.port.events import (
    ColumnsChanged,
    ColumnTokens,
    Event,
    SessionChanged,
    SessionCopied,
    SessionsChanged,
    SessionTrashed,
    StatusChanged,
    TokensArrived,
    TurnChanged,
    WindowWanted,
)
from ui.port.loads import Bits, GgufPlan, LoadChoice, LoadCommands, LoadPlan, TokenView, WeightsForm
from ui.port.models import (
    Download,
    DownloadsChanged,
    DownloadState,
    FitView,
    Holds,
    HubFind,
    ModelCommands,
    ModelPlan,
    ModelsChanged,
    Offer,
    ShelfModel,
)
from ui.port.refusals import ModelRefusal, Refusal, ShownElsewhere
from ui.port.second import NoRoomRefusal, OnCompared, PathComparison, SecondChoice, SecondCommands
from ui.port.sentences import QT_TRANSLATE_NOOP, translate, translate_with
from ui.port.sessions import BranchRow, SessionCommands, SessionSummary, SessionView
from ui.port.settings import AppSettings, Backup, DataFacts, SettingsCommands, SettingsView
from ui.port.setup import (
    AdapterChoice,
    AdapterLine,
    AnswerFormat,
    FormatKind,
    Guess,
    ModelFacts,
    OptionView,
    SessionSetup,
    SetupCommands,
    TextFile,
    ToolCard,
)
from ui.port.shelf import FolderView, ShelfCommands, TrashedSession
from ui.port.similar import SimilarCommands, SimilarTurn, SimilarTurns
from ui.port.transfers import BranchDiff, DiffPart, DiffSide, ExportKind, ImportResult, OnTransfer, TransferCommands
from ui.port.turns import Tier, TurnStats, TurnStatus, TurnView
from ui.port.workbench import Workbench

__all__ = [
    "QT_TRANSLATE_NOOP",
    "AdapterChoice",
    "AdapterLine",
    "AnswerCommands",
    "AnswerFormat",
    "AppSettings",
    "BackendChoice",
    "Backup",
    "BeamRules",
    "Bits",
    "BranchDiff",
    "BranchRow",
    "CacheCheck",
    "CacheCommands",
    "CacheView",
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
    "Download",
    "DownloadState",
    "DownloadsChanged",
    "DraftCommands",
    "Drawing",
    "DrawingUses",
    "EdgeView",
    "EngineCommands",
    "EngineState",
    "Event",
    "ExportKind",
    "FitView",
    "FolderView",
    "FormatKind",
    "GgufPlan",
    "Guess",
    "Holds",
    "HubFind",
    "ImportResult",
    "LoadChoice",
    "LoadCommands",
    "LoadPlan",
    "Made",
    "ModelChoice",
    "ModelCommands",
    "ModelFacts",
    "ModelPlan",
    "ModelRefusal",
    "ModelsChanged",
    "NoRoomRefusal",
    "Offer",
    "OnCompared",
    "OnTransfer",
    "OptionView",
    "PartKind",
    "PathComparison",
    "Refusal",
    "SecondChoice",
    "SecondCommands",
    "SessionChanged",
    "SessionCommands",
    "SessionCopied",
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
    "ShelfModel",
    "ShownElsewhere",
    "SimilarCommands",
    "SimilarTurn",
    "SimilarTurns",
    "StatusChanged",
    "StatusView",
    "TextFile",
    "Tier",
    "TokenView",
    "TokensArrived",
    "ToolCard",
    "TransferCommands",
    "TrashedSession",
    "TurnChanged",
    "TurnStats",
    "TurnStatus",
    "TurnView",
    "WeightsForm",
    "WindowWanted",
    "Workbench",
    "translate",
    "translate_with",
]
