"""Parts of an import as rows: hidden by a flag until all of them are there, written in slices of a few milliseconds."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import sqlite_utils

from storage import keep, places, sealed, search, sessions
from storage.database import fetch, scalar
from storage.transfer.parts import (
    EndPart,
    ModelPart,
    NodePart,
    Part,
    PlacePart,
    SessionPart,
    SetupPart,
    TokensPart,
    VocabularyPart,
)

SLICE_SECONDS: Final = 0.015  # that one transaction works before it is committed, which takes some more


@dataclass(frozen=True, slots=True)
class Filled:
    """How far an import is. A slice makes a new one, so that a transaction that is tried again begins where it should.

    Attributes:
        sessions: Numbers of the sessions, the last one perhaps still growing.
        nodes: Numbers of the growing session's nodes, in the order of the file; shared by slices, each of which knows how
            many are its own.
        count: How many of them.
        created: When the growing session was made.
        known: What it says of models and tokenizers: kept by nobody before the sessions are there.
    """

    sessions: tuple[int, ...] = ()
    nodes: array[int] = field(default_factory=lambda: array("q"))
    count: int = 0
    created: float = 0.0
    known: tuple[ModelPart | VocabularyPart, ...] = ()

    def take(self, number: int) -> Filled:
        """One node more."""
        del self.nodes[self.count :]  # of a slice that was rolled back
        self.nodes.append(number)
        return replace(self, count=self.count + 1)


def fill(db: sqlite_utils.Database, filled: Filled, parts: Sequence[Part]) -> tuple[Filled, int]:
    """Writes parts until a slice's time is over, one at the least; what is there then, and how many were written."""
    deadline = time.perf_counter() + SLICE_SECONDS
    done = 0
    for part in parts:
        filled = _write(db, filled, part)
        done += 1
        if time.perf_counter() > deadline:
            break
    return filled, done


def show(db: sqlite_utils.Database, filled: Filled) -> None:
    """The imported sessions are there from now on, the first one on top of the list, with what is known of their models."""
    for part in filled.known:
        if isinstance(part, ModelPart):
            _put_new(db, "models", {"kv_fingerprint": part.kv_fingerprint, "info": part.info})
        else:
            _put_new(db, "vocabularies", {"digest": part.digest, "tokens": part.tokens})
    for session_id in reversed(filled.sessions):
        row = sessions.require(db, session_id)
        sealed.update(db, "sessions", row, {"importing": 0, "touched": sessions.next_touch(db)})


def unfinished(db: sqlite_utils.Database) -> list[int]:
    """Sessions that are being imported, or were when the app ended."""
    rows = fetch(db, "SELECT * FROM sessions WHERE importing")
    return [row["id"] for row in rows if sessions.is_unfinished(row)]


def _write(db: sqlite_utils.Database, filled: Filled, part: Part) -> Filled:
    match part:
        case SessionPart():
            return _begin(db, filled, part)
        case NodePart():
            return filled.take(_node(db, filled, part))
        case TokensPart():
            values = {"node_id": filled.nodes[part.node], "kv_fingerprint": part.kv_fingerprint, "first": part.first}
            values |= {"count": part.count, "columns": part.columns, "summary": part.summary}
            sealed.insert(db, "token_chunks", values)
        case ModelPart() | VocabularyPart():
            return replace(filled, known=(*filled.known, part))
        case SetupPart():
            sealed.put(db, "settings", {"key": keep.session_key(filled.sessions[-1]), "value": part.value})
        case PlacePart():
            held = scalar(db, "SELECT id FROM folders WHERE id = ?", [part.folder_id])  # it may be gone by now
            places.change(db, filled.sessions[-1], folder_id=held, tags=part.tags)
        case EndPart():
            current = None if part.current is None else filled.nodes[part.current]
            changes = {"current_node": current, "branches": part.branches, "node_count": filled.count}
            sealed.update(db, "sessions", sessions.require(db, filled.sessions[-1]), changes)
    return filled


def _begin(db: sqlite_utils.Database, filled: Filled, part: SessionPart) -> Filled:
    session_id = sessions.create(db, part.title, is_sample=False)
    row = sessions.require(db, session_id)
    created = row["created"] if part.created is None else part.created
    updated = row["updated"] if part.updated is None else part.updated
    changes = {**part.more, "created": created, "updated": updated, "pinned": int(part.pinned), "importing": 1}
    sealed.update(db, "sessions", row, changes)
    return Filled((*filled.sessions, session_id), created=created, known=filled.known)


def _node(db: sqlite_utils.Database, filled: Filled, part: NodePart) -> int:
    session_id = filled.sessions[-1]
    values: dict[str, Any] = {
        **part.more,
        "session_id": session_id,
        "parent_id": None if part.parent is None else filled.nodes[part.parent],
        "at_token": part.at_token,
        "at_byte": part.at_byte,
        "at_end": int(part.at_end),
        "role": part.role,
        "turn_start": int(part.turn_start),
        "text": part.text,
        "status": part.status,
        "finish_reason": part.finish_reason,
        "token_count": part.token_count,
        "kv_fingerprint": part.kv_fingerprint,
        "stats": part.stats,
        "seq": filled.count + 1,
        "created": filled.created if part.created is None else part.created,
    }
    node_id = sealed.insert(db, "nodes", values)
    if part.text:
        search.index_fresh(db, session_id, node_id, part.text)
    return node_id


def _put_new(db: sqlite_utils.Database, table: str, values: dict[str, Any]) -> None:
    """Adds what nobody knows yet; what is known here already is not what somebody else says it is."""
    key = sealed.COVERED[table][0]
    if not fetch(db, f"SELECT 1 FROM {table} WHERE {key} = ?", [values[key]]):  # noqa: S608  # our own names
        sealed.put(db, table, values)
