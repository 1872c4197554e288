"""Rows with checksums: SHA-256 over the fields of a row.

`PRAGMA integrity_check` finds broken pages, but not a flipped bit inside a text or blob.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import sqlite_utils

COVERED: Final[Mapping[str, tuple[str, ...]]] = {
    "sessions": ("id", "title", "created", "updated", "touched", "pinned", "is_sample", "current_node", "branches",
                 "node_count", "trashed", "importing"),
    "nodes": ("id", "session_id", "parent_id", "at_token", "at_byte", "at_end", "role", "turn_start", "text", "status",
              "finish_reason", "token_count", "kv_fingerprint", "stats", "seq", "created"),
    "token_chunks": ("id", "node_id", "kv_fingerprint", "first", "count", "columns", "summary"),
    "vocabularies": ("digest", "tokens"),
    "models": ("kv_fingerprint", "info"),
    "settings": ("key", "value"),
    "folders": ("id", "name", "place"),
    "places": ("id", "folder_id", "place", "tags"),
    "quarantine": ("id", "kind", "detail", "session_id", "title", "node_id", "turn", "source", "content", "found"),
}  # fmt: skip


def digest_of(values: Sequence[Any]) -> bytes:
    """SHA-256 of the values of a row, packed by msgpack, which preserves their types and borders."""
    return hashlib.sha256(msgspec.msgpack.encode(values)).digest()


def checksum(table: str, row: Mapping[str, Any]) -> bytes:
    """SHA-256 of the covered fields of `row`."""
    return digest_of([row[column] for column in COVERED[table]])


def intact(table: str, row: Mapping[str, Any]) -> bool:
    """Whether `row`, as read, matches its checksum."""
    return bool(row["sha256"] == checksum(table, row))


def insert(db: sqlite_utils.Database, table: str, values: Mapping[str, Any]) -> int:
    """Adds a row with its checksum to a table that numbers its rows, inside a transaction; returns the row's id."""
    names = list(values)
    places = ", ".join("?" * len(names))
    sql = f"INSERT INTO {table} ({', '.join(names)}, sha256) VALUES ({places}, x'')"  # noqa: S608  # our own names
    row_id = db.execute(sql, list(values.values())).lastrowid
    assert row_id is not None  # an INSERT has one
    row = {**dict.fromkeys(COVERED[table]), **values, "id": row_id}
    db.execute(f"UPDATE {table} SET sha256 = ? WHERE id = ?", [checksum(table, row), row_id])  # noqa: S608  # our own names
    return row_id


def update(db: sqlite_utils.Database, table: str, row: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Changes a row that was just read, inside a transaction.

    A damaged row keeps its old checksum, so that it is still reported.
    """
    sha = checksum(table, {**row, **changes}) if intact(table, row) else row["sha256"]
    sets = ", ".join(f"{name} = ?" for name in changes)
    sql = f"UPDATE {table} SET {sets}, sha256 = ? WHERE id = ?"  # noqa: S608  # our own names
    db.execute(sql, [*changes.values(), sha, row["id"]])


def renew(db: sqlite_utils.Database, table: str, row: Mapping[str, Any]) -> None:
    """Saves the new values of a damaged row that was copied to quarantine, with a new checksum: it counts as intact."""
    sets = ", ".join(f"{name} = ?" for name in COVERED[table])
    sql = f"UPDATE {table} SET {sets}, sha256 = ? WHERE id = ?"  # noqa: S608  # our own names
    db.execute(sql, [*(row[name] for name in COVERED[table]), checksum(table, row), row["id"]])


def put(db: sqlite_utils.Database, table: str, values: Mapping[str, Any]) -> None:
    """Adds or replaces a row, with its checksum, in a table with its own key."""
    names = list(values)
    places = ", ".join("?" * len(names))
    sql = f"INSERT OR REPLACE INTO {table} ({', '.join(names)}, sha256) VALUES ({places}, ?)"  # noqa: S608  # our own names
    db.execute(sql, [*values.values(), checksum(table, values)])
