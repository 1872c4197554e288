"""What the window needs from the rest of the app: one Protocol and the plain values it trades in.

Nothing in `ui` knows a model, a database or a process; `app.workbench` satisfies `Workbench`. All members are called on
the window's thread, inside the running event loop. Commands are coroutines; what happens meanwhile arrives as events at
the listener given to `subscribe`, on the same thread, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from runtime import TokenRun
from ui.drawing_port import ColumnsChanged, ColumnTokens, DrawingUses
from ui.made import Made
from ui.port_settings import SettingsCommands
from ui.port_setup import SetupCommands, TextFile, ToolCard
from ui.port_shelf import ShelfCommands
from ui.transfers import TransferUseCases


class Refusal(Exception):
    """A command that was not carried out. The text says what was wrong and what to do; nothing was lost."""


class TurnStatus(StrEnum):
    """Where a turn stands."""

    COMPLETE = "complete"
    WAITING = "waiting"  # saved, the engine has not answered yet (starting, or reading the prompt)
    STREAMING = "streaming"
    PARTIAL = "partial"  # stopped, cut by a limit, or the engine died: the text is kept
    DAMAGED = "damaged"  # the stored rows fail their checksum


class Tier(StrEnum):
    """Where the turn's KV is."""

    WARM = "warm"
    DISK = "disk"
    COLD = "cold"


class EngineState(StrEnum):
    """What the engine is doing."""

    NONE = "none"  # no model chosen
    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    DIED = "died"


@dataclass(frozen=True, slots=True)
class TurnStats:
    """How an answer was made. Seconds; nats; tokens."""

    reused: int | None  # prompt tokens found in the cache; None where nothing of the prompt was read
    computed: int | None  # prompt tokens pushed through the model; None likewise
    first_token_seconds: float | None  # from when the engine was there to be asked
    tokens_per_second: float | None
    logprob: float | None  # of the generated tokens together


@dataclass(frozen=True, slots=True)
class TurnView:
    """One turn of the path that is shown."""

    node_id: int  # the turn's last node on this path: what `branch`, `regenerate` and `edit` refer to
    role: str  # system, user, assistant, tool
    run: TokenRun  # all its tokens along the path; the template's have origin TEMPLATE
    status: TurnStatus
    variants: tuple[int, ...]  # last nodes of the turn's siblings, in order; this turn's own is among them
    note: str = ""  # inline message, such as "stopped" or what failed and what to do
    tier: Tier = Tier.COLD
    stats: TurnStats | None = None
    can_repeat: bool = False  # how it was made is known: it can be made again exactly
    can_retry: bool = True  # False: the same again can only fail again; the note says what to do instead
    calls: tuple[ToolCard, ...] = ()  # of tools, that nobody has answered yet

    @property
    def variant(self) -> int:
        """Which of the variants this is, from 0."""
        return self.variants.index(self.node_id)


@dataclass(frozen=True, slots=True)
class BranchRow:
    """One line of the outline tree."""

    node_id: int
    depth: int
    before: str  # shared words before the divergence ("... visit")
    name: str  # the words that differ ("Lisbon when it rains")
    logprob: float | None  # nats, of the branch's generated tokens
    on_path: bool  # part of the path shown
    current: bool  # the tip of the path shown
    likely: float | None = None  # geometric mean of those tokens' probabilities: comparable between lengths
    start: int = 0  # the token of the node from which on the line speaks of it
    pruned: bool = False  # put out of sight, itself or with what it leaves


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One line of the session list."""

    session_id: int
    title: str
    updated: float  # seconds since the epoch, for grouping by day only
    branches: int
    pinned: bool
    is_sample: bool  # the recorded one: it stays as it is, changes go into a copy
    folder_id: int | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionView:
    """An open session: the path shown, and the outline of all branches."""

    session_id: int
    title: str
    turns: tuple[TurnView, ...]
    branches: tuple[BranchRow, ...]
    branch_name: str = ""  # where the shown branch diverged; empty when there is one
    is_sample: bool = False
    context_used: int = 0  # tokens
    earlier: int = 0  # turns of the path before the first of `turns`: see `Workbench.show_earlier`


@dataclass(frozen=True, slots=True)
class StatusView:
    """The status bar."""

    engine: EngineState
    reason: str = ""  # plain words: "loading SmolLM2", "engine stopped; send again to restart it"
    tokens_per_second: float | None = None
    first_token_seconds: float | None = None
    reused: int | None = None  # prompt tokens found in the cache
    computed: int | None = None  # prompt tokens pushed through the model
    kv_bytes: int = 0
    kv_budget: int = 0
    tiers: Mapping[Tier, int] = field(default_factory=dict)  # turns of the shown path per tier


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """One model on the shelf."""

    source: str
    label: str
    detail: str  # "135M · float32 · 513 MB"
    loaded: bool  # it is the one in use


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """One engine that can run models, or why it cannot."""

    name: str
    problem: str  # empty: it can run here
    chosen: bool


class PartKind(StrEnum):
    """What a part of the context is."""

    SYSTEM = "system"
    FILES = "files"
    HISTORY = "history"
    DRAFT = "draft"


@dataclass(frozen=True, slots=True)
class ContextPart:
    """A stretch of the context."""

    kind: PartKind
    tokens: int
    warm: int  # of them, those that need not be computed


@dataclass(frozen=True, slots=True)
class Composition:
    """What the typed text will cost."""

    tokens: int | None  # None until an engine runs that can count them
    bits: float | None  # None until scored
    context_used: int  # tokens of path and draft together
    context_length: int | None  # None while no model is known
    parts: tuple[ContextPart, ...] = ()  # in order; empty where they are not known
    can_grow: bool = False  # the model has a larger context than it was loaded with
    new_tokens: int | None = None  # to be computed before the first token of the answer
    takes_roles: bool = True  # False: the model has no chat format, and continues the text as it stands


# ---- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """The path or the outline is another one: show `view` (turns that are unchanged are equal to the old ones)."""

    view: SessionView


@dataclass(frozen=True, slots=True)
class SessionCopied:
    """The sample was to be changed: it stays as it is, and what was asked goes on in a copy, `view`. Show that instead."""

    source_id: int
    view: SessionView


@dataclass(frozen=True, slots=True)
class TokensArrived:
    """Tokens to append to the last turn of the path."""

    session_id: int
    node_id: int
    run: TokenRun


@dataclass(frozen=True, slots=True)
class TurnChanged:
    """A turn of the path has new numbers or another state (scored, ended, stopped, failed)."""

    session_id: int
    turn: TurnView


@dataclass(frozen=True, slots=True)
class SessionsChanged:
    """The session list is another one."""


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """The status bar is another one."""

    status: StatusView


DrawingEvent = ColumnsChanged | ColumnTokens
Event = SessionChanged | SessionCopied | TokensArrived | TurnChanged | SessionsChanged | StatusChanged | DrawingEvent


class Workbench(SetupCommands, SettingsCommands, ShelfCommands, TransferUseCases, DrawingUses, Protocol):
    """The use cases of the app. Every coroutine may raise `Refusal`.

    A command that would change the sample makes a copy of it, says `SessionCopied`, and goes on there.
    """

    status: StatusView

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        """Events go to `listener` from now on."""

    async def sessions(self, query: str = "") -> Sequence[SessionSummary]:
        """The session list, pinned first, then the latest; those whose title or text matches `query`."""

    async def open_session(self, session_id: int) -> SessionView:
        """Reads a session from the store; no model is needed."""

    async def show_earlier(self, session_id: int) -> SessionView:
        """The same with more turns of the beginning of a long path, of which only the end is shown at first."""

    async def new_session(self) -> SessionView:
        """An empty session, or the one that is open and still empty; it stands in the list once it has a turn."""

    async def rename_session(self, session_id: int, title: str) -> None:
        """Gives it another title."""

    async def pin_session(self, session_id: int, pinned: bool) -> None:
        """To the top of the list, or back to its day."""

    async def trash_session(self, session_id: int) -> bool:
        """Into the trash, where it stays for 30 days; whether an answer was being written there, which is stopped."""

    async def restore_session(self, session_id: int) -> None:
        """Back out of the trash."""

    async def send(self, session_id: int, text: str, replaces: int | None = None) -> None:
        """Saves the user's turn, then streams an answer; returns when the answer has ended.

        With `replaces`, the turn stands beside that earlier user turn as another version of it (edit). So does a message
        after one that did not fit into the context.
        """

    async def branch(self, session_id: int, node_id: int, index: int, token_id: int) -> None:
        """Makes a sibling that replaces token `index` of the turn (an index into its run) by `token_id` and streams on."""

    async def regenerate(self, session_id: int, node_id: int) -> None:
        """Another answer beside the model's turn `node_id`."""

    async def regenerate_exactly(self, session_id: int, node_id: int) -> None:
        """The model's turn once more beside it, with the options, seed and model that made it.

        Its note says whether the two are the same, token for token, or where they part.
        """

    def how_made(self, session_id: int, node_id: int) -> Made | None:
        """How an answer was made; None where nobody kept it."""

    async def continue_turn(self, session_id: int, node_id: int) -> None:
        """Goes on with an answer that was stopped."""

    async def select(self, session_id: int, node_id: int) -> SessionView:
        """Shows the path through `node_id`, down to the leaf that was last shown under it."""

    def stop(self, session_id: int) -> None:
        """Stops the stream of a session; what arrived is kept."""

    async def compose(self, session_id: int, text: str, replaces: int | None = None) -> Composition:
        """Tokens and context of a draft, or of another version of the user's turn `replaces`; no forward."""

    async def score_draft(self, session_id: int, text: str, replaces: int | None = None) -> float | None:
        """Bits of a draft, computed behind everything else; None where that is not to be had now. May be cancelled."""

    async def read_file(self, path: str) -> TextFile:
        """A text file to go with a message; a binary one or one that is too large is refused, with numbers."""

    async def grow_context(self) -> None:
        """Loads the model with all the context it has, from the next request on."""

    async def leave_out(self, session_id: int, text: str) -> int:
        """Makes room for a message: the latest turns alone go on, beside the whole conversation; how many are left out."""

    async def models(self) -> Sequence[ModelChoice]:
        """What is on the shelf."""

    async def choose_model(self, source: str) -> None:
        """Loads another model from the next request on."""

    def backends(self) -> Sequence[BackendChoice]:
        """The engines that are known, registered ones too."""

    async def choose_backend(self, name: str) -> None:
        """Runs the model on another engine from the next request on."""

    def token_text(self, session_id: int, token_ids: Sequence[int]) -> Sequence[bytes]:
        """The bytes of any token (alternatives), without the engine; empty where the vocabulary is not known."""

    async def close(self) -> None:
        """Stops streams, saves, ends the engine; within 2 s."""
