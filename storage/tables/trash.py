"""What is cleared away: sessions nothing was said in, answers that never began, and what was long enough in the trash.

Only rows with an intact checksum: a flipped bit must not delete anything.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, Final

import sqlite_utils

from storage.database import fetch, scalar
from storage.errors import InvalidRowError, StoreDamagedError
from storage.tables import checksums, key_value, nodes, search, sessions

PAGES: Final = 256  # that one slice of vacuuming gives back
SLICE: Final = 32  # rows that are looked up at once
SLICE_SECONDS: Final = 0.015  # that one transaction deletes before it is committed, which takes some more
_YEAR_10000: Final = 253_402_300_800.0  # seconds since the epoch
_LATEST: Final = "latest"  # the setting of the latest moment that was ever seen


def latest(db: sqlite_utils.Database) -> float:
    """The latest moment that the store knows of, in seconds since the epoch: now, or later where the clock was set back.

    What is thrown away under a clock that is wrong is not taken for old when it is right again.
    """
    try:
        seen = key_value.setting(db, _LATEST)
    except StoreDamagedError:
        seen = None
    changed = scalar(db, "SELECT max(updated) FROM sessions WHERE updated < ?", [_YEAR_10000])  # a flipped bit is no moment
    told = (each for each in (seen, changed) if isinstance(each, int | float) and 0 < each < _YEAR_10000)
    return max((time.time(), *told))


def note_latest(db: sqlite_utils.Database) -> None:
    """Keeps that moment: sessions that are deleted or changed under a wrong clock forget it."""
    key_value.set_setting(db, _LATEST, latest(db))


def expired(db: sqlite_utils.Database, days: float | None) -> list[int]:
    """Sessions that have been in the trash for longer than `days`; None: for however long."""
    limit = None if days is None else time.time() - days * 86_400
    sql = "SELECT * FROM sessions WHERE trashed IS NOT NULL AND (trashed <= ?1 OR ?1 IS NULL)"
    return [row["id"] for row in fetch(db, sql, [limit]) if checksums.intact("sessions", row)]


def vacuum_slice(db: sqlite_utils.Database) -> bool:
    """Gives some free pages back to the disk, a few milliseconds of work; whether there are more."""
    free = scalar(db, "PRAGMA freelist_count")
    db.conn.executescript(f"PRAGMA incremental_vacuum({PAGES})")  # `execute` would take one step, and free one page
    return bool(0 < scalar(db, "PRAGMA freelist_count") < free)


def purge_slice(db: sqlite_utils.Database, session_id: int) -> bool:
    """Deletes part of a trashed session for good; True when nothing is left to do: it is gone, or was taken back.

    A slice is short, so that other work on the store does not wait. The first one takes the session out of the trash; if the
    app ends in between, the rest is deleted as an unfinished import.
    """
    rows = fetch(db, "SELECT * FROM sessions WHERE id = ?", [session_id])
    if rows and rows[0]["trashed"] is not None and not rows[0]["importing"] and checksums.intact("sessions", rows[0]):
        checksums.update(db, "sessions", rows[0], {"importing": 1})
    return drop_slice(db, session_id)


def drop_slice(db: sqlite_utils.Database, session_id: int) -> bool:
    """Deletes part of a hidden session; True when nothing is left of it."""
    deadline = time.perf_counter() + SLICE_SECONDS
    rows = fetch(db, "SELECT * FROM sessions WHERE id = ?", [session_id])
    if not rows or not sessions.is_unfinished(rows[0]):
        return True
    if rows[0]["current_node"] is not None:  # it refers to a run that goes now, while the session stays for a later slice
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
    """Deletes sessions that are still called `title`, in which nothing was said and set, but those in `keep`; how many."""
    rows = fetch(
        db,
        """SELECT * FROM sessions s WHERE title = ? AND NOT pinned AND NOT is_sample AND NOT importing
           AND NOT EXISTS (SELECT 1 FROM places p WHERE p.id = s.id AND (p.folder_id IS NOT NULL OR p.tags <> '[]'))
           AND NOT EXISTS (SELECT 1 FROM settings t WHERE t.key = 'session/' || s.id AND t.value <> '{}')
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
    if node["role"] != "assistant" or node["status"] != "partial" or node["text"] or not checksums.intact("nodes", node):
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
    checksums.update(db, "sessions", session, changes)


def _is_whole(db: sqlite_utils.Database, session: dict[str, Any]) -> bool:
    """Whether a session is as it was written; a run that was lost may have been the one with the words."""
    held = scalar(db, "SELECT count(*) FROM nodes WHERE session_id = ?", [session["id"]])
    return checksums.intact("sessions", session) and bool(held == session["node_count"])


def _drop_node(db: sqlite_utils.Database, node_id: int) -> bool:
    """Deletes a node with its tokens; False where these are so many that some are left, and it."""
    chunks = db.execute("SELECT id FROM token_chunks WHERE node_id = ? LIMIT ?", [node_id, SLICE]).fetchall()
    for chunk in chunks:
        db.execute("DELETE FROM token_chunks WHERE id = ?", chunk)
    if len(chunks) == SLICE:
        return False
    db.execute("DELETE FROM search WHERE rowid = ?", [node_id])
    db.execute("UPDATE nodes SET parent_id = NULL WHERE parent_id = ?", [node_id])  # in a damaged tree parents may come last
    db.execute("DELETE FROM nodes WHERE id = ?", [node_id])
    return True


def _delete(db: sqlite_utils.Database, session_id: int) -> None:
    search.forget_session(db, session_id)
    db.execute("DELETE FROM settings WHERE key IN (?, ?)", [key_value.session_key(session_id), key_value.ends_key(session_id)])
    db.execute("DELETE FROM quarantine WHERE session_id = ?", [session_id])
    db.execute("DELETE FROM sessions WHERE id = ?", [session_id])
