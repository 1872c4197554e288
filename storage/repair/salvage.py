"""What can still be read of a damaged sessions file, put into a new one; the damaged file is kept under another name.

SQLite is asked, on a copy, for ever smaller ranges of rows, so that a broken page costs the rows on it and no others. Rows
keep their numbers and checksums: what is damaged in itself goes on being named by `SessionStore.verify`.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from storage.database import connect, fetch, sync_folder
from storage.errors import StoreDamagedError, StoreMissingError, is_damage, typed_errors
from storage.repair.backup import findings, free_name, keep_as
from storage.rows import Salvage
from storage.schema import create, definitions
from storage.tables import checksums, search
from storage.tables.text import clean

HEADER_BYTES: Final = 100  # of any SQLite file
MAGIC: Final = b"SQLite format 3\0"
PAGE_BYTES: Final = 4096  # of ours
LARGEST: Final = 1 << 40  # bytes; a damaged number must not become a file of that size
TABLES: Final = ("sessions", "nodes", "token_chunks", "vocabularies", "models", "settings", "folders", "places", "quarantine")
STEP: Final = 512  # rows asked for at once


def salvage(path: Path, progress: OnProgress = lambda _what, _done, _of: None) -> Salvage:
    """Replaces the damaged file at `path` by a new one with all that could be read; blocking, seconds to minutes.

    Only for the one writer of the data folder, while nobody has the store open. The damaged file, with its journal, stands
    beside it afterwards; until the new one is whole and on the disk nothing is changed.

    Args:
        path: The sessions file.
        progress: Called a few times a second with the table, rows done and rows in all; raising in it cancels.

    Raises:
        StoreMissingError: There is no file.
        StoreDamagedError: Nothing of it can be read; it stays where it is.
        StoreFullError, StoreReadOnlyError: The new file cannot be written; nothing was changed.
    """
    if not path.is_file():
        raise StoreMissingError(f"{path}: there is nothing to recover from")
    with typed_errors(path), tempfile.TemporaryDirectory(dir=path.parent, prefix=".recovering-") as name:
        folder = Path(name)
        draft = folder / path.name
        create(draft)
        refill = Refill(draft)
        try:
            with closing(_open_copy(path, folder)) as damaged:
                lost = _read_into(refill, damaged, progress)
            found = refill.finish()
        finally:
            refill.close()
        if not found.sessions:
            raise StoreDamagedError(f"{path}: nothing in it can be read; it was left as it is")
        kept = _put_in_place(path, draft)
    return Salvage(found.sessions, found.turns, (*lost, *found.lost), kept)


# ---- the copy that is read --------------------------------------------------------------------------------------------


def _open_copy(path: Path, folder: Path) -> sqlite3.Connection:
    copy = folder / "damaged.db"
    shutil.copyfile(path, copy)
    if _beside(path, "-wal").exists():
        shutil.copyfile(_beside(path, "-wal"), _beside(copy, "-wal"))
    _mend_header(copy, folder)
    with suppress(sqlite3.Error), closing(_connect(copy)) as conn:
        for name, sql in definitions().items():
            conn.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ? AND sql <> ?", [sql, name, sql])
        conn.commit()
    return _connect(copy)  # a connection reads definitions once


def _connect(copy: Path) -> sqlite3.Connection:
    conn = sqlite3.connect(copy)
    conn.text_factory = lambda raw: raw.decode("utf-8", "replace")
    conn.execute("PRAGMA writable_schema = ON")  # a definition that cannot be parsed is passed over
    return conn


def _mend_header(copy: Path, folder: Path) -> None:
    """Every file of ours begins alike; and SQLite opens none that is shorter than it says."""
    with copy.open("r+b") as file:
        header = file.read(HEADER_BYTES)
        if not header.startswith(MAGIC) or int.from_bytes(header[16:18], "big") != PAGE_BYTES:
            fresh = folder / "fresh.db"
            create(fresh)
            header = fresh.read_bytes()[:24] + bytes(8) + fresh.read_bytes()[32:HEADER_BYTES]  # counters: by the file's length
            file.seek(0)
            file.write(header)
        whole = int.from_bytes(header[28:32], "big") * PAGE_BYTES
        if copy.stat().st_size < whole < LARGEST:
            file.truncate(whole)  # what is missing reads as broken pages


# ---- reading ----------------------------------------------------------------------------------------------------------


def _read_into(refill: Refill, conn: sqlite3.Connection, progress: OnProgress) -> list[str]:
    """Reads every table; what could not be read, in words."""
    lost: list[str] = []
    for table in TABLES:
        highest = _highest(conn, table)
        progress(table, 0, highest)
        gaps: list[tuple[int, int]] = []
        for rows, upto in _ranges(conn, table, highest, gaps):
            refill.take(table, rows)
            progress(table, upto, highest)
        lost.extend(f"{table.replace('_', ' ')}: rows {first:,} to {last:,} cannot be read" for first, last in _joined(gaps))
    return lost


def _highest(conn: sqlite3.Connection, table: str) -> int:
    """The last row number a table may have; each way of asking fails with another page."""
    found = [0]
    for sql in (f"SELECT max(rowid) FROM {table}", f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'"):  # noqa: S608  # our names
        with suppress(sqlite3.Error, TypeError, ValueError):
            found.extend(int(row[0] or 0) for row in conn.execute(sql))
    return min(max(found), 1 << 32)


def _ranges(
    conn: sqlite3.Connection, table: str, highest: int, gaps: list[tuple[int, int]]
) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """The rows that can be read, and how far that is; a range that cannot be read as a whole is halved."""
    stack = [(first, min(first + STEP - 1, highest)) for first in range(1, highest + 1, STEP)]
    stack.reverse()
    sql = f"SELECT * FROM {table} NOT INDEXED WHERE rowid BETWEEN ? AND ? ORDER BY rowid"  # noqa: S608  # our own names
    while stack:
        first, last = stack.pop()
        try:
            cursor = conn.execute(sql, [first, last])
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor]
        except (sqlite3.Error, OverflowError, MemoryError) as error:
            if isinstance(error, sqlite3.Error) and not is_damage(error):
                raise
            if first == last:
                gaps.append((first, last))
            else:
                middle = (first + last) // 2
                stack += [(middle + 1, last), (first, middle)]
        else:
            yield rows, last


def _joined(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in gaps:
        if joined and joined[-1][1] + 1 == first:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined


# ---- the new file in its place ----------------------------------------------------------------------------------------


def _put_in_place(path: Path, draft: Path) -> Path:
    """Keeps the damaged file under another name, then puts the new one where it was: at no moment is there none."""
    with closing(connect(draft).conn) as conn:
        found = findings(conn)
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if found != ["ok"]:
        raise StoreDamagedError(f"{path}: the recovered file would be damaged, nothing was changed: {'; '.join(found)}")
    kept = free_name(path.with_stem(f"{path.stem}.damaged"))
    wal = _beside(path, "-wal")
    if wal.exists():
        keep_as(wal, _beside(kept, "-wal"))
    keep_as(path, kept)
    sync_folder(path.parent)
    for name in ("-wal", "-shm"):  # they belong to the damaged file
        _beside(path, name).unlink(missing_ok=True)
    draft.replace(path)
    sync_folder(path.parent)
    return kept


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


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
                if not checksums.intact(table, row):
                    return False
                self._insert(table, row)
        return True

    def _take_place(self, row: dict[str, Any]) -> bool:
        if row["id"] not in self._sessions or not checksums.intact("places", row):
            return False
        if row["folder_id"] not in self._folders:  # it stands in the list again
            row = {**row, "folder_id": None}
        checksums.put(self._db, "places", {name: row[name] for name in checksums.COVERED["places"]})
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
        checksums.insert(self._db, "sessions", values)
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
        checksums.update(self._db, "sessions", session, {**changes, "updated": max(times, default=0.0), "title": title})
        search.index_title(self._db, session_id, title)

    def _insert(self, table: str, row: dict[str, Any]) -> None:
        names = [*checksums.COVERED[table], "sha256"]
        places = ", ".join("?" * len(names))
        sql = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places})"  # noqa: S608  # our own names
        self._db.execute(sql, [row[name] for name in names])
