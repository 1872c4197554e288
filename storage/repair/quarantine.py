"""Damaged rows out of the way: kept as they were read in a table of their own, so that all that is left is whole.

A run that has lost tokens keeps its text and the tokens before the first lost one, and says for good that it is damaged
(`NodeRow.damaged`): it is shown, never taken for good, and no model goes on from it. Everything here runs inside a
transaction of the caller's, a session at a time.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast, get_args

import msgspec
import sqlite_utils

from storage.database import fetch
from storage.errors import is_damage
from storage.repair import integrity
from storage.rows import DamageKind, DamageRow, Role
from storage.tables import checksums, key_value, nodes, search, sessions, token_chunks
from storage.tables.text import clean, from_json

Row = dict[str, Any]
_MOVED: Final[tuple[tuple[str, DamageKind, str], ...]] = (  # what works without them
    ("vocabularies", "vocabulary", "digest"),
    ("models", "model", "kv_fingerprint"),
    ("settings", "setting", "key"),
    ("places", "place", "id"),
)


def listed(db: sqlite_utils.Database) -> list[DamageRow]:
    """What was set aside so far, in the order in which it was found."""
    return [_told(row) for row in fetch(db, "SELECT * FROM quarantine ORDER BY id")]


def set_aside_shared(db: sqlite_utils.Database) -> list[DamageRow]:
    """What belongs to no session: rows that are kept by key, folders, and rows whose session or run is gone."""
    found: list[DamageRow] = []
    for table, kind, key in _MOVED:
        for row in fetch(db, f"SELECT rowid AS _row, * FROM {table}"):  # noqa: S608  # our own names
            if not checksums.intact(table, row):
                found.append(
                    _keep(db, DamageRow(kind, f"{str(row[key])!r:.60} failed its checksum", *_owner(table, row)), table, row)
                )
                db.execute(f"DELETE FROM {table} WHERE rowid = ?", [row["_row"]])  # noqa: S608  # our own names
    for row in fetch(db, "SELECT * FROM folders"):
        if not checksums.intact("folders", row):
            found.append(_keep(db, DamageRow("folder", f"{str(row['name'])!r:.60} failed its checksum"), "folders", row))
            checksums.renew(db, "folders", row, {"name": clean(str(row["name"])), "place": _whole(row["place"])})
    for row in fetch(db, "SELECT * FROM places WHERE folder_id IS NOT NULL AND folder_id NOT IN (SELECT id FROM folders)"):
        checksums.update(db, "places", row, {"folder_id": None})
    for table, sql, kind in (
        ("token_chunks", "node_id NOT IN (SELECT id FROM nodes)", "tokens"),
        ("places", "id NOT IN (SELECT id FROM sessions)", "place"),
    ):
        for row in fetch(db, f"SELECT * FROM {table} WHERE {sql}"):  # noqa: S608  # our own names
            found.append(_keep(db, DamageRow(kind, "what it belonged to is gone"), table, row))
            db.execute(f"DELETE FROM {table} WHERE id = ?", [row["id"]])  # noqa: S608  # our own names
    db.execute("DELETE FROM search WHERE rowid NOT IN (SELECT id FROM nodes UNION ALL SELECT -id FROM sessions)")
    return found


def mend_indexes(db: sqlite_utils.Database) -> None:
    """Builds every index anew: a flipped bit in an indexed column, or in an index, looks like a broken file until then."""
    db.execute("REINDEX")


def mend_search(db: sqlite_utils.Database) -> None:
    """Builds the search index anew from its texts, where it does not fit to them: nothing can be taken out of it till then."""
    try:
        db.execute("INSERT INTO search (search, rank) VALUES ('integrity-check', 0)")
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        db.execute("INSERT INTO search (search) VALUES ('rebuild')")


def set_aside_strays(db: sqlite_utils.Database) -> list[DamageRow]:
    """Runs whose session is gone, with their tokens; first of all."""
    found: list[DamageRow] = []
    for row in fetch(db, "SELECT * FROM nodes WHERE session_id NOT IN (SELECT id FROM sessions) ORDER BY id DESC"):
        chunks = fetch(db, "SELECT * FROM token_chunks WHERE node_id = ? ORDER BY id", [row["id"]])
        found.extend(_keep(db, DamageRow("tokens", "their session is gone"), "token_chunks", chunk) for chunk in chunks)
        found.append(_keep(db, DamageRow("node", "its session is gone"), "nodes", row))
        db.execute("UPDATE nodes SET parent_id = NULL WHERE parent_id = ?", [row["id"]])
        db.execute("DELETE FROM search WHERE rowid = ?", [row["id"]])
        db.execute("DELETE FROM nodes WHERE id = ?", [row["id"]])
    return found


def set_aside(db: sqlite_utils.Database, session_id: int) -> list[DamageRow]:
    """One session; returns what was set aside of it. One that is being imported is left alone, and so is a run in work."""
    [session] = fetch(db, "SELECT * FROM sessions WHERE id = ?", [session_id])
    if sessions.is_unfinished(session):
        return []
    return _Session(db, session).set_aside()


@dataclass(slots=True)
class _Session:
    db: sqlite_utils.Database
    row: Row
    runs: dict[int, Row] = field(default_factory=dict)
    cut: set[int] = field(default_factory=set)  # runs that have lost tokens
    found: list[DamageRow] = field(default_factory=list)

    def set_aside(self) -> list[DamageRow]:
        rows = fetch(self.db, "SELECT * FROM nodes WHERE session_id = ? ORDER BY seq, id", [self.row["id"]])
        self.runs = {row["id"]: row for row in rows}
        older: set[int] = set()
        for row in rows:
            if row["status"] != "open" or not checksums.intact("nodes", row):
                self._run(row, older)
            older.add(row["id"])
        for row in rows:
            self._leaves(row)
        self._itself(rows)
        for node_id, text in ((row["id"], clean(str(row["text"]))) for row in rows):
            search.index_node(self.db, self.row["id"], node_id, text)
        search.index_title(self.db, self.row["id"], clean(str(self.row["title"])))
        return self.found

    def _run(self, row: Row, older: set[int]) -> None:
        held = self._tokens(row)
        broken = not checksums.intact("nodes", row)
        lost_parent = row["parent_id"] is not None and row["parent_id"] not in older
        own = row["kv_fingerprint"] if not broken or row["kv_fingerprint"] in held else next(iter(held), None)
        count = held.get(own, 0) if own is not None else 0
        if not broken and not lost_parent and count == row["token_count"]:
            return
        if broken:
            detail = "the run's row failed its checksum"
        elif lost_parent:
            detail = "the run before it is gone"
        else:
            detail = f"{row['token_count'] - count} of its {row['token_count']} tokens are lost"
        self._note("nodes", "tokens" if detail.endswith("lost") else "node", detail, row, row)
        self.cut.add(row["id"])
        changes: Row = {"token_count": count, "kv_fingerprint": own, "status": "partial", "finish_reason": nodes.DAMAGED}
        if broken:
            changes |= _sane(row)
        if lost_parent:
            changes |= {"parent_id": None, "at_token": None, "at_byte": None, "at_end": 1}
        self._renew(row, changes)

    def _tokens(self, row: Row) -> dict[str, int]:
        """Sets aside what is damaged of a run's tokens and what stands behind it; how many are left, by model."""
        held: dict[str, int] = {}
        for chunk in fetch(self.db, "SELECT * FROM token_chunks WHERE node_id = ? ORDER BY id", [row["id"]]):
            model = str(chunk["kv_fingerprint"])
            whole = token_chunks.read_chunk(chunk) is not None
            if whole and chunk["first"] <= held.get(model, 0):
                held[model] = max(held.get(model, 0), chunk["first"] + chunk["count"])
                continue
            detail = "stand behind lost ones" if whole else "failed their checksum"
            self._note("token_chunks", "tokens", f"{chunk['count']} tokens from {chunk['first']} {detail}", chunk, row)
            self.db.execute("DELETE FROM token_chunks WHERE id = ?", [chunk["id"]])
        return held

    def _leaves(self, row: Row) -> None:
        """A run that left another one behind the tokens that this has left, leaves it at its end from now on."""
        parent = self.runs.get(row["parent_id"]) if row["parent_id"] is not None else None
        if parent is None or not {parent["id"], row["id"]} & self.cut:
            return
        most, at_token, at_byte = parent["token_count"], row["at_token"], row["at_byte"]
        if at_token is not None and at_token > most and row["id"] not in self.cut:
            self._note("nodes", "node", f"it left the run before it at token {at_token}, which is lost", row, row)
        changes: Row = {"at_token": None if at_token is None else min(at_token, most)}
        changes["at_end"] = int(at_token is None or at_token >= most)
        changes["at_byte"] = None if at_byte is None else min(at_byte, len(str(parent["text"]).encode()))
        if any(row[name] != value for name, value in changes.items()):
            self._renew(row, changes)

    def _itself(self, rows: list[Row]) -> None:
        tips = self.runs.keys() - {row["parent_id"] for row in rows if row["at_end"]}
        counted = {"node_count": len(rows), "branches": len(tips)}
        if not checksums.intact("sessions", self.row):
            self._note("sessions", "session", "the session's own row failed its checksum", self.row)
            values = {name: self.row[name] for name in ("created", "updated")}
            changes: dict[str, Any] = {name: float(v) if isinstance(v, int | float) else 0.0 for name, v in values.items()}
            changes |= {name: int(bool(self.row[name])) for name in ("pinned", "is_sample")}
            changes |= {"title": clean(str(self.row["title"])), "touched": _whole(self.row["touched"])}
            changes |= {"trashed": None, "importing": 0}  # a flipped bit must hide nothing
        elif self.row["node_count"] != len(rows):
            self._note("sessions", "session", f"{len(rows)} of {self.row['node_count']} runs are there", self.row)
            changes = {}
        elif self.row["branches"] != len(tips):
            changes = {}
        else:
            return
        if self.row["current_node"] not in self.runs:
            changes["current_node"] = max(tips, default=None)
        self.row.update(changes | counted)
        checksums.renew(self.db, "sessions", self.row, {})

    def _renew(self, row: Row, changes: Mapping[str, Any]) -> None:
        row.update(changes)
        checksums.renew(self.db, "nodes", row, {})

    def _note(self, source: str, kind: DamageKind, detail: str, row: Row, run: Row | None = None) -> None:
        turn = None if run is None else integrity.turn_of(run, self.runs)
        node_id = None if run is None else run["id"]
        damage = DamageRow(kind, detail, self.row["id"], clean(str(self.row["title"])), node_id, turn)
        self.found.append(_keep(self.db, damage, source, row))


def _sane(row: Row) -> Row:
    """A run's fields as they can be shown, whatever bits have flipped in them."""
    try:
        stats = row["stats"] if isinstance(from_json(str(row["stats"])), dict) else "{}"
    except msgspec.DecodeError:
        stats = "{}"
    places: Row = {name: row[name] if _whole(row[name]) == row[name] else None for name in ("at_token", "at_byte")}
    if row["parent_id"] is None:
        places = {"at_token": None, "at_byte": None}
    created = float(row["created"]) if isinstance(row["created"], int | float) else 0.0
    kept = {"stats": stats, "created": created, "turn_start": int(bool(row["turn_start"])), "at_end": 1}
    role = row["role"] if row["role"] in get_args(Role) else "user"
    return {**kept, **places, "role": role, "text": clean(str(row["text"])), "seq": row["seq"]}


def _keep(db: sqlite_utils.Database, damage: DamageRow, source: str, row: Row) -> DamageRow:
    content = {name: value for name, value in row.items() if name != "_row"}
    values = {name: getattr(damage, name) for name in ("kind", "detail", "session_id", "title", "node_id", "turn")}
    more = {"source": source, "content": msgspec.msgpack.encode(content), "found": time.time()}
    checksums.insert(db, "quarantine", {**values, **more})
    return damage


def _told(row: Row) -> DamageRow:
    kind = cast("DamageKind", row["kind"])
    return DamageRow(kind, str(row["detail"]), row["session_id"], row["title"], row["node_id"], row["turn"])


def _owner(table: str, row: Row) -> tuple[int | None]:
    """The session that a row belongs to."""
    if table == "places":
        return (int(row["id"]),)
    number = str(row["key"]).removeprefix(key_value.session_key("")) if table == "settings" else ""
    return (int(number) if number.isdecimal() else None,)


def _whole(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else 0
