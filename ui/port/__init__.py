"""The port: what the window needs from the rest of the app, as one Protocol and plain values.

Nothing in `ui` knows a model, a database or a process; `app.workbench` implements `Workbench`. All members are called on
the window's thread, inside the running event loop. Commands are coroutines; events go to the listener given to
`subscribe`, on the same thread, in order.
"""

import types
import typing

from runtime import SAMPLER_STAGES, Origin, RuntimeFault, SamplingOptions, Stage, TokenRecord, TokenRun, __version__
from ui.port.comparison import ComparisonChoice, NoRoomRefusal, OnCompared, PathComparison, SimilarTurn, SimilarTurns
from ui.port.drawing import BeamSearchRules, Column, ColumnKind, Columns, Drawing, TurnDepth, TurnDepthCost
from ui.port.engine import (
    BackendChoice,
    CacheCheck,
    CacheView,
    EdgeView,
    EngineState,
    LoadChoice,
    LoadPlan,
    ModelChoice,
    StatusView,
    WeightsForm,
    lacking,
)
from ui.port.events import (
    BranchAdded,
    ColumnsChanged,
    ColumnTokens,
    Event,
    SessionBegun,
    SessionChanged,
    SessionCopied,
    SessionRestored,
    SessionsChanged,
    SessionsDeleted,
    SessionTrashed,
    StatusChanged,
    TokensArrived,
    TurnChanged,
    WindowWanted,
)
from ui.port.models import (
    Bits,
    DownloadsChanged,
    DownloadState,
    DownloadView,
    FitView,
    GgufPlan,
    HubFind,
    ModelPlan,
    ModelsChanged,
    Offer,
    ServerModel,
    ShelfModel,
    TokenView,
)
from ui.port.refusals import (
    BUSY,
    QT_TRANSLATE_NOOP,
    ModelRefusal,
    Refusal,
    ShownInOtherWindow,
    in_window,
    translate,
    translate_with,
)
from ui.port.sessions import BranchRow, FolderView, Hit, RowText, SessionSummary, SessionView, TrashedSession, TreeRow
from ui.port.settings import (
    SETTING_RULES,
    AdapterChoice,
    AdapterLine,
    AnswerFormat,
    AppSettings,
    Backup,
    Contrast,
    DataFacts,
    FormatKind,
    Guess,
    ModelFacts,
    Motion,
    OptionView,
    OwnColours,
    Scheme,
    SessionSetup,
    SettingsView,
    TextFile,
    ToolCard,
)
from ui.port.transfers import BranchDiff, DiffPart, DiffSide, ExportFormat, ImportResult, OnTransfer
from ui.port.turns import (
    Composition,
    ContextPart,
    Made,
    PartKind,
    ResolvedOption,
    Tier,
    TurnStats,
    TurnStatus,
    TurnView,
)
from ui.port.workbench import Workbench

if typing.TYPE_CHECKING:  # a type alone: the window opens without its module
    from runtime import Pooling
else:  # mypy sees every name
    __all__ = [name for name, each in globals().items() if name[0] != "_" and not isinstance(each, types.ModuleType)]
