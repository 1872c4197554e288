"""Folders, and where a session stands: its folder, its tags, its place by hand."""

from __future__ import annotations

import sqlite_utils

from storage.migrations.registry import execute_all, migrations

_TABLES = """
CREATE TABLE folders (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    place INTEGER NOT NULL,                -- order among the folders
    sha256 BLOB NOT NULL
);

-- beside sessions, not in it: a lost or damaged row costs an order, never a chat
CREATE TABLE places (
    id INTEGER PRIMARY KEY REFERENCES sessions (id) ON DELETE CASCADE,
    folder_id INTEGER REFERENCES folders (id) DEFERRABLE INITIALLY DEFERRED,
    place INTEGER,                         -- by hand, among the pinned or in the folder; NULL: before those
    tags TEXT NOT NULL DEFAULT '[]',       -- JSON: ["word", ...], without repetition
    sha256 BLOB NOT NULL
);
CREATE INDEX places_folder ON places (folder_id)
"""


@migrations()
def m002_places(db: sqlite_utils.Database) -> None:
    """Folders and places."""
    execute_all(db, _TABLES)
