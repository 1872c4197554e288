"""What can still be read of a damaged sessions file, put into a new one; the damaged file is kept under another name.

SQLite is asked, on a copy, for ever smaller ranges of rows, so that a broken page costs the rows on it and no others. Rows
keep their numbers and checksums: what is damaged in itself goes on being named by `SessionStore.verify`.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from storage.backup import findings, free_name, keep_as
from storage.database import connect, sync_folder
from storage.errors import StoreDamagedError, StoreMissingError, is_damage, typed_errors
from storage.refill import OnProgress, Refill
from storage.rows import Salvage
from storage.schema import create, definitions

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
