"""The frozen values that `storage` takes and returns, independent of SQL and the connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Columns = Mapping[str, npt.NDArray[np.generic]]
Role = Literal["system", "user", "assistant", "tool"]
Status = Literal["open", "complete", "partial"]
DamageKind = Literal["file", "search", "session", "node", "tokens", "vocabulary", "model", "setting", "folder", "place"]


class SessionRow(Struct, frozen=True):
    """One saved session. `created` and `updated` are seconds since the epoch, for display only, not for sorting."""

    id: int
    title: str
    created: float
    updated: float
    pinned: bool
    is_sample: bool
    current_node: int | None  # tip of the path that is shown
    branches: int  # number of tips: nodes that no other node continues at their end
    trashed: bool = False
    damaged: bool = False  # the row fails its checksum; its readable fields are shown
    trashed_at: float | None = None  # seconds since the epoch, to show how long the session stays in the trash
    folder_id: int | None = None
    tags: tuple[str, ...] = ()


class SearchHit(Struct, frozen=True):
    """The place in a node's text where the words of a search occur, with some text around them."""

    node_id: int
    before: str
    words: str  # the found words, as spelt in the text
    behind: str


class FolderRow(Struct, frozen=True):
    """A folder of sessions."""

    id: int
    name: str
    damaged: bool = False  # the row fails its checksum; renaming the folder repairs it


class NewNode(Struct, frozen=True):
    """A run of tokens to add to a session's tree."""

    session_id: int
    parent_id: int | None  # the run that this run continues; None for a root
    role: Role  # of the speaker
    text: str = ""  # the content, without the template's tokens; may be empty while `status` is "open"
    at_token: int | None = None  # number of the parent's tokens before this run; None: all
    at_byte: int | None = None  # the same place in the bytes of the parent's text
    turn_start: bool = True  # False: the run continues its parent's turn (by "continue", or as an alternative inside it)
    status: Status = "complete"  # "open" while more tokens will follow, else "complete" or "partial"
    finish_reason: str | None = None  # why the run ended, if it has and a reason is known
    stats: Mapping[str, Any] = {}  # how the run was made; any JSON values


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A saved run. `load_tokens` reads its tokens."""

    id: int
    session_id: int
    parent_id: int | None
    at_token: int | None
    at_byte: int | None
    role: str
    turn_start: bool
    text: str
    status: str
    finish_reason: str | None
    token_count: int  # tokens of its own model; while the run is open, those saved so far
    stats: Mapping[str, Any]
    seq: int  # order within the session
    kv_fingerprint: str | None  # the model that its tokens come from; None while it has no tokens
    damaged: bool = False  # the row fails its checksum, or tokens are missing or in quarantine

    @property
    def whole(self) -> bool:
        """Whether text and stats were read; false for a `storage.tables.node_columns.NodeStub`."""
        return True

    @property
    def has_text(self) -> bool:
        """Whether the text has words."""
        return bool(self.text)


class NewChunk(Struct, frozen=True):
    """Columns for tokens `first` to `first + count` of a node.

    Every column has `count` rows on its first axis, except ragged bytes: a one-dimensional column `data` (or `*_data`) is cut
    by the column `lengths` (or `*_lengths`) of `count` rows. The store itself uses these columns if present: `ids`, `logprob`,
    `rank`, `entropy` (nats), `origin` (0: from the template), `text_data` with `text_lengths` (UTF-8). Values are numbers and
    booleans of 1 to 8 bytes, never objects.
    """

    kv_fingerprint: str
    first: int
    count: int
    columns: Columns


class StoredChunk(Struct, frozen=True):
    """A range of a node's tokens as read; the ranges of a node are in order and do not overlap.

    `damaged` marks a range whose newest saved copy fails its checksum or is missing. `columns` is then an older intact copy
    (the same tokens, perhaps unscored), or empty.
    """

    node_id: int
    kv_fingerprint: str
    first: int
    count: int
    columns: Columns
    damaged: bool = False


class SessionTree(Struct, frozen=True):
    """A session and all its runs in the order of creation; parents come before their children."""

    session: SessionRow
    nodes: tuple[NodeRow, ...]


class SessionCopy(Struct, frozen=True):
    """The id of a session's copy, and the mapping of its runs."""

    session_id: int
    nodes: Mapping[int, int]  # the original's node -> the copy's


class Imported(Struct, frozen=True):
    """The result of an import: ids of the sessions in the order of the file, and notes on what was left out."""

    sessions: tuple[int, ...]
    notes: tuple[str, ...] = ()


class Salvage(Struct, frozen=True):
    """The result of a recovery from a damaged file."""

    sessions: int
    turns: int  # number of runs
    lost: tuple[str, ...]  # descriptions of the parts that could not be read
    kept: Path  # the damaged file under its new name


class DamageRow(Struct, frozen=True):
    """One damage that `verify` found."""

    kind: DamageKind
    detail: str  # plain words
    session_id: int | None = None
    title: str | None = None
    node_id: int | None = None
    turn: int | None = None  # counted from 1 along the path to the node
