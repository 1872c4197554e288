"""Rows that were found damaged, as they were read, out of the way of everything that works."""

from __future__ import annotations

import sqlite_utils

from storage.migrations.registry import execute_all, migrations

_TABLES = """
CREATE TABLE quarantine (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,                    -- as verify names it
    detail TEXT NOT NULL,                  -- what was wrong, in plain words
    session_id INTEGER,                    -- no reference: it outlives whatever it belonged to, but a session deleted for good
    title TEXT,
    node_id INTEGER,
    turn INTEGER,                          -- counted from 1 along the path
    source TEXT NOT NULL,                  -- the table it stood in
    content BLOB NOT NULL,                 -- msgpack: column -> value as it was read
    found REAL NOT NULL,                   -- seconds since the epoch
    sha256 BLOB NOT NULL
);
CREATE INDEX quarantine_session ON quarantine (session_id)
"""


@migrations()
def m003_quarantine(db: sqlite_utils.Database) -> None:
    """Quarantine."""
    execute_all(db, _TABLES)
