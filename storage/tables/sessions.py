"""Session rows: the list, and changes of a session."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import sqlite_utils

from storage.database import fetch, require, scalar
from storage.rows import SessionRow
from storage.tables import checksums, search
from storage.tables.text import clean, to_json

_COUNT: Final = len(checksums.COVERED["sessions"])
_OWN: Final = ", ".join(f"s.{name}" for name in checksums.COVERED["sessions"])
LISTED: Final = f"""
SELECT {_OWN}, s.sha256, p.id, p.folder_id, p.place, p.tags, p.sha256
FROM sessions s LEFT JOIN places p ON p.id = s.id
WHERE :found IS NULL OR s.id IN (SELECT value FROM json_each(:found))
ORDER BY s.pinned DESC, p.place IS NOT NULL, p.place, s.touched DESC, s.id DESC
"""  # noqa: S608  # our own names


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
    session_id = checksums.insert(db, "sessions", values)
    search.index_title(db, session_id, title)
    return session_id


def listing(db: sqlite_utils.Database, query: str) -> list[SessionRow]:
    """Sessions to show: pinned first, then the last touched. Omits trashed and unfinished ones, unless they are damaged.

    Among pinned sessions, and in a folder, sessions with a manual order come after the others. A query word that begins with #
    is the prefix of a tag.
    """
    words = clean(query).split()
    tags = [word[1:].casefold() for word in words if word[:1] == "#" and word[1:]]
    rest = " ".join(word for word in words if word[:1] != "#" or not word[1:])
    found = search.find(db, rest) if rest else None
    cursor = db.execute(LISTED, {"found": None if found is None else to_json(sorted(found))})
    rows = [_listed(row) for row in cursor]
    return [row for row in rows if row is not None and all(_is_tagged(row, tag) for tag in tags)]


def trash(db: sqlite_utils.Database) -> list[SessionRow]:
    """Sessions in the trash, the last trashed first."""
    rows = fetch(db, "SELECT * FROM sessions WHERE trashed IS NOT NULL AND NOT importing ORDER BY trashed DESC, touched DESC")
    return [view(row) for row in rows]


def is_unfinished(row: dict[str, Any]) -> bool:
    """Whether an intact row belongs to an import that is running, or was running when the app ended."""
    return bool(row["importing"]) and checksums.intact("sessions", row)


def change(db: sqlite_utils.Database, session_id: int, **changes: Any) -> None:
    """Sets columns of one session."""
    checksums.update(db, "sessions", require(db, "sessions", session_id), changes)


def rename(db: sqlite_utils.Database, session_id: int, title: str) -> None:
    """Changes the title of a session."""
    change(db, session_id, title=clean(title))
    search.index_title(db, session_id, clean(title))


def touch(db: sqlite_utils.Database, row: dict[str, Any], *, nodes: int = 0, tips: int = 0, **changes: Any) -> None:
    """Moves a session to the top of the list after a change of its content, and counts new nodes and tips."""
    changes |= {
        "updated": time.time(),
        "touched": next_touch(db),
        "node_count": row["node_count"] + nodes,
        "branches": row["branches"] + tips,
    }
    checksums.update(db, "sessions", row, changes)


def view(row: dict[str, Any]) -> SessionRow:
    """A row as a `SessionRow`; accepts damaged values, so that the list can always be shown."""
    return _view([row[name] for name in checksums.COVERED["sessions"]], damaged=not checksums.intact("sessions", row))


def tags_of(text: object) -> tuple[str, ...]:
    """The tags of a row; none where they cannot be read."""
    try:
        found = msgspec.json.decode(str(text))
    except msgspec.DecodeError:
        return ()
    return tuple(tag for tag in found if isinstance(tag, str)) if isinstance(found, list) else ()


def _listed(row: tuple[Any, ...]) -> SessionRow | None:
    """A row of `LISTED`; None if it is hidden. Written in plain Python for speed with thousands of rows."""
    own, sha256, place, place_sha256 = row[:_COUNT], row[_COUNT], row[_COUNT + 1 : -1], row[-1]
    trashed, importing = own[-2:]
    damaged = checksums.digest_of(own) != sha256
    if (trashed is not None or importing) and not damaged:
        return None
    placed = place_sha256 is not None and checksums.digest_of(place) == place_sha256
    return _view(own, damaged, place[1] if placed else None, tags_of(place[3]) if placed else ())


def _view(own: Sequence[Any], damaged: bool, folder: int | None = None, tags: tuple[str, ...] = ()) -> SessionRow:
    number, title, created, updated, _, pinned, is_sample, current, branches, _, trashed, _ = own
    return SessionRow(
        id=number,
        title=str(title),
        created=_real(created),
        updated=_real(updated),
        pinned=bool(pinned),
        is_sample=bool(is_sample),
        current_node=current if isinstance(current, int) else None,
        branches=int(_real(branches)),
        trashed=trashed is not None,
        damaged=damaged,
        trashed_at=None if trashed is None else _real(trashed),
        folder_id=folder,
        tags=tags,
    )


def _is_tagged(row: SessionRow, start: str) -> bool:
    return any(tag.casefold().startswith(start) for tag in row.tags)


def next_touch(db: sqlite_utils.Database) -> int:
    """The next value of `touched`, by which sessions are sorted.

    It is a sequence number instead of a time, so that a clock set back does not sort today's chats below last year's.
    """
    return int(scalar(db, "SELECT coalesce(max(touched), 0) + 1 FROM sessions"))


def _real(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
