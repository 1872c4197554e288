"""Repairs damaged rows: by quarantine where the file's pages are sound, by salvage into a new file where they are broken.

Quarantine moves damaged rows, as they were read, into a table of their own. A run that has lost tokens keeps its text and the
tokens before the first lost one, and stays marked as damaged (`NodeRow.damaged`): it is shown, but no model continues it.
Quarantine works in a transaction of the caller, one session at a time.

Salvage reads a copy of the file in ever smaller ranges of rows, so that a broken page costs only the rows on it. Rows keep
their ids and checksums, so that `SessionStore.verify` still reports damaged rows. The damaged file is kept under another name.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
import sqlite_utils

from storage.database import HEADER_BYTES, SQLITE_MAGIC, connect, dictionaries, fetch, open_connection
from storage.errors import StoreDamagedError, StoreMissingError, is_damage, typed_errors
from storage.files import free_name, keep_as, sidecar, sync_folder
from storage.repair import integrity
from storage.repair.backup import RECOVERING, daily_backups, findings, keep_daily
from storage.rows import DamageKind, DamageRow, Role, Salvage
from storage.schema import create, definitions
from storage.tables import checksums, key_value, nodes, search, sessions, token_chunks
from storage.tables.text import clean

Row = dict[str, Any]
_MOVED: Final[tuple[tuple[str, DamageKind, str], ...]] = (  # rows that the store can do without
    ("vocabularies", "vocabulary", "digest"),
    ("models", "model", "kv_fingerprint"),
    ("settings", "setting", "key"),
    ("places", "place", "id"),
)
PAGE_BYTES: Final = 4096  # of ours
LARGEST: Final = 1 << 40  # bytes; limits the file size from a damaged number
TABLES: Final = ("sessions", "nodes", "token_chunks", "vocabularies", "models", "settings", "folders", "places", "quarantine")
STEP: Final = 512  # rows per query
OnProgress = Callable[[str, int, int], None]  # table, rows done, rows in all
PLACEHOLDER_TITLE: Final = "Recovered"  # of sessions made for turns whose own session is lost
TITLE_LENGTH: Final = 60


# ---- quarantine: damaged rows of a file whose pages are sound


def quarantined(db: sqlite_utils.Database) -> list[DamageRow]:
    """All damage in quarantine, in the order in which it was found."""
    return [
        DamageRow(row["kind"], str(row["detail"]), row["session_id"], row["title"], row["node_id"], row["turn"])
        for row in fetch(db, "SELECT * FROM quarantine ORDER BY id")
    ]


def set_aside_shared(db: sqlite_utils.Database) -> list[DamageRow]:
    """Moves damage outside of sessions to quarantine: rows by key, folders, and rows whose session or run is missing."""
    found: list[DamageRow] = []
    for table, kind, key in _MOVED:
        for row in fetch(db, f"SELECT rowid AS _row, * FROM {table}"):  # noqa: S608  # our own names
            if not checksums.intact(table, row):
                damage = DamageRow(kind, f"{str(row[key])!r:.60} failed its checksum", _owner(table, row))
                found.append(_quarantine(db, damage, table, row))
                db.execute(f"DELETE FROM {table} WHERE rowid = ?", [row["_row"]])  # noqa: S608  # our own names
    for row in fetch(db, "SELECT * FROM folders"):
        if not checksums.intact("folders", row):
            found.append(_quarantine(db, DamageRow("folder", f"{str(row['name'])!r:.60} failed its checksum"), "folders", row))
            row |= {"name": clean(str(row["name"])), "place": _whole_number(row["place"])}
            checksums.renew(db, "folders", row)
    for row in fetch(db, "SELECT * FROM places WHERE folder_id IS NOT NULL AND folder_id NOT IN (SELECT id FROM folders)"):
        checksums.update(db, "places", row, {"folder_id": None})
    for table, sql, kind in (
        ("token_chunks", "node_id NOT IN (SELECT id FROM nodes)", "tokens"),
        ("places", "id NOT IN (SELECT id FROM sessions)", "place"),
    ):
        for row in fetch(db, f"SELECT * FROM {table} WHERE {sql}"):  # noqa: S608  # our own names
            found.append(_quarantine(db, DamageRow(kind, "what it belonged to is gone"), table, row))
            db.execute(f"DELETE FROM {table} WHERE id = ?", [row["id"]])  # noqa: S608  # our own names
    db.execute("DELETE FROM search WHERE rowid NOT IN (SELECT id FROM nodes UNION ALL SELECT -id FROM sessions)")
    return found


def rebuild_indexes(db: sqlite_utils.Database) -> None:
    """Rebuilds all indexes: a flipped bit in an index or indexed column looks like a broken file."""
    db.execute("REINDEX")


def rebuild_search(db: sqlite_utils.Database) -> None:
    """Rebuilds the search index from its texts if the two differ, since a broken index allows no removal."""
    try:
        db.execute("INSERT INTO search (search, rank) VALUES ('integrity-check', 0)")
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        db.execute("INSERT INTO search (search) VALUES ('rebuild')")


def set_aside_strays(db: sqlite_utils.Database) -> list[DamageRow]:
    """Moves runs whose session is missing to quarantine, with their tokens. Must be called before `set_aside`."""
    found: list[DamageRow] = []
    for row in fetch(db, "SELECT * FROM nodes WHERE session_id NOT IN (SELECT id FROM sessions) ORDER BY id DESC"):
        chunks = fetch(db, "SELECT * FROM token_chunks WHERE node_id = ? ORDER BY id", [row["id"]])
        found.extend(_quarantine(db, DamageRow("tokens", "their session is gone"), "token_chunks", chunk) for chunk in chunks)
        found.append(_quarantine(db, DamageRow("node", "its session is gone"), "nodes", row))
        db.execute("UPDATE nodes SET parent_id = NULL WHERE parent_id = ?", [row["id"]])
        db.execute("DELETE FROM search WHERE rowid = ?", [row["id"]])
        db.execute("DELETE FROM nodes WHERE id = ?", [row["id"]])
    return found


def set_aside(db: sqlite_utils.Database, session_id: int) -> list[DamageRow]:
    """Moves the damage of a session to quarantine, and returns it. Skips unfinished imports, and open runs with intact rows."""
    [session] = fetch(db, "SELECT * FROM sessions WHERE id = ?", [session_id])
    if sessions.is_unfinished(session):
        return []
    return _SessionRepair(db, session).set_aside()


@dataclass(slots=True)
class _SessionRepair:
    db: sqlite_utils.Database
    row: Row
    runs: dict[int, Row] = field(default_factory=dict)  # by id
    cut: set[int] = field(default_factory=set)  # runs that have lost tokens
    found: list[DamageRow] = field(default_factory=list)

    def set_aside(self) -> list[DamageRow]:
        rows = fetch(self.db, "SELECT * FROM nodes WHERE session_id = ? ORDER BY seq, id", [self.row["id"]])
        self.runs = {row["id"]: row for row in rows}
        older: set[int] = set()
        for row in rows:
            if row["status"] != "open" or not checksums.intact("nodes", row):
                self._repair_run(row, older)
            older.add(row["id"])
        for row in rows:
            self._clamp_place(row)
        self._repair_session(rows)
        for node_id, text in ((row["id"], clean(str(row["text"]))) for row in rows):
            search.index_node(self.db, self.row["id"], node_id, text)
        search.index_title(self.db, self.row["id"], clean(str(self.row["title"])))
        return self.found

    def _repair_run(self, row: Row, older: set[int]) -> None:
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
            changes |= _valid_fields(row)
        if lost_parent:
            changes |= {"parent_id": None, "at_token": None, "at_byte": None, "at_end": 1}
        self._renew(row, changes)

    def _tokens(self, row: Row) -> dict[str, int]:
        """Moves damaged tokens of a run, and those after them, to quarantine; returns the number left for each model."""
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

    def _clamp_place(self, row: Row) -> None:
        """Moves the place where a run leaves its parent to the parent's end, if the parent has lost the tokens there."""
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

    def _repair_session(self, rows: list[Row]) -> None:
        tips = integrity.tips(rows)
        counted = {"node_count": len(rows), "branches": len(tips)}
        if not checksums.intact("sessions", self.row):
            self._note("sessions", "session", "the session's own row failed its checksum", self.row)
            values = {name: self.row[name] for name in ("created", "updated")}
            changes: dict[str, Any] = {name: float(v) if isinstance(v, int | float) else 0.0 for name, v in values.items()}
            changes |= {name: int(bool(self.row[name])) for name in ("pinned", "is_sample")}
            changes |= {"title": clean(str(self.row["title"])), "touched": _whole_number(self.row["touched"])}
            changes |= {"trashed": None, "importing": 0}  # a flipped bit must not hide a session
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
        checksums.renew(self.db, "sessions", self.row)

    def _renew(self, row: Row, changes: Mapping[str, Any]) -> None:
        row.update(changes)
        checksums.renew(self.db, "nodes", row)

    def _note(self, source: str, kind: DamageKind, detail: str, row: Row, run: Row | None = None) -> None:
        turn = None if run is None else integrity.turn_of(run, self.runs)
        node_id = None if run is None else run["id"]
        damage = DamageRow(kind, detail, self.row["id"], clean(str(self.row["title"])), node_id, turn)
        self.found.append(_quarantine(self.db, damage, source, row))


def _valid_fields(row: Row) -> Row:
    """The fields of a damaged run, with invalid values replaced."""
    try:
        stats = row["stats"] if isinstance(msgspec.json.decode(str(row["stats"])), dict) else "{}"
    except msgspec.DecodeError:
        stats = "{}"
    places: Row = {name: row[name] if _whole_number(row[name]) == row[name] else None for name in ("at_token", "at_byte")}
    if row["parent_id"] is None:
        places = {"at_token": None, "at_byte": None}
    created = float(row["created"]) if isinstance(row["created"], int | float) else 0.0
    fields = {"stats": stats, "created": created, "turn_start": int(bool(row["turn_start"])), "at_end": 1}
    role = row["role"] if row["role"] in get_args(Role) else "user"
    return {**fields, **places, "role": role, "text": clean(str(row["text"])), "seq": row["seq"]}


def _quarantine(db: sqlite_utils.Database, damage: DamageRow, source: str, row: Row) -> DamageRow:
    content = {name: value for name, value in row.items() if name != "_row"}
    more = {"source": source, "content": msgspec.msgpack.encode(content), "found": time.time()}
    checksums.insert(db, "quarantine", msgspec.structs.asdict(damage) | more)
    return damage


def _owner(table: str, row: Row) -> int | None:
    """The id of the session that a row belongs to, if any."""
    if table == "places":
        return int(row["id"])
    number = str(row["key"]).removeprefix(key_value.session_key("")) if table == "settings" else ""
    return int(number) if number.isdecimal() else None


def _whole_number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else 0


# ---- salvage: the readable rows of a file whose pages are broken


def salvage(path: Path, progress: OnProgress = lambda _what, _done, _of: None) -> Salvage:
    """Replaces the damaged file at `path` by a new one with all readable rows. Blocking, for seconds to minutes.

    If the file has no readable session, the rows come from the latest daily backup that has any. If some rows are lost, the
    latest daily backup is kept permanently, and is the first item in the list of losses.

    Only for the writer of the data folder, while no process has the store open. The damaged file and its journal are kept
    beside the new file; nothing changes until the new file is complete and on the disk.

    Args:
        path: The sessions file.
        progress: Called a few times a second with the table, rows done and rows in all; raising in it cancels.

    Raises:
        StoreMissingError: There is no file.
        StoreDamagedError: Neither the file nor a backup can be read; the file was not moved.
        StoreFullError, StoreReadOnlyError: The new file cannot be written; nothing was changed.
    """
    if not path.is_file():
        raise StoreMissingError(f"{path}: there is nothing to recover from")
    target = path.resolve() if path.is_symlink() else path  # the journal is beside the target of a link
    with typed_errors(path), tempfile.TemporaryDirectory(dir=target.parent, prefix=RECOVERING) as name:
        for source in (target, *reversed(daily_backups(path))):
            folder = Path(name) / source.name
            folder.mkdir()
            draft = folder / path.name
            sessions_found, turns, lost = _read_anew(source, draft, progress)
            if sessions_found:
                break
        else:
            raise StoreDamagedError(f"{path}: nothing in it can be read; it was left as it is")
        backup = keep_daily(path, "recovery") if lost and source == target else None
        kept = _put_in_place(target, draft)
    if backup is not None:
        lost = [f"what is missing may be in the backup {backup.name}, which stays", *lost]
    if source != target:
        lost = [f"nothing in the file itself can be read; what is newer than the backup {source.name} is missing", *lost]
    return Salvage(sessions_found, turns, tuple(lost), kept)


def _read_anew(source: Path, draft: Path, progress: OnProgress) -> tuple[int, int, list[str]]:
    """Writes the readable rows to the draft; returns the numbers of sessions and turns, and the losses."""
    create(draft)
    with closing(SalvageWriter(draft)) as refill, closing(_open_copy(source, draft.parent)) as damaged:
        lost = _read_into(refill, damaged, progress)
        sessions_found, turns, left_out = refill.finish()
    return sessions_found, turns, [*lost, *left_out]


def _open_copy(path: Path, folder: Path) -> sqlite3.Connection:
    copy = folder / "damaged.db"
    shutil.copyfile(path, copy)
    if sidecar(path, "-wal").exists():
        shutil.copyfile(sidecar(path, "-wal"), sidecar(copy, "-wal"))
    _repair_header(copy, folder)
    with suppress(sqlite3.Error), closing(_connect(copy)) as conn:
        for name, sql in definitions().items():
            conn.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ? AND sql <> ?", [sql, name, sql])
        conn.commit()
    return _connect(copy)  # a new connection, since each reads the definitions only once


def _connect(copy: Path) -> sqlite3.Connection:
    conn = open_connection(copy)
    conn.execute("PRAGMA writable_schema = ON")  # makes SQLite skip definitions that it cannot parse
    return conn


def _repair_header(copy: Path, folder: Path) -> None:
    """Writes the usual header over a broken one, and extends a file that is shorter than its header says, as SQLite needs."""
    with copy.open("r+b") as file:
        header = file.read(HEADER_BYTES)
        if not header.startswith(SQLITE_MAGIC) or int.from_bytes(header[16:18], "big") != PAGE_BYTES:
            fresh = folder / "fresh.db"
            create(fresh)
            header = fresh.read_bytes()[:HEADER_BYTES]
            header = header[:24] + bytes(8) + header[32:]  # zeros: SQLite takes the counters from the file's length
            file.seek(0)
            file.write(header)
        whole = int.from_bytes(header[28:32], "big") * PAGE_BYTES
        if copy.stat().st_size < whole < LARGEST:
            file.truncate(whole)  # the added pages count as broken


def _read_into(refill: SalvageWriter, conn: sqlite3.Connection, progress: OnProgress) -> list[str]:
    """Reads all tables; returns descriptions of what could not be read."""
    lost: list[str] = []
    for table in TABLES:
        highest = _highest(conn, table)
        progress(table, 0, highest)
        gaps: list[tuple[int, int]] = []
        for rows, upto in _ranges(conn, table, highest, gaps):
            if rows:
                refill.take(table, rows)
            progress(table, upto, highest)
        lost.extend(f"{table.replace('_', ' ')}: rows {first:,} to {last:,} cannot be read" for first, last in gaps)
    return lost


def _highest(conn: sqlite3.Connection, table: str) -> int:
    """The highest row id that a table may have, from two queries that read different pages."""
    found = [0]
    for sql in (f"SELECT max(rowid) FROM {table}", f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'"):  # noqa: S608  # our names
        with suppress(sqlite3.Error, TypeError, ValueError):
            found.extend(int(row[0] or 0) for row in conn.execute(sql))
    return min(max(found), 1 << 32)


def _ranges(
    conn: sqlite3.Connection, table: str, highest: int, gaps: list[tuple[int, int]]
) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Yields readable rows, with the row id up to which the table was read; halves unreadable ranges.

    Single rows that are unreadable are added to `gaps`.
    """
    sql = f"SELECT * FROM {table} NOT INDEXED WHERE rowid BETWEEN ? AND ? ORDER BY rowid"  # noqa: S608  # our own names
    for beginning in range(1, highest + 1, STEP):
        stack = [(beginning, min(beginning + STEP - 1, highest))]
        while stack:
            first, last = stack.pop()
            try:
                rows = list(dictionaries(conn.execute(sql, [first, last])))
            except (sqlite3.Error, OverflowError, MemoryError) as error:
                if isinstance(error, sqlite3.Error) and not is_damage(error):
                    raise
                if first < last:
                    middle = (first + last) // 2
                    stack += [(middle + 1, last), (first, middle)]
                elif gaps and gaps[-1][1] + 1 == first:
                    gaps[-1] = (gaps[-1][0], last)
                else:
                    gaps.append((first, last))
                yield [], first - 1
            else:
                yield rows, last


def _put_in_place(path: Path, draft: Path) -> Path:
    """Links the damaged file under another name, then replaces it by the new file, so that `path` always exists."""
    with connect(draft) as db:
        found = findings(db.conn)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if found != ["ok"]:
        raise StoreDamagedError(f"{path}: the recovered file would be damaged, nothing was changed: {'; '.join(found)}")
    kept = free_name(path.with_stem(f"{path.stem}.damaged"))
    wal = sidecar(path, "-wal")
    if wal.exists():
        keep_as(wal, sidecar(kept, "-wal"))
    keep_as(path, kept)
    sync_folder(path.parent)
    for name in ("-wal", "-shm"):  # they belong to the damaged file
        sidecar(path, name).unlink(missing_ok=True)
    draft.replace(path)
    sync_folder(path.parent)
    return kept


class SalvageWriter:
    """Writes rows table by table, in the order of `TABLES`; keeps their ids and checksums."""

    def __init__(self, path: Path) -> None:
        self._db = connect(path)
        self._db.execute("PRAGMA foreign_keys = OFF")  # rows may refer to lost rows, which is corrected here
        self._sessions: set[int] = set()
        self._nodes: dict[int, int] = {}  # node -> session
        self._folders: set[int] = set()
        self._placeholders: set[int] = set()  # sessions made for turns without one
        self._left_out: dict[str, int] = {}

    def take(self, table: str, rows: Iterable[dict[str, Any]]) -> None:
        """Writes rows unchanged; leaves out rows that depend on a lost row."""
        with self._db.atomic():
            for row in rows:
                try:
                    taken = self._take(table, row)
                except (sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError, OverflowError):
                    taken = False  # a value has a type that the column does not allow
                if not taken:
                    self._left_out[table] = self._left_out.get(table, 0) + 1

    def finish(self) -> tuple[int, int, tuple[str, ...]]:
        """Corrects references to lost rows; returns the numbers of sessions and turns, and notes on rows left out."""
        with self._db.atomic():
            for session in fetch(self._db, "SELECT * FROM sessions WHERE current_node IS NOT NULL"):
                if self._nodes.get(session["current_node"]) != session["id"]:
                    self._db.execute("UPDATE sessions SET current_node = NULL WHERE id = ?", [session["id"]])
            for session_id in self._placeholders:
                self._count(session_id)
        lost = tuple(f"{table}: {count:,} rows belong to nothing any more" for table, count in self._left_out.items())
        return len(self._sessions), len(self._nodes), lost

    def close(self) -> None:
        self._db.close()

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
        if row["folder_id"] not in self._folders:  # the session goes back to the list
            row = {**row, "folder_id": None}
        checksums.put(self._db, "places", {name: row[name] for name in checksums.COVERED["places"]})
        return True

    def _take_node(self, row: dict[str, Any]) -> None:
        if row["parent_id"] is not None and self._nodes.get(row["parent_id"]) != row["session_id"]:
            # the old checksum no longer matches, which marks that the turns before the run are missing
            row = {**row, "parent_id": None, "at_token": None, "at_byte": None, "at_end": 1}
        if row["session_id"] not in self._sessions:
            self._add_placeholder(row["session_id"])
        self._insert("nodes", row)
        self._nodes[row["id"]] = row["session_id"]
        search.index_node(self._db, row["session_id"], row["id"], clean(str(row["text"])))

    def _add_placeholder(self, session_id: int) -> None:
        values: dict[str, Any] = {"id": int(session_id), "title": PLACEHOLDER_TITLE, "created": 0.0, "updated": 0.0}
        values |= {"touched": 0, "pinned": 0, "is_sample": 0, "branches": 0, "node_count": 0, "importing": 0}
        checksums.insert(self._db, "sessions", values)
        self._sessions.add(session_id)
        self._placeholders.add(session_id)

    def _count(self, session_id: int) -> None:
        """Sets branches, shown path and title of a placeholder session."""
        [session] = fetch(self._db, "SELECT * FROM sessions WHERE id = ?", [session_id])
        nodes = fetch(self._db, "SELECT * FROM nodes WHERE session_id = ? ORDER BY id", [session_id])
        tips = integrity.tips(nodes)
        changes: dict[str, Any] = {"branches": len(tips), "node_count": len(nodes), "current_node": max(tips, default=None)}
        times = [float(node["created"]) for node in nodes if isinstance(node["created"], int | float)]
        words = next((" ".join(str(node["text"]).split()) for node in nodes if node["role"] == "user"), "")
        title = clean(f"{PLACEHOLDER_TITLE}: {words[:TITLE_LENGTH]}" if words else PLACEHOLDER_TITLE)
        checksums.update(self._db, "sessions", session, {**changes, "updated": max(times, default=0.0), "title": title})
        search.index_title(self._db, session_id, title)

    def _insert(self, table: str, row: dict[str, Any]) -> None:
        names = [*checksums.COVERED[table], "sha256"]
        places = ", ".join("?" * len(names))
        sql = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places})"  # noqa: S608  # our own names
        self._db.execute(sql, [row[name] for name in names])
