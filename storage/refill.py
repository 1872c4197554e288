"""A new sessions file filled with rows that were saved from a damaged one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from storage import sealed, search
from storage.database import connect, fetch
from storage.text import clean

OnProgress = Callable[[str, int, int], None]  # what is read, rows done, rows in all

STAND_IN: Final = "Recovered"  # for turns whose session is lost
TITLE_LENGTH: Final = 60


@dataclass(frozen=True, slots=True)
class Found:
    """What the new file holds, and what had to be left out."""

    sessions: int
    turns: int
    lost: tuple[str, ...]


class Refill:
    """Takes rows table by table, in the order sessions, nodes, token_chunks, the rest; keeps their numbers and checksums.

    Args:
        path: A fresh sessions file.
    """

    def __init__(self, path: Path) -> None:
        self._db = connect(path)
        self._db.execute("PRAGMA foreign_keys = OFF")  # what a row refers to may be lost; it is looked after here
        self._sessions: set[int] = set()
        self._nodes: dict[int, int] = {}  # node -> session
        self._folders: set[int] = set()
        self._stand_ins: set[int] = set()
        self._left_out: dict[str, int] = {}

    def take(self, table: str, rows: Iterable[dict[str, Any]]) -> None:
        """Writes rows as they are; those that mean nothing without a row that is lost are left out."""
        with self._db.atomic():
            for row in rows:
                try:
                    taken = self._take(table, row)
                except (sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError, OverflowError):
                    taken = False  # a value of a kind that its column cannot hold
                if not taken:
                    self._left_out[table] = self._left_out.get(table, 0) + 1

    def finish(self) -> Found:
        """Puts right what refers to lost rows."""
        with self._db.atomic():
            for session in fetch(self._db, "SELECT * FROM sessions WHERE current_node IS NOT NULL"):
                if self._nodes.get(session["current_node"]) != session["id"]:
                    self._db.execute("UPDATE sessions SET current_node = NULL WHERE id = ?", [session["id"]])
            for session_id in self._stand_ins:
                self._count(session_id)
        lost = tuple(f"{table}: {count:,} rows belong to nothing any more" for table, count in self._left_out.items())
        return Found(len(self._sessions), len(self._nodes), lost)

    def close(self) -> None:
        """Closes the file."""
        self._db.conn.close()

    def _take(self, table: str, row: dict[str, Any]) -> bool:
        match table:
            case "sessions":
                self._insert(table, row)
                self._sessions.add(row["id"])
                search.index_title(self._db, row["id"], clean(str(row["title"])))
            case "nodes":
                self._take_node(row)
            case "token_chunks":
                if row["node_id"] not in self._nodes:
                    return False
                self._insert(table, row)
            case "folders":
                self._insert(table, row)
                self._folders.add(row["id"])
            case "places":
                return self._take_place(row)
            case _:
                if not sealed.intact(table, row):
                    return False
                self._insert(table, row)
        return True

    def _take_place(self, row: dict[str, Any]) -> bool:
        if row["id"] not in self._sessions or not sealed.intact("places", row):
            return False
        if row["folder_id"] not in self._folders:  # it stands in the list again
            row = {**row, "folder_id": None}
        sealed.put(self._db, "places", {name: row[name] for name in sealed.COVERED["places"]})
        return True

    def _take_node(self, row: dict[str, Any]) -> None:
        if row["parent_id"] is not None and self._nodes.get(row["parent_id"]) != row["session_id"]:
            # its checksum stays, and so says from now on that the turns before it are missing
            row = {**row, "parent_id": None, "at_token": None, "at_byte": None, "at_end": 1}
        if row["session_id"] not in self._sessions:
            self._stand_in(row["session_id"])
        self._insert("nodes", row)
        self._nodes[row["id"]] = row["session_id"]
        search.index_node(self._db, row["session_id"], row["id"], clean(str(row["text"])))

    def _stand_in(self, session_id: int) -> None:
        values: dict[str, Any] = {"id": int(session_id), "title": STAND_IN, "created": 0.0, "updated": 0.0, "touched": 0}
        values |= {"pinned": 0, "is_sample": 0, "branches": 0, "node_count": 0, "importing": 0}
        sealed.insert(self._db, "sessions", values)
        self._sessions.add(session_id)
        self._stand_ins.add(session_id)

    def _count(self, session_id: int) -> None:
        """Branches, shown path and name of a stand-in."""
        [session] = fetch(self._db, "SELECT * FROM sessions WHERE id = ?", [session_id])
        nodes = fetch(self._db, "SELECT * FROM nodes WHERE session_id = ? ORDER BY id", [session_id])
        tips = {node["id"] for node in nodes} - {node["parent_id"] for node in nodes if node["at_end"]}
        changes: dict[str, Any] = {"branches": len(tips), "node_count": len(nodes), "current_node": max(tips, default=None)}
        times = [float(node["created"]) for node in nodes if isinstance(node["created"], int | float)]
        words = next((" ".join(str(node["text"]).split()) for node in nodes if node["role"] == "user"), "")
        title = clean(f"{STAND_IN}: {words[:TITLE_LENGTH]}" if words else STAND_IN)
        sealed.update(self._db, "sessions", session, {**changes, "updated": max(times, default=0.0), "title": title})
        search.index_title(self._db, session_id, title)

    def _insert(self, table: str, row: dict[str, Any]) -> None:
        names = [*sealed.COVERED[table], "sha256"]
        places = ", ".join("?" * len(names))
        sql = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places})"  # noqa: S608  # our own names
        self._db.execute(sql, [row[name] for name in names])
