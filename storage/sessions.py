"""Session rows: the list, and what can be changed about one."""

from __future__ import annotations

import time
from typing import Any

import sqlite_utils

from storage import sealed, search
from storage.database import fetch, scalar
from storage.errors import UnknownRowError
from storage.rows import SessionRow
from storage.text import clean


def create(db: sqlite_utils.Database, title: str, *, is_sample: bool) -> int:
    """Adds an empty session; returns its id."""
    now, title = time.time(), clean(title)
    values = {
        "title": title,
        "created": now,
        "updated": now,
        "touched": next_touch(db),
        "pinned": 0,
        "is_sample": int(is_sample),
        "branches": 0,
        "node_count": 0,
        "importing": 0,
    }
    session_id = sealed.insert(db, "sessions", values)
    search.index_title(db, session_id, title)
    return session_id


def require(db: sqlite_utils.Database, session_id: int) -> dict[str, Any]:
    """The row as a dictionary.

    Raises:
        UnknownRowError: There is no such session.
    """
    rows = fetch(db, "SELECT * FROM sessions WHERE id = ?", [session_id])
    if not rows:
        raise UnknownRowError(f"there is no session {session_id}")
    return rows[0]


def listing(db: sqlite_utils.Database, query: str) -> list[SessionRow]:
    """Sessions to show: pinned first, then the last touched; neither trashed nor half imported, but damaged ones always."""
    found = search.find(db, clean(query)) if query.strip() else None
    rows = fetch(db, "SELECT * FROM sessions ORDER BY pinned DESC, touched DESC, id DESC")
    return [
        view(row)
        for row in rows
        if (found is None or row["id"] in found)
        and (not (row["trashed"] is not None or row["importing"]) or not sealed.intact("sessions", row))
    ]


def trash(db: sqlite_utils.Database) -> list[SessionRow]:
    """Sessions in the trash, the last thrown away first."""
    rows = fetch(db, "SELECT * FROM sessions WHERE trashed IS NOT NULL AND NOT importing ORDER BY touched DESC")
    return [view(row) for row in rows]


def is_unfinished(row: dict[str, Any]) -> bool:
    """Whether it is being imported, or was when the app ended; a flipped bit must not say so."""
    return bool(row["importing"]) and sealed.intact("sessions", row)


def change(db: sqlite_utils.Database, session_id: int, **changes: Any) -> None:
    """Sets columns of one session."""
    sealed.update(db, "sessions", require(db, session_id), changes)


def rename(db: sqlite_utils.Database, session_id: int, title: str) -> None:
    """Gives a session another title."""
    change(db, session_id, title=clean(title))
    search.index_title(db, session_id, clean(title))


def touch(db: sqlite_utils.Database, row: dict[str, Any], *, nodes: int = 0, tips: int = 0, **changes: Any) -> None:
    """Moves a session to the top of the list after its content changed."""
    changes |= {
        "updated": time.time(),
        "touched": next_touch(db),
        "node_count": row["node_count"] + nodes,
        "branches": row["branches"] + tips,
    }
    sealed.update(db, "sessions", row, changes)


def view(row: dict[str, Any]) -> SessionRow:
    """A row for the world outside; a damaged field never keeps the list from being shown."""
    current = row["current_node"]
    return SessionRow(
        id=row["id"],
        title=str(row["title"]),
        created=_real(row["created"]),
        updated=_real(row["updated"]),
        pinned=bool(row["pinned"]),
        is_sample=bool(row["is_sample"]),
        current_node=current if isinstance(current, int) else None,
        branches=int(_real(row["branches"])),
        trashed=row["trashed"] is not None,
        damaged=not sealed.intact("sessions", row),
    )


def next_touch(db: sqlite_utils.Database) -> int:
    """What a session that changes now is sorted by.

    A sequence, not the clock: setting the clock back must not hide today's chats below last year's.
    """
    return int(scalar(db, "SELECT coalesce(max(touched), 0) + 1 FROM sessions"))


def _real(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
