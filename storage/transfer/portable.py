"""The portable session file: one SQLite file with the tree, its tokens and how they were made; KV blocks if wanted.

Its tables are its own, so that it can be read whatever the store's schema is. Every row has a SHA-256 over its other
columns. Blocks are copied in behind it by the engine (`BlockStore.copy_to`), into tables of the block file's own.

| table | row |
|---|---|
| `about` | `name`, `value`: JSON; "session" as in the JSON format, "setup" and "snapshot" where there is one |
| `nodes` | a node as in the JSON format, `stats` and `more` as JSON text |
| `tokens` | a range of a node's tokens: `columns` is msgpack of name -> (dtype, shape, little-endian bytes) |
| `models`, `vocabularies` | what fingerprints and tokenizer digests stand for |

`PRAGMA user_version` is the format's version.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec

from storage import columns
from storage.text import to_json
from storage.transfer.drafts import draft_of
from storage.transfer.exporting import model_record, node_record, session_record
from storage.transfer.folders import travelling
from storage.transfer.reading import StoredSession, stored_session

OnProgress = Callable[[int, int], None]  # nodes done and in all; raising in it cancels
APPLICATION_ID: Final = 0x454C5350  # "ELSP"
PORTABLE_VERSION: Final = 1
TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "about": ("name TEXT PRIMARY KEY", "value TEXT NOT NULL"),
    "nodes": ("id INTEGER PRIMARY KEY", "parent INTEGER", "at_token INTEGER", "at_byte INTEGER", "role TEXT NOT NULL",
              "turn_start INTEGER NOT NULL", "text TEXT NOT NULL", "status TEXT NOT NULL", "finish_reason TEXT",
              "token_count INTEGER NOT NULL", "kv_fingerprint TEXT", "stats TEXT NOT NULL", "created REAL NOT NULL",
              "more TEXT NOT NULL"),
    "tokens": ("id INTEGER PRIMARY KEY", "node INTEGER NOT NULL", "kv_fingerprint TEXT NOT NULL", "first INTEGER NOT NULL",
               "count INTEGER NOT NULL", "columns BLOB NOT NULL"),
    "models": ("kv_fingerprint TEXT PRIMARY KEY", "info TEXT NOT NULL"),
    "vocabularies": ("digest TEXT PRIMARY KEY", "tokens BLOB NOT NULL"),
}  # fmt: skip
_SLICE: Final = 512  # rows


def definition(table: str) -> str:
    """How a table is made, exactly."""
    return f"CREATE TABLE {table} ({', '.join(TABLES[table])}, sha256 BLOB NOT NULL)"


def names(table: str) -> list[str]:
    """Its columns, without the checksum."""
    return [column.split()[0] for column in TABLES[table]]


def seal(values: Sequence[Any]) -> bytes:
    """SHA-256 of a row's values; msgpack keeps their types and borders apart."""
    return hashlib.sha256(msgspec.msgpack.encode(list(values))).digest()


def export_portable(
    store: Path, session_id: int, path: Path, progress: OnProgress, snapshot: Mapping[str, Any] | None = None
) -> None:
    """Writes a portable session file, without blocks, and closes it; blocking, any thread.

    Args:
        store: The sessions file.
        session_id: Which session.
        path: Where to; replaced when the export is whole, untouched before.
        progress: Hears of nodes, each of which is written twice: itself, and its tokens.
        snapshot: What the engine says of the session (`Snapshot.to_mapping`).

    Raises:
        UnknownRowError: There is no such session.
        StoreDamagedError: Part of it is damaged.
        StoreFullError, StoreReadOnlyError: `path` cannot be written.
    """
    with stored_session(store, session_id) as session:
        session.require_whole()
        with draft_of(path) as draft, closing(sqlite3.connect(draft, isolation_level=None)) as conn:
            conn.execute("PRAGMA journal_mode = OFF")  # the draft is thrown away where anything fails
            conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            conn.execute(f"PRAGMA user_version = {PORTABLE_VERSION}")
            for table in TABLES:
                conn.execute(definition(table))
            about: dict[str, Any] = {"session": session_record(session.row)}
            if setup := travelling(session.setup()):
                about["setup"] = setup
            if snapshot is not None:
                about["snapshot"] = dict(snapshot)
            _write(conn, "about", ((name, to_json(value)) for name, value in about.items()))
            _write(conn, "models", ((row["kv_fingerprint"], to_json(model_record(row)["info"])) for row in session.models()))
            _write(conn, "vocabularies", ((row["digest"], row["tokens"]) for row in session.vocabularies()))
            _write(conn, "nodes", _nodes(session, progress))
            _write(conn, "tokens", _tokens(session, progress))


def _nodes(session: StoredSession, progress: OnProgress) -> Iterator[list[Any]]:
    for done, row in enumerate(session.nodes()):
        record = node_record(row)
        record |= {name: to_json(record[name]) for name in ("stats", "more")}
        yield [int(value) if isinstance(value := record[name], bool) else value for name in names("nodes")]
        progress(done + 1, 2 * session.node_count)


def _tokens(session: StoredSession, progress: OnProgress) -> Iterator[list[Any]]:
    number = 0
    for done, row in enumerate(session.nodes(), session.node_count):
        for fingerprint, first, count, found in session.ranges(row["id"]):
            number += 1
            yield [number, row["id"], fingerprint, first, count, columns.encode(found)]
        progress(done + 1, 2 * session.node_count)


def _write(conn: sqlite3.Connection, table: str, rows: Iterable[Sequence[Any]]) -> None:
    places = ", ".join("?" * (len(TABLES[table]) + 1))
    sql = f"INSERT INTO {table} VALUES ({places})"  # noqa: S608  # our own names
    waiting: list[list[Any]] = []
    for row in rows:
        waiting.append([*row, seal(row)])
        if len(waiting) == _SLICE:
            _commit(conn, sql, waiting)
    _commit(conn, sql, waiting)


def _commit(conn: sqlite3.Connection, sql: str, rows: list[list[Any]]) -> None:
    conn.execute("BEGIN")
    conn.executemany(sql, rows)
    conn.execute("COMMIT")
    rows.clear()
