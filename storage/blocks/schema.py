"""The tables of the block file, its creation, and the replacement of broken or foreign files.

There are no migrations: the file is only a cache, so one of an older version is replaced.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from storage.blocks.errors import DamagedFileError, as_os_errors, foreign_errors
from storage.database import HEADER_BYTES, open_connection
from storage.files import ensure_file, free_name, keep_as, sidecar, sync_folder

logger = logging.getLogger(__name__)

APPLICATION_ID: Final = 0x454C4B56  # "ELKV"
VERSION: Final = 1
PAGE_BYTES: Final = 16_384  # for rows of 1 MiB: writing takes a third less time than with 4,096; little waste for tiny models
_WAL_BYTES: Final = 67_108_864  # of the WAL file after a checkpoint
_BUSY_SECONDS: Final = 0.2  # no other process should have it open

_TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS kv_blocks (
    id INTEGER PRIMARY KEY,
    key BLOB NOT NULL UNIQUE,     -- SHA-256 over the parent's key, the namespace and the tokens
    parent BLOB,                  -- key of the block before it; NULL: the first of its path
    tokens INTEGER NOT NULL,
    bytes INTEGER NOT NULL,       -- of its data
    used INTEGER NOT NULL,        -- sequence of its last use: never the clock
    sha256 BLOB NOT NULL          -- over key, parent, tokens, bytes and data
)""",
    "CREATE INDEX IF NOT EXISTS kv_blocks_parent ON kv_blocks (parent)",
    """CREATE TABLE IF NOT EXISTS kv_chunks (
    id INTEGER PRIMARY KEY,       -- the block's id times 2^20, plus the place of the chunk in it
    data BLOB NOT NULL            -- at most 1 MiB
)""",
    """CREATE TABLE IF NOT EXISTS kv_pins (
    name TEXT NOT NULL,
    key BLOB NOT NULL,            -- of a block that may be held or not
    PRIMARY KEY (name, key)
) WITHOUT ROWID""",
)


def open_file(path: Path) -> sqlite3.Connection:
    """An exclusive connection to the block file at `path` for the calling thread; replaces a broken or foreign file.

    Raises:
        OSError: The file is of a newer version (ENOTSUP; untouched), open in another process (EBUSY), or cannot be written.
    """
    if not path.exists():
        create(path)
    try:
        return _open(path)
    except DamagedFileError as error:
        set_aside(path, str(error.strerror))
        create(path)
        return _open(path)


def create(path: Path, *, portable: bool = False) -> None:
    """Makes an empty block file under another name and renames it, so that `path` is never incomplete.

    A file that is not `portable` is in WAL mode from the start: a program killed while it changes the mode would leave a
    journal that no reader may roll back.
    """
    draft = sidecar(path, ".new")
    for leftover in (draft, *_sidecars(draft)):
        leftover.unlink(missing_ok=True)
    ensure_file(draft)
    with as_os_errors(draft), closing(_connect(draft)) as conn:
        for pragma in (f"page_size = {PAGE_BYTES}", "auto_vacuum = INCREMENTAL"):  # before the first page is written
            conn.execute(f"PRAGMA {pragma}")
        make_tables(conn)
        for pragma in (f"application_id = {APPLICATION_ID}", f"user_version = {VERSION}"):
            conn.execute(f"PRAGMA {pragma}")
        if not portable:
            conn.execute("PRAGMA journal_mode = WAL")
    for leftover in _sidecars(path):  # journals of an earlier file that no longer exists
        leftover.unlink(missing_ok=True)
    draft.replace(path)
    sync_folder(path.parent)


def make_tables(conn: sqlite3.Connection) -> None:
    """Makes missing tables, also in a portable session file."""
    conn.execute("BEGIN IMMEDIATE")
    for statement in _TABLES:
        conn.execute(statement)
    conn.execute("COMMIT")


def open_foreign(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """A connection to any SQLite file that has blocks, or (not `read_only`) is to receive blocks.

    Raises:
        OSError: The file is missing, not a database, or (`read_only`) has no blocks.
    """
    with foreign_errors(path):
        conn = _connect(path, read_only=read_only)
        try:
            if not read_only:
                make_tables(conn)
            if bad := bad_tables(conn):
                raise OSError(errno.ENOTSUP, f"no KV blocks of this version are in it ({', '.join(bad)})", str(path))
        except BaseException:
            conn.close()
            raise
    return conn


def bad_tables(conn: sqlite3.Connection) -> list[str]:
    """Names of tables and indexes that are missing, or differ from their definition here."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        make_tables(fresh)
        sql = "SELECT name, type || ifnull(sql, '') FROM sqlite_schema WHERE name LIKE 'kv%'"
        wanted, found = dict(fresh.execute(sql)), dict(conn.execute(sql))
    return sorted(name for name, definition in wanted.items() if found.get(name) != definition)


def set_aside(path: Path, reason: str) -> None:
    """Moves a broken or foreign file away. Of broken files only the last is kept.

    All foreign files are kept, with their journals. An interrupted move is repeated at the next start.
    """
    kept = path.with_stem(path.stem + ".damaged")
    ours = _is_ours(path)
    if not ours:
        kept = free_name(path.with_stem(path.stem + ".foreign"))
    logger.warning("%s: %s; it was moved to %s and a new one made, KV is computed again", path, reason, kept.name)
    if not ours:  # journals have changes that are not yet in the file; the -shm is derived from them
        for journal in (file for file in _sidecars(path) if not file.name.endswith("-shm") and file.exists()):
            keep_as(journal, sidecar(kept, journal.name.removeprefix(path.name)))
    path.replace(kept)
    for leftover in _sidecars(path):
        leftover.unlink(missing_ok=True)
    sync_folder(path.parent)


def _open(path: Path) -> sqlite3.Connection:
    _survey(path)
    ensure_file(path)  # fails here, with the file's name, if it cannot be written
    path.chmod(0o600)
    with as_os_errors(path):
        conn = _connect(path)
        try:
            conn.execute("PRAGMA locking_mode = EXCLUSIVE")  # excludes a second engine, and needs no -shm
            conn.execute("PRAGMA journal_mode = WAL")
            conn.execute("PRAGMA synchronous = NORMAL")  # a cache: data lost in a power failure is computed again
            conn.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
            conn.execute("BEGIN IMMEDIATE")  # fails now, not at the first write, if the file is locked or not writable
            conn.execute(f"PRAGMA user_version = {VERSION}")
            conn.execute("COMMIT")
        except BaseException:
            conn.close()
            raise
    return conn


def _survey(path: Path) -> None:
    """Refuses a file that this version cannot open, without changing it."""
    _check_regular(path)
    size, alone = path.stat().st_size, not any(leftover.exists() for leftover in _sidecars(path))
    if size < HEADER_BYTES:  # SQLite would take it for a new database
        raise DamagedFileError(errno.EIO, f"it has {size} bytes and is not a database", str(path))
    if _is_ours(path) and sidecar(path, "-journal").exists():  # which no reader may roll back
        raise DamagedFileError(errno.EIO, "it was left half changed by a program that was killed", str(path))
    with as_os_errors(path), closing(_connect(path, read_only=True, immutable=alone)) as conn:
        application, version, pages, page = (
            conn.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version", "page_count", "page_size")
        )
        if application != APPLICATION_ID:
            raise DamagedFileError(errno.EIO, "it is not a file of KV blocks", str(path))
        if version > VERSION:
            newer = f"the block file was written by a newer version (schema {version}); it was not touched"
            raise OSError(errno.ENOTSUP, newer, str(path))
        if alone and size < pages * page:
            raise DamagedFileError(errno.EIO, f"it is cut short: {size:,} of {pages * page:,} bytes are there", str(path))
        if bad := bad_tables(conn):
            raise DamagedFileError(errno.EIO, f"the definition of {', '.join(bad)} is damaged", str(path))


def _connect(path: Path, *, read_only: bool = False, immutable: bool = False) -> sqlite3.Connection:
    _check_regular(path)
    conn = open_connection(path, read_only=read_only, immutable=immutable, timeout=_BUSY_SECONDS, isolation_level=None)
    conn.execute("PRAGMA trusted_schema = OFF")
    conn.execute("PRAGMA cell_size_check = ON")
    return conn


def _check_regular(path: Path) -> None:
    """Refuses pipes, devices and folders: opening a pipe waits for its other end.

    Raises:
        OSError: EINVAL: `path` exists and is not a regular file.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file; move it away", str(path))


def _is_ours(path: Path) -> bool:
    """Whether bytes 68 to 72 of the header have our application id, or the file is too short for a header."""
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    return header[68:72] == APPLICATION_ID.to_bytes(4, "big") or os.path.getsize(path) < HEADER_BYTES  # noqa: PTH202  # symmetric


def _sidecars(path: Path) -> tuple[Path, ...]:
    return tuple(sidecar(path, ending) for ending in ("-wal", "-shm", "-journal"))
