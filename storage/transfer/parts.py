"""The parts of an import, in the order in which they are written. Nodes are numbered from 0 within their session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from storage.tables.checksums import COVERED

FORMAT: Final = "elsewise.session"
VERSION: Final = 1
SESSION_FIELDS: Final = frozenset({"title", "created", "updated", "pinned"})
NODE_FIELDS: Final = ("at_token", "at_byte", "role", "turn_start", "text", "status", "finish_reason", "token_count",
                      "kv_fingerprint", "stats", "created")  # fmt: skip
_SESSION_OWN: Final = frozenset(
    {"id", "touched", "is_sample", "current_node", "branches", "node_count", "trashed", "importing"}
)
_NODE_OWN: Final = frozenset({"id", "session_id", "parent_id", "at_end", "seq"})
SESSION_MORE: Final = frozenset(COVERED["sessions"]) - SESSION_FIELDS - _SESSION_OWN  # columns of later migrations
NODE_MORE: Final = frozenset(COVERED["nodes"]) - {*NODE_FIELDS} - _NODE_OWN


class SessionPart(Struct, frozen=True):
    """The beginning of a session; its nodes and tokens follow. None stands for the store's default."""

    title: str
    created: float | None = None
    updated: float | None = None
    pinned: bool = False
    more: Mapping[str, Any] = {}


class NodePart(Struct, frozen=True):
    """A run of tokens."""

    parent: int | None
    role: str
    text: str
    at_token: int | None = None
    at_byte: int | None = None
    at_end: bool = True
    turn_start: bool = True
    status: str = "complete"
    finish_reason: str | None = None
    token_count: int = 0
    kv_fingerprint: str | None = None
    stats: str = "{}"  # JSON
    created: float | None = None
    more: Mapping[str, Any] = {}


class TokensPart(Struct, frozen=True):
    """A range of a node's tokens as stored: packed columns, and the summary for the view `tokens`."""

    node: int
    kv_fingerprint: str
    first: int
    count: int
    columns: bytes
    summary: str


class ModelPart(Struct, frozen=True):
    """The model of a fingerprint, as JSON."""

    kv_fingerprint: str
    info: str


class VocabularyPart(Struct, frozen=True):
    """The bytes of all tokens, as the store packs them."""

    digest: str
    tokens: bytes


class SetupPart(Struct, frozen=True):
    """The setup of the session, as JSON."""

    value: str


class PlacePart(Struct, frozen=True):
    """Folder and tags of the session, for copies within one store."""

    folder_id: int | None
    tags: str  # JSON


class EndPart(Struct, frozen=True):
    """The end of a session."""

    current: int | None  # the tip that is shown
    branches: int


ImportPart = SessionPart | NodePart | TokensPart | ModelPart | VocabularyPart | SetupPart | PlacePart | EndPart


LOCAL: Final = ("adapters", "pruned", "names", "bookmarks")  # parts of a setup with folders, or with ids of nodes


def portable_setup(setup: object) -> dict[str, Any]:
    """The setup of a session without its `LOCAL` parts."""
    return {name: value for name, value in setup.items() if name not in LOCAL} if isinstance(setup, dict) else {}


def without_folders(stats: Any) -> Any:
    """The stats of a node with the adapters of ``made.stack`` as ``[null, name, scale, digest]``, without their folder."""
    made = stats.get("made") if isinstance(stats, Mapping) else None
    stack = made.get("stack") if isinstance(made, Mapping) else None
    if not isinstance(stack, list) or not stack:
        return stats
    kept = [[None, *use[1:]] if isinstance(use, list) and use else use for use in stack]
    return {**stats, "made": {**made, "stack": kept}}  # type: ignore[dict-item]  # checked above
