"""Node rows: the tree of runs. A finished node never changes; an edit is a sibling."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

import msgspec
import sqlite_utils
from msgspec.structs import replace

from storage.database import dictionaries, fetch, require, scalar
from storage.errors import InvalidRowError, UnknownRowError
from storage.rows import NewChunk, NewNode, NodeRow, Role, SessionTree, Status
from storage.tables import checksums, search, sessions, token_chunks
from storage.tables.node_columns import NodeColumns, SessionShape
from storage.tables.text import clean, to_json

DAMAGED: Final = "damaged"  # finish reason of a run with tokens in quarantine, see `storage.repair.row_repair`
_COMPLETE: Final = (None, "eos", "stop", "grammar")  # finish reasons of complete answers; all others are partial

_SHAPE: Final = """
SELECT n.*, (SELECT max(c.first + c.count) FROM token_chunks c
             WHERE c.node_id = n.id AND c.kv_fingerprint = n.kv_fingerprint) AS saved
FROM nodes n WHERE n.session_id = :session AND (:some IS NULL OR n.id > :after OR n.id IN (SELECT value FROM json_each(:some)))
ORDER BY n.seq
"""


def add(db: sqlite_utils.Database, new: NewNode, chunk: NewChunk | None, *, current: bool) -> int:
    """Adds a run with its first tokens, if any; returns its id."""
    session = require(db, "sessions", new.session_id)
    if new.role not in get_args(Role) or new.status not in get_args(Status):
        raise InvalidRowError(f"role {new.role!r} with status {new.status!r} is not one the store knows")
    at_end = _leaves_at_end(db, new)
    grows_a_tip = new.parent_id is not None and at_end and not goes_on(db, new.parent_id)
    text = clean(new.text)
    values = {
        "session_id": new.session_id,
        "parent_id": new.parent_id,
        "at_token": None if new.at_token is None else int(new.at_token),
        "at_byte": None if new.at_byte is None else int(new.at_byte),
        "at_end": int(at_end),
        "role": new.role,
        "turn_start": int(new.turn_start),
        "text": text,
        "status": new.status,
        "finish_reason": new.finish_reason,
        "token_count": 0,
        "stats": to_json(dict(new.stats)),
        "seq": scalar(db, "SELECT coalesce(max(seq), 0) + 1 FROM nodes WHERE session_id = ?", [new.session_id]),
        "created": time.time(),
    }
    node_id = checksums.insert(db, "nodes", values)
    if chunk is not None:
        token_chunks.append(db, require(db, "nodes", node_id), chunk)
    search.index_node(db, new.session_id, node_id, text)
    sessions.touch(db, session, nodes=1, tips=0 if grows_a_tip else 1, **({"current_node": node_id} if current else {}))
    return node_id


def finish(
    db: sqlite_utils.Database,
    node_id: int,
    *,
    finish_reason: str | None,
    incomplete: bool,
    stats: Mapping[str, Any],
    text: str,
) -> None:
    """Ends an open run: counts its tokens and makes the row final."""
    row = require(db, "nodes", node_id)
    if row["status"] != "open":
        raise InvalidRowError(f"node {node_id} is already {row['status']} and does not change any more")
    changes = {
        "status": "complete" if finish_reason in _COMPLETE and not incomplete else "partial",
        "finish_reason": finish_reason,
        "text": clean(text),
        "token_count": token_chunks.saved_end(db, node_id, row["kv_fingerprint"]),
        "stats": to_json({**msgspec.json.decode(row["stats"]), **stats}),
    }
    checksums.update(db, "nodes", row, changes)
    search.index_node(db, row["session_id"], node_id, clean(text))
    sessions.touch(db, require(db, "sessions", row["session_id"]))


def set_current(db: sqlite_utils.Database, session_id: int, node_id: int | None) -> None:
    """Makes `node_id` the tip of the path that is shown."""
    if node_id is not None and require(db, "nodes", node_id)["session_id"] != session_id:
        raise InvalidRowError(f"node {node_id} does not belong to session {session_id}")
    sessions.change(db, session_id, current_node=node_id)


def tree(db: sqlite_utils.Database, session_id: int) -> SessionTree:
    """A session and all its runs, without tokens."""
    session = require(db, "sessions", session_id)
    rows = fetch(db, "SELECT * FROM nodes WHERE session_id = ? ORDER BY seq", [session_id])
    ends = token_chunks.saved_ends(db, session_id)
    view = sessions.view(session)
    if len(rows) != session["node_count"]:
        view = replace(view, damaged=True)
    return SessionTree(view, tuple(_view(row, ends.get((row["id"], row["kv_fingerprint"]), 0)) for row in rows))


def shape(db: sqlite_utils.Database, session_id: int) -> SessionShape:
    """A session and the tree of its runs; reads and checks one row at a time."""
    session = require(db, "sessions", session_id)
    columns = NodeColumns(session_id)
    for node in _views(db, session_id, None, 0):
        columns.append(node)
    view = sessions.view(session)
    return SessionShape(view if len(columns) == session["node_count"] else replace(view, damaged=True), columns)


def some(db: sqlite_utils.Database, session_id: int, node_ids: Sequence[int], after: int | None) -> list[NodeRow]:
    """The given runs of a session, and all with ids above `after`, in the order of creation; unknown ids are left out."""
    wanted = json.dumps([int(n) for n in node_ids])
    return list(_views(db, session_id, wanted, sys.maxsize if after is None else after))


def one(db: sqlite_utils.Database, session_id: int, node_id: int) -> NodeRow:
    """One run of a session.

    Raises:
        UnknownRowError: The session has no run with that id.
    """
    row = require(db, "nodes", node_id)
    if row["session_id"] != session_id:
        raise UnknownRowError(f"there is no node {node_id} in session {session_id}")
    return _view(row, token_chunks.saved_end(db, node_id, row["kv_fingerprint"]))


def close_open_runs(db: sqlite_utils.Database) -> int:
    """Marks all open runs as partial, with the text of their saved tokens; returns their number.

    Only for the writer of the data folder, before it adds anything, when no process writes an open run.
    """
    rows = fetch(db, "SELECT * FROM nodes WHERE status = 'open'")
    for row in rows:
        text, count = token_chunks.text_so_far(db, row)
        changes = {"status": "partial", "finish_reason": "app_ended", "text": text, "token_count": count}
        checksums.update(db, "nodes", row, changes)
        search.index_node(db, row["session_id"], row["id"], text)
    return len(rows)


def _views(db: sqlite_utils.Database, session_id: int, some: str | None, after: int) -> Iterator[NodeRow]:
    for row in dictionaries(db.execute(_SHAPE, {"session": session_id, "some": some, "after": after})):
        yield _view(row, int(row.pop("saved") or 0))


def _view(row: dict[str, Any], saved: int) -> NodeRow:
    damaged = not checksums.intact("nodes", row)
    try:
        stats = msgspec.json.decode(str(row["stats"]))
    except msgspec.DecodeError:
        stats, damaged = {}, True
    still_open = row["status"] == "open"
    return NodeRow(
        id=row["id"],
        session_id=row["session_id"],
        parent_id=row["parent_id"],
        at_token=row["at_token"],
        at_byte=row["at_byte"],
        role=str(row["role"]),
        turn_start=bool(row["turn_start"]),
        text=str(row["text"]),
        status=str(row["status"]),
        finish_reason=row["finish_reason"],
        token_count=saved if still_open else row["token_count"],
        stats=stats,
        seq=row["seq"],
        kv_fingerprint=row["kv_fingerprint"],
        damaged=damaged or row["finish_reason"] == DAMAGED or (not still_open and saved != row["token_count"]),
    )


def _leaves_at_end(db: sqlite_utils.Database, new: NewNode) -> bool:
    """Whether the new run continues its parent at the parent's end; refuses a place beyond the parent."""
    if not (0 <= (new.at_token or 0) <= token_chunks.MAX_TOKENS and 0 <= (new.at_byte or 0) <= sys.maxsize):
        raise InvalidRowError(f"token {new.at_token}, byte {new.at_byte} is not a place in a run")
    if new.parent_id is None:
        if new.at_token is not None:
            raise InvalidRowError(f"a root has no parent to leave at token {new.at_token}")
        return True
    parent = require(db, "nodes", new.parent_id)
    if parent["session_id"] != new.session_id:
        raise InvalidRowError(f"parent {new.parent_id} belongs to session {parent['session_id']}, not {new.session_id}")
    if new.at_token is None:
        return True
    if parent["status"] == "open":  # the parent may have unsaved tokens
        return False
    if new.at_token > parent["token_count"]:
        raise InvalidRowError(
            f"node {new.parent_id} has {parent['token_count']} tokens, token {new.at_token} is not among them"
        )
    return bool(new.at_token == parent["token_count"])


def goes_on(db: sqlite_utils.Database, node_id: int) -> bool:
    """Whether another node continues a node at its end."""
    return bool(scalar(db, "SELECT EXISTS (SELECT 1 FROM nodes WHERE parent_id = ? AND at_end)", [node_id]))
