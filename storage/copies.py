"""A session copied whole: the same tree and tokens under new numbers."""

from __future__ import annotations

from typing import Any

import sqlite_utils

from storage import places, sealed, search, sessions
from storage.database import fetch
from storage.errors import StoreDamagedError
from storage.rows import SessionCopy
from storage.text import clean

_OWN = ("id", "sha256")  # what a copy has for itself


def copy(db: sqlite_utils.Database, session_id: int, title: str) -> SessionCopy:
    """Copies a session, into the same folder and with the same tags; one transaction."""
    source = sessions.require(db, session_id)
    rows = fetch(db, "SELECT * FROM nodes WHERE session_id = ? ORDER BY seq", [session_id])
    if not sealed.intact("sessions", source) or len(rows) != source["node_count"]:
        raise StoreDamagedError(f"session {session_id} is damaged and was not copied; `elsewise sessions verify` says where")
    target = sessions.create(db, title, is_sample=False)
    numbers: dict[int, int] = {}
    for row in rows:
        _require_intact("nodes", row)
        parent = row["parent_id"]
        values = {**_values(row), "session_id": target, "parent_id": None if parent is None else numbers[parent]}
        numbers[row["id"]] = sealed.insert(db, "nodes", values)
        search.index_node(db, target, numbers[row["id"]], clean(row["text"]))
        _copy_chunks(db, row["id"], numbers[row["id"]])
    made = sessions.require(db, target)
    current = numbers.get(source["current_node"])
    sealed.update(
        db, "sessions", made, {"current_node": current, "branches": source["branches"], "node_count": source["node_count"]}
    )
    for place in fetch(db, "SELECT * FROM places WHERE id = ?", [session_id]):
        if sealed.intact("places", place):  # a damaged one counts as none, as everywhere
            places.change(db, target, folder_id=place["folder_id"], tags=place["tags"])
    return SessionCopy(target, numbers)


def _copy_chunks(db: sqlite_utils.Database, node_id: int, target: int) -> None:
    for chunk in fetch(db, "SELECT * FROM token_chunks WHERE node_id = ? ORDER BY id", [node_id]):
        _require_intact("token_chunks", chunk)
        sealed.insert(db, "token_chunks", {**_values(chunk), "node_id": target})


def _values(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _OWN}


def _require_intact(table: str, row: dict[str, Any]) -> None:
    """A copy gets checksums of its own: damage must not be sealed in."""
    if not sealed.intact(table, row):
        raise StoreDamagedError(
            f"row {row['id']} of {table} is damaged, nothing was copied; `elsewise sessions verify` says where"
        )
