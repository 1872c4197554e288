"""Verifies rows by checksums, trees by their counts, and indexes by their rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

import sqlite_utils

from storage.database import fetch, scalar
from storage.errors import is_damage
from storage.rows import DamageKind, DamageRow
from storage.schema import changed_definitions
from storage.tables import checksums, sessions, token_chunks
from storage.tables.search import spaced

_KEYED: Final[tuple[tuple[str, DamageKind, str], ...]] = (
    ("vocabularies", "vocabulary", "digest"),
    ("models", "model", "kv_fingerprint"),
    ("settings", "setting", "key"),
    ("folders", "folder", "name"),
)


def session_ids(db: sqlite_utils.Database) -> list[int]:
    """Ids of all readable sessions, including the trash; `check_file` reports unreadable ones."""
    ids: list[int] = []
    try:
        ids.extend(row[0] for row in db.execute("SELECT id FROM sessions ORDER BY id"))
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if not is_damage(error):
            raise
    return ids


def check_file(db: sqlite_utils.Database) -> list[DamageRow]:
    """Damage in pages and indexes of the file, in the search index, and in rows by key."""
    damage = check_pages(db)
    damage += _guarded("file", partial(_references, db))
    damage += _guarded("search", partial(_search_index, db))
    for table, kind, key in _KEYED:
        damage += _guarded(kind, partial(_keyed, db, table, kind, key))
    return damage


def check_pages(db: sqlite_utils.Database) -> list[DamageRow]:
    """Damage in definitions, pages and indexes of the file that SQLite finds."""
    return _guarded("file", partial(_pages, db))


def check_session(db: sqlite_utils.Database, session_id: int) -> list[DamageRow]:
    """Damage in a session: its row, runs, tokens and search texts. Skips unfinished imports."""
    title: str | None = None
    found: list[DamageRow] = []
    try:
        for session in fetch(db, "SELECT * FROM sessions WHERE id = ?", [session_id]):
            if sessions.is_unfinished(session):
                continue
            title = str(session["title"])
            found.extend(_check_session(db, session))
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if not is_damage(error):
            raise
        found.append(DamageRow("session", f"part of the session cannot be read ({error})", session_id, title))
    return found


def _check_session(db: sqlite_utils.Database, session: dict[str, Any]) -> Iterator[DamageRow]:
    sid, title = session["id"], str(session["title"])
    nodes = {row["id"]: row for row in fetch(db, "SELECT * FROM nodes WHERE session_id = ? ORDER BY seq", [sid])}
    if not checksums.intact("sessions", session):
        yield DamageRow("session", "the session's own row fails its checksum", sid, title)
    elif len(nodes) != session["node_count"]:
        yield DamageRow("session", f"{len(nodes)} of {session['node_count']} runs are there", sid, title)
    elif session["branches"] != (count := len(tips(nodes.values()))):
        yield DamageRow("session", f"the tree has {count} branches, {session['branches']} were counted", sid, title)
    for place in fetch(db, "SELECT * FROM places WHERE id = ?", [sid]):
        if not checksums.intact("places", place):
            yield DamageRow(
                "place", "its folder, tags and order fail their checksum; setting its tags anew repairs it", sid, title
            )
    bodies = _search_bodies(db, sid)
    if bodies.get(-sid, "") != spaced(str(session["title"])):
        yield DamageRow("search", "the title is not what search would find", sid, title)
    for node in nodes.values():
        findings = list(_check_node(db, node, nodes))
        if bodies.get(node["id"], "") != spaced(str(node["text"])):
            findings.append(("search", "the text is not what search would find"))
        for kind, detail in findings:
            yield DamageRow(kind, detail, sid, title, node["id"], turn_of(node, nodes))


def _check_node(
    db: sqlite_utils.Database, node: dict[str, Any], nodes: dict[int, dict[str, Any]]
) -> Iterator[tuple[DamageKind, str]]:
    if not checksums.intact("nodes", node):
        yield "node", "the run's row fails its checksum"
    if node["parent_id"] is not None and node["parent_id"] not in nodes:
        yield "node", f"its parent {node['parent_id']} is missing"
    held: dict[str, list[dict[str, Any]]] = {}
    for row in fetch(db, "SELECT * FROM token_chunks WHERE node_id = ? ORDER BY id", [node["id"]]):
        held.setdefault(str(row["kv_fingerprint"]), []).append(row)
        if token_chunks.read_chunk(row) is None:
            yield "tokens", f"{row['count']} tokens from {row['first']} fail their checksum"
    own = held.get(str(node["kv_fingerprint"]), [])
    length = node["token_count"] if node["status"] != "open" and checksums.intact("nodes", node) else None
    missing = sum(tile.count for tile in token_chunks.tiled(node["id"], own, length=length) if not tile.columns)
    if missing:
        yield "tokens", f"{missing} tokens cannot be read"


def _pages(db: sqlite_utils.Database) -> Iterator[DamageRow]:
    for name in changed_definitions(db):
        yield DamageRow("file", f"the definition of {name} is not the one that was written")
    for row in db.execute("PRAGMA integrity_check(100)"):
        if row[0] != "ok":
            yield DamageRow("file", str(row[0]))


def _references(db: sqlite_utils.Database) -> Iterator[DamageRow]:
    for table, rowid, parent, _ in db.execute("PRAGMA foreign_key_check"):
        yield DamageRow("file", f"row {rowid} of {table} belongs to a row of {parent} that is missing")


def _search_index(db: sqlite_utils.Database) -> Iterator[DamageRow]:
    try:
        db.execute("INSERT INTO search (search, rank) VALUES ('integrity-check', 0)")  # FTS5's check, which writes nothing
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:  # a read-only connection refuses the check
            raise
    known = "SELECT id FROM nodes UNION ALL SELECT -id FROM sessions"
    stray = scalar(db, f"SELECT count(*) FROM search WHERE rowid NOT IN ({known})")  # noqa: S608  # our own text
    if stray:
        yield DamageRow("search", f"search knows {stray} texts that are not there")


def _keyed(db: sqlite_utils.Database, table: str, kind: DamageKind, key: str) -> Iterator[DamageRow]:
    for row in fetch(db, f"SELECT * FROM {table}"):  # noqa: S608  # our own names
        if not checksums.intact(table, row):
            yield DamageRow(kind, f"{row[key]} fails its checksum; saving it anew repairs it")


def _search_bodies(db: sqlite_utils.Database, session_id: int) -> dict[int, str]:
    sql = """SELECT rowid, body, session_id FROM search
             WHERE rowid = ? OR rowid IN (SELECT id FROM nodes WHERE session_id = ?)"""
    rows = fetch(db, sql, [-session_id, session_id])
    return {row["rowid"]: row["body"] for row in rows if row["session_id"] == session_id}


def tips(nodes: Iterable[dict[str, Any]]) -> set[int]:
    """Ids of the runs that no other run continues at their end."""
    rows = list(nodes)
    return {row["id"] for row in rows} - {row["parent_id"] for row in rows if row["at_end"]}


def turn_of(node: dict[str, Any], nodes: dict[int, dict[str, Any]]) -> int:
    """The turn of a run, from 1 along the path; a cycle in a damaged tree ends the path."""
    turn, seen, at = 0, set[int](), node
    while at["id"] not in seen:
        seen.add(at["id"])
        turn += bool(at["turn_start"])
        at = nodes.get(at["parent_id"], at)
    return turn


def _guarded(kind: DamageKind, check: Callable[[], Iterator[DamageRow]]) -> list[DamageRow]:
    """The findings of `check`. An unreadable page is a finding; a failing disk is an error."""
    found: list[DamageRow] = []
    try:
        found.extend(check())
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if not is_damage(error):
            raise
        found.append(DamageRow(kind, f"part of the file cannot be read ({error})"))
    return found
