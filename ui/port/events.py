"""What the workbench tells the window while commands run and between them, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from runtime import TokenRun
from ui.port.drawing import Columns
from ui.port.engine import StatusView
from ui.port.models import DownloadsChanged, ModelsChanged
from ui.port.sessions import SessionView
from ui.port.turns import TurnView


class SessionChanged(Struct, frozen=True):
    """The path or the outline is another one: show `view` (turns that are unchanged are equal to the old ones)."""

    view: SessionView


class SessionCopied(Struct, frozen=True):
    """The sample was to be changed: it stays as it is, and what was asked goes on in a copy, `view`. Show that instead."""

    source_id: int
    view: SessionView
    nodes: Mapping[int, int] = {}  # the numbers of its nodes, by those they have in the sample


class SessionBegun(Struct, frozen=True):
    """The first message of a session has its answer; the session's title are the message's first words."""

    session_id: int


class BranchAdded(Struct, frozen=True):
    """The path was left for a branch beside it. Told when that stands: its answer has ended, and was not taken back."""

    session_id: int
    before: int  # the last node of the path that was left
    after: int  # the last node of the branch


class TokensArrived(Struct, frozen=True):
    """Tokens to append to the last turn of the path."""

    session_id: int
    node_id: int
    run: TokenRun


class TurnChanged(Struct, frozen=True):
    """A turn of the path has new numbers or another state (scored, ended, stopped, failed)."""

    session_id: int
    turn: TurnView


class ColumnsChanged(Struct, frozen=True):
    """The columns of a session are other ones, have ended or failed: show `view`; None takes them away."""

    session_id: int
    view: Columns | None


class ColumnTokens(Struct, frozen=True):
    """Tokens to append to one column; `logprob` is the sum over all its tokens, nats; NaN: one has none."""

    session_id: int
    node_id: int
    run: TokenRun
    logprob: float


class SessionTrashed(Struct, frozen=True):
    """Another window threw away the session that is shown: show another one."""

    session_id: int


class SessionRestored(Struct, frozen=True):
    """Another window took a session out of the trash again."""

    session_id: int


class SessionsDeleted(Struct, frozen=True):
    """Another window deleted sessions for good."""

    session_ids: Sequence[int]


class WindowWanted(Struct, frozen=True):
    """Another window asked for the session that is shown: come to the front."""

    session_id: int


class SessionsChanged(Struct, frozen=True):
    """The session list is another one."""


class StatusChanged(Struct, frozen=True):
    """The status bar is another one."""

    status: StatusView


Event = (
    SessionChanged
    | SessionCopied
    | BranchAdded
    | SessionBegun
    | TokensArrived
    | TurnChanged
    | ColumnsChanged
    | ColumnTokens
    | SessionsChanged
    | SessionTrashed
    | SessionRestored
    | SessionsDeleted
    | WindowWanted
    | StatusChanged
    | DownloadsChanged
    | ModelsChanged
)
