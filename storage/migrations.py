"""Migrations of the sessions file: named functions, one transaction each, in the order of their numbers.

Never edit a released migration: the text of its statements is compared with the schema of each file.
"""

from __future__ import annotations

from typing import Final

import sqlite_utils
from sqlite_utils import Migrations

from storage.tables.views import VIEWS

APPLICATION_ID: Final = 0x454C5357  # "ELSW"

migrations = Migrations("elsewise.sessions")


def _execute_all(db: sqlite_utils.Database, script: str) -> None:
    """Runs the statements one by one: `executescript` would commit the migration's transaction first."""
    for statement in script.split(";\n"):
        if statement.strip():
            db.execute(statement)


_SESSIONS = """
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    title TEXT NOT NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    touched INTEGER NOT NULL,              -- sequence of the last change of content: the order of the list
    pinned INTEGER NOT NULL DEFAULT 0,
    is_sample INTEGER NOT NULL DEFAULT 0,
    current_node INTEGER REFERENCES nodes (id) DEFERRABLE INITIALLY DEFERRED,
    branches INTEGER NOT NULL DEFAULT 0,   -- tips of the tree
    node_count INTEGER NOT NULL DEFAULT 0, -- so that a lost node is noticed
    trashed REAL,                          -- when; NULL: not in the trash
    importing INTEGER NOT NULL DEFAULT 0,  -- 1: not complete yet, not shown
    sha256 BLOB NOT NULL
);
CREATE INDEX sessions_touched ON sessions (touched);

CREATE TABLE nodes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id INTEGER NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    parent_id INTEGER REFERENCES nodes (id) DEFERRABLE INITIALLY DEFERRED, -- no cascade: triggers nest 1,000 deep at most
    at_token INTEGER,                      -- tokens of the parent before this child; NULL: all
    at_byte INTEGER,
    at_end INTEGER NOT NULL,               -- 1: goes on where the parent ends
    role TEXT NOT NULL,
    turn_start INTEGER NOT NULL,
    text TEXT NOT NULL,
    status TEXT NOT NULL,
    finish_reason TEXT,
    token_count INTEGER NOT NULL DEFAULT 0, -- under kv_fingerprint; counted when the node is finished
    kv_fingerprint TEXT,                   -- of its own tokens
    stats TEXT NOT NULL DEFAULT '{}',
    seq INTEGER NOT NULL,                  -- order within the session
    created REAL NOT NULL,
    sha256 BLOB NOT NULL,
    UNIQUE (session_id, seq)
);
CREATE INDEX nodes_parent ON nodes (parent_id);
CREATE INDEX nodes_open ON nodes (status) WHERE status = 'open';

CREATE TABLE token_chunks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- of two chunks for one range the higher id counts
    node_id INTEGER NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    kv_fingerprint TEXT NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    columns BLOB NOT NULL,                 -- msgpack: name -> [dtype, shape, little-endian bytes]
    summary TEXT NOT NULL,                 -- JSON: [[id, text, logprob, rank, entropy], ...] for the view tokens
    sha256 BLOB NOT NULL
);
CREATE INDEX token_chunks_node ON token_chunks (node_id, kv_fingerprint, first, count);

CREATE TABLE vocabularies (digest TEXT PRIMARY KEY, tokens BLOB NOT NULL, sha256 BLOB NOT NULL);
CREATE TABLE models (kv_fingerprint TEXT PRIMARY KEY, info TEXT NOT NULL, sha256 BLOB NOT NULL);
CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL, sha256 BLOB NOT NULL);

-- rowid: a node's id, or minus a session's id for its title; body as storage/search.py writes it
CREATE VIRTUAL TABLE search USING fts5 (
    body, session_id UNINDEXED, tokenize = "unicode61 remove_diacritics 2 categories 'L* N* Co'"
);
"""


@migrations()
def m001_sessions(db: sqlite_utils.Database) -> None:
    """Sessions, their trees and tokens, vocabularies, models, settings, search, views."""
    _execute_all(db, _SESSIONS)
    for view in VIEWS.values():
        db.execute(view)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


_PLACES = """
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
    _execute_all(db, _PLACES)


_QUARANTINE = """
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
    _execute_all(db, _QUARANTINE)
