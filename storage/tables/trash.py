"""Deletes empty sessions, answers without text, and sessions after their time in the trash.

Only rows with an intact checksum are deleted, so that a flipped bit deletes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, Final

import sqlite_utils

from storage.database import fetch, require, scalar
from storage.errors import InvalidRowError, StoreDamagedError
from storage.tables import checksums, key_value, nodes, search, sessions

PAGES: Final = 256  # freed per slice of vacuuming
SLICE: Final = 32  # rows per query
SLICE_SECONDS: Final = 0.015  # of deletion per transaction, without the commit
_YEAR_10000: Final = 253_402_300_800.0  # seconds since the epoch
_LATEST: Final = "latest"  # the setting with the latest time that the store has seen


def latest(db: sqlite_utils.Database) -> float:
    """The latest time known to the store, in seconds since the epoch: now, or later if the clock was set back.

    A session trashed while the clock was wrong thus does not count as old after its correction.
    """
    try:
        seen = key_value.setting(db, _LATEST)
    except StoreDamagedError:
        seen = None
    changed = scalar(db, "SELECT max(updated) FROM sessions WHERE updated < ?", [_YEAR_10000])  # bits may have flipped
    times = (each for each in (seen, changed) if isinstance(each, int | float) and 0 < each < _YEAR_10000)
    return max((time.time(), *times))


def note_latest(db: sqlite_utils.Database) -> None:
    """Saves the latest time, which the store otherwise loses when sessions are deleted or changed under a wrong clock."""
    key_value.set_setting(db, _LATEST, latest(db))


def expired(db: sqlite_utils.Database, days: float | None) -> list[int]:
    """Sessions that have been in the trash for longer than `days`; None: all sessions in the trash."""
    limit = None if days is None else time.time() - days * 86_400
    sql = "SELECT * FROM sessions WHERE trashed IS NOT NULL AND (trashed <= ?1 OR ?1 IS NULL)"
    return [row["id"] for row in fetch(db, sql, [limit]) if checksums.intact("sessions", row)]


def vacuum_slice(db: sqlite_utils.Database) -> bool:
    """Returns some free pages to the disk within a few milliseconds; True if more are left."""
    free = scalar(db, "PRAGMA freelist_count")
    db.conn.executescript(f"PRAGMA incremental_vacuum({PAGES})")  # `execute` would take one step, and free one page
    return bool(0 < scalar(db, "PRAGMA freelist_count") < free)


def purge_slice(db: sqlite_utils.Database, session_id: int) -> bool:
    """Deletes part of a trashed session; True when the session is completely deleted, or was restored.

    A slice is short, so that other jobs of the store do not wait. The first slice marks the session as an unfinished import, so
    that the rest is deleted later if the app ends in between.
    """
    rows = fetch(db, "SELECT * FROM sessions WHERE id = ?", [session_id])
    if rows and rows[0]["trashed"] is not None and not rows[0]["importing"] and checksums.intact("sessions", rows[0]):
        checksums.update(db, "sessions", rows[0], {"importing": 1})
    return drop_slice(db, session_id)


def drop_slice(db: sqlite_utils.Database, session_id: int) -> bool:
    """Deletes part of an unfinished session; True when nothing is left of it."""
    deadline = time.perf_counter() + SLICE_SECONDS
    rows = fetch(db, "SELECT * FROM sessions WHERE id = ?", [session_id])
    if not rows or not sessions.is_unfinished(rows[0]):
        return True
    if rows[0]["current_node"] is not None:  # would refer to a run that is deleted before the session
        checksums.update(db, "sessions", rows[0], {"current_node": None})
    while True:
        batch = db.execute(
            "SELECT id FROM nodes WHERE session_id = ? ORDER BY seq DESC LIMIT ?", [session_id, SLICE]
        ).fetchall()
        if not batch:
            _delete(db, session_id)
            return True
        for [node_id] in batch:
            if not _drop_node(db, node_id) or time.perf_counter() > deadline:
                return False


def drop_empty(db: sqlite_utils.Database, title: str, keep: Collection[int]) -> int:
    """Deletes sessions called `title` without text and setup, except those in `keep`; returns their number."""
    rows = fetch(
        db,
        """SELECT * FROM sessions s WHERE title = ? AND NOT pinned AND NOT is_sample AND NOT importing
           AND NOT EXISTS (SELECT 1 FROM places p WHERE p.id = s.id AND (p.folder_id IS NOT NULL OR p.tags <> '[]'))
           AND NOT EXISTS (SELECT 1 FROM settings t WHERE t.key = 'session/' || s.id AND t.value <> '{}')
           AND NOT EXISTS (
             SELECT 1 FROM nodes n WHERE n.session_id = s.id AND (n.role <> 'system' OR n.text <> '' OR n.stats <> '{}'))""",
        [title],
    )
    empty = [row["id"] for row in rows if row["id"] not in keep and _is_complete(db, row)]
    for session_id in empty:
        _delete(db, session_id)
    return len(empty)


def discard(db: sqlite_utils.Database, node_id: int) -> None:
    """Deletes an answer that ended without text; if it was the shown tip, its parent becomes the shown tip.

    Raises:
        InvalidRowError: The run has text, is open, or another run continues it.
    """
    node = require(db, "nodes", node_id)
    if node["role"] != "assistant" or node["status"] != "partial" or node["text"] or not checksums.intact("nodes", node):
        raise InvalidRowError(f"node {node_id} is not an answer that failed before it began; it stays")
    if scalar(db, "SELECT EXISTS (SELECT 1 FROM nodes WHERE parent_id = ?)", [node_id]):
        raise InvalidRowError(f"something goes on from node {node_id}; it stays")
    session = require(db, "sessions", node["session_id"])
    search.index_node(db, node["session_id"], node_id, "")
    changes: dict[str, Any] = {"node_count": session["node_count"] - 1}
    if session["current_node"] == node_id:
        changes["current_node"] = node["parent_id"]
    db.execute("DELETE FROM nodes WHERE id = ?", [node_id])
    parent_ends = bool(node["at_end"]) and node["parent_id"] is not None and not nodes.goes_on(db, node["parent_id"])
    changes["branches"] = session["branches"] - (0 if parent_ends else 1)
    checksums.update(db, "sessions", session, changes)


def _is_complete(db: sqlite_utils.Database, session: dict[str, Any]) -> bool:
    """Whether the session's row is intact and no run is lost, since a lost run may have had text."""
    held = scalar(db, "SELECT count(*) FROM nodes WHERE session_id = ?", [session["id"]])
    return checksums.intact("sessions", session) and bool(held == session["node_count"])


def _drop_node(db: sqlite_utils.Database, node_id: int) -> bool:
    """Deletes a node with its tokens; False if only some of very many tokens were deleted."""
    chunks = db.execute("SELECT id FROM token_chunks WHERE node_id = ? LIMIT ?", [node_id, SLICE]).fetchall()
    for chunk in chunks:
        db.execute("DELETE FROM token_chunks WHERE id = ?", chunk)
    if len(chunks) == SLICE:
        return False
    db.execute("DELETE FROM search WHERE rowid = ?", [node_id])
    db.execute(
        "UPDATE nodes SET parent_id = NULL WHERE parent_id = ?", [node_id]
    )  # in a damaged tree a parent may come after its child
    db.execute("DELETE FROM nodes WHERE id = ?", [node_id])
    return True


def _delete(db: sqlite_utils.Database, session_id: int) -> None:
    search.forget_session(db, session_id)
    db.execute("DELETE FROM settings WHERE key IN (?, ?)", [key_value.session_key(session_id), key_value.ends_key(session_id)])
    db.execute("DELETE FROM quarantine WHERE session_id = ?", [session_id])
    db.execute("DELETE FROM sessions WHERE id = ?", [session_id])
