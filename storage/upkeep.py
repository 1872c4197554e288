"""What is cleared away: sessions nothing was said in, answers that never began, and what was long enough in the trash.

Only rows with an intact checksum: a flipped bit must not delete anything.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, Final

import sqlite_utils

from storage import keep, nodes, sealed, search, sessions
from storage.database import fetch, scalar
from storage.errors import InvalidRowError

PAGES: Final = 256  # that one slice of vacuuming gives back
SLICE: Final = 64  # chunks of tokens that one transaction deletes: a few milliseconds


def expired(db: sqlite_utils.Database, days: float | None) -> list[int]:
    """Sessions that have been in the trash for longer than `days`; None: for however long."""
    limit = None if days is None else time.time() - days * 86_400
    sql = "SELECT * FROM sessions WHERE trashed IS NOT NULL AND (trashed <= ?1 OR ?1 IS NULL)"
    return [row["id"] for row in fetch(db, sql, [limit]) if sealed.intact("sessions", row)]


def vacuum_slice(db: sqlite_utils.Database) -> bool:
    """Gives some free pages back to the disk, a few milliseconds of work; whether there are more."""
    free = scalar(db, "PRAGMA freelist_count")
    db.conn.executescript(f"PRAGMA incremental_vacuum({PAGES})")  # `execute` would take one step, and free one page
    return bool(0 < scalar(db, "PRAGMA freelist_count") < free)


def purge_slice(db: sqlite_utils.Database, session_id: int) -> bool:
    """Deletes part of a trashed session for good; True when nothing is left to do: it is gone, or was taken back.

    Nobody waits long for the store meanwhile; if the app ends in between, the rest is still in the trash.
    """
    if not scalar(db, "SELECT count(*) FROM sessions WHERE id = ? AND trashed IS NOT NULL", [session_id]):
        return True
    chunks = fetch(
        db,
        "SELECT id FROM token_chunks WHERE node_id IN (SELECT id FROM nodes WHERE session_id = ?) LIMIT ?",
        [session_id, SLICE],
    )
    for row in chunks:
        db.execute("DELETE FROM token_chunks WHERE id = ?", [row["id"]])
    if len(chunks) == SLICE:
        return False
    _delete(db, session_id)
    return True


def drop_empty(db: sqlite_utils.Database, title: str, keep: Collection[int]) -> int:
    """Deletes sessions that are still called `title` and in which nothing was said, but those in `keep`; how many."""
    rows = fetch(
        db,
        """SELECT * FROM sessions s WHERE title = ? AND NOT pinned AND NOT is_sample AND NOT importing
           AND NOT EXISTS (SELECT 1 FROM places p WHERE p.id = s.id AND (p.folder_id IS NOT NULL OR p.tags <> '[]'))
           AND NOT EXISTS (
             SELECT 1 FROM nodes n WHERE n.session_id = s.id AND (n.role <> 'system' OR n.text <> '' OR n.stats <> '{}'))""",
        [title],
    )
    doomed = [row["id"] for row in rows if row["id"] not in keep and _is_whole(db, row)]
    for session_id in doomed:
        _delete(db, session_id)
    return len(doomed)


def discard(db: sqlite_utils.Database, node_id: int) -> None:
    """Deletes an answer that ended before it said anything; what was current there is current at its parent.

    Raises:
        InvalidRowError: It has words, is still written, or something goes on from it.
    """
    node = nodes.require(db, node_id)
    if node["role"] != "assistant" or node["status"] != "partial" or node["text"] or not sealed.intact("nodes", node):
        raise InvalidRowError(f"node {node_id} is not an answer that failed before it began; it stays")
    if scalar(db, "SELECT EXISTS (SELECT 1 FROM nodes WHERE parent_id = ?)", [node_id]):
        raise InvalidRowError(f"something goes on from node {node_id}; it stays")
    session = sessions.require(db, node["session_id"])
    search.index_node(db, node["session_id"], node_id, "")
    changes: dict[str, Any] = {"node_count": session["node_count"] - 1}
    if session["current_node"] == node_id:
        changes["current_node"] = node["parent_id"]
    db.execute("DELETE FROM nodes WHERE id = ?", [node_id])
    parent_ends = bool(node["at_end"]) and node["parent_id"] is not None and not nodes.goes_on(db, node["parent_id"])
    changes["branches"] = session["branches"] - (0 if parent_ends else 1)
    sealed.update(db, "sessions", session, changes)


def _is_whole(db: sqlite_utils.Database, session: dict[str, Any]) -> bool:
    """Whether a session is as it was written; a run that was lost may have been the one with the words."""
    held = scalar(db, "SELECT count(*) FROM nodes WHERE session_id = ?", [session["id"]])
    return sealed.intact("sessions", session) and bool(held == session["node_count"])


def _delete(db: sqlite_utils.Database, session_id: int) -> None:
    search.forget_session(db, session_id)
    db.execute("DELETE FROM settings WHERE key = ?", [keep.session_key(session_id)])
    db.execute("DELETE FROM sessions WHERE id = ?", [session_id])
