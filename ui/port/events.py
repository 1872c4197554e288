"""The events that the workbench sends to the window, in order."""

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
    """The path or the outline has changed: show `view` (unchanged turns are equal to the old ones)."""

    view: SessionView


class SessionCopied(Struct, frozen=True):
    """A command would have changed the sample: it goes on in a copy, `view`, which is to be shown instead."""

    source_id: int
    view: SessionView
    nodes: Mapping[int, int] = {}  # node ids of the copy, by those of the sample


class SessionBegun(Struct, frozen=True):
    """The first message of a session is answered; its title is the first words of that message."""

    session_id: int


class BranchAdded(Struct, frozen=True):
    """A new branch has replaced the path. Sent once the branch's answer has ended, and was not taken back."""

    session_id: int
    before: int  # the last node of the former path
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
    """The columns of a session have changed, ended or failed: show `view`; None closes them."""

    session_id: int
    view: Columns | None


class ColumnTokens(Struct, frozen=True):
    """Tokens to append to one column; `logprob` is the sum over all its tokens in nats, NaN if one is unknown."""

    session_id: int
    node_id: int
    run: TokenRun
    logprob: float


class SessionTrashed(Struct, frozen=True):
    """Another window moved the session shown to the trash: show another one."""

    session_id: int


class SessionRestored(Struct, frozen=True):
    """Another window restored a session from the trash."""

    session_id: int


class SessionsDeleted(Struct, frozen=True):
    """Another window deleted sessions for good."""

    session_ids: Sequence[int]


class WindowWanted(Struct, frozen=True):
    """Another window asked for the session shown here: come to the front."""

    session_id: int


class SessionsChanged(Struct, frozen=True):
    """The session list has changed."""


class StatusChanged(Struct, frozen=True):
    """`status` replaces what the status bar shows."""

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
