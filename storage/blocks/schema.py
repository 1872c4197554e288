"""The tables of the block file, how one is made, and what is done with a file that is no block file.

There are no migrations: a file of an older version makes room for a new one, it is only a cache.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from storage.blocks.errors import DamagedFileError, as_os_errors, guest_errors
from storage.database import Connection
from storage.files import ensure_file, free_name, keep_as, sidecar, sync_folder

logger = logging.getLogger(__name__)

APPLICATION_ID: Final = 0x454C4B56  # "ELKV"
VERSION: Final = 1
PAGE_BYTES: Final = 16_384  # rows are of 1 MiB: a third less time to write than with 4,096, and little waste for tiny models
_HEADER_BYTES: Final = 100  # of any SQLite file
_WAL_BYTES: Final = 67_108_864  # that the journal keeps after a checkpoint
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
    """A connection to the block file at `path`, for the calling thread, which alone has it; made anew where it is no use.

    Raises:
        OSError: Written by a newer version (ENOTSUP; untouched), held by another process (EBUSY), or it cannot be written.
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
    """Makes a whole, empty block file under another name first: at `path` there is never half of one.

    One that is not `portable` has a WAL from the start: a program that is killed while it changes a file's mode leaves a
    journal beside it that no reader may roll back.
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
    for leftover in _sidecars(path):  # of a file that is gone
        leftover.unlink(missing_ok=True)
    draft.replace(path)
    sync_folder(path.parent)


def make_tables(conn: sqlite3.Connection) -> None:
    """Makes the tables that are missing; a foreign portable file may take blocks in, too."""
    conn.execute("BEGIN IMMEDIATE")
    for statement in _TABLES:
        conn.execute(statement)
    conn.execute("COMMIT")


def open_guest(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """A connection to any SQLite file that holds blocks, or (not `read_only`) is to hold some.

    Raises:
        OSError: It is missing, it is not a database, or (`read_only`) it has no blocks.
    """
    with guest_errors(path):
        conn = _connect(path, read_only=read_only)
        try:
            if not read_only:
                make_tables(conn)
            if bent := bad_tables(conn):
                raise OSError(errno.ENOTSUP, f"no KV blocks of this version are in it ({', '.join(bent)})", str(path))
        except BaseException:
            conn.close()
            raise
    return conn


def bad_tables(conn: sqlite3.Connection) -> list[str]:
    """The names of tables and indexes that are missing or not as they are made here."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        make_tables(fresh)
        sql = "SELECT name, type || ifnull(sql, '') FROM sqlite_schema WHERE name LIKE 'kv%'"
        wanted, found = dict(fresh.execute(sql)), dict(conn.execute(sql))
    return sorted(name for name, definition in wanted.items() if found.get(name) != definition)


def set_aside(path: Path, reason: str) -> None:
    """Moves a file that is no use out of the way. One that was ours replaces the one set aside before.

    Others are kept all, each with its journals. Stopped half way, it is begun again at the next start.
    """
    kept = path.with_stem(path.stem + ".damaged")
    ours = _is_ours(path)
    if not ours:
        kept = free_name(path.with_stem(path.stem + ".foreign"))
    logger.warning("%s: %s; it was moved to %s and a new one made, KV is computed again", path, reason, kept.name)
    if not ours:  # what was not merged into it yet is in its journals; the -shm is made from them
        for journal in (file for file in _sidecars(path) if not file.name.endswith("-shm") and file.exists()):
            keep_as(journal, sidecar(kept, journal.name.removeprefix(path.name)))
    path.replace(kept)
    for leftover in _sidecars(path):
        leftover.unlink(missing_ok=True)
    sync_folder(path.parent)


def _open(path: Path) -> sqlite3.Connection:
    _survey(path)
    ensure_file(path)  # a file that cannot be opened for writing is named here
    path.chmod(0o600)
    with as_os_errors(path):
        conn = _connect(path)
        try:
            conn.execute("PRAGMA locking_mode = EXCLUSIVE")  # a second engine opens no block file; and no -shm is needed
            conn.execute("PRAGMA journal_mode = WAL")
            conn.execute("PRAGMA synchronous = NORMAL")  # only a cache: what is lost with the power is computed again
            conn.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
            conn.execute("BEGIN IMMEDIATE")  # now and not at the first write: is it ours alone, can it be written
            conn.execute(f"PRAGMA user_version = {VERSION}")
            conn.execute("COMMIT")
        except BaseException:
            conn.close()
            raise
    return conn


def _survey(path: Path) -> None:
    """Refuses a file that is not for this version to open, without changing a byte of it."""
    _check_regular(path)
    size, alone = path.stat().st_size, not any(leftover.exists() for leftover in _sidecars(path))
    if size < _HEADER_BYTES:  # SQLite would take it for a new database
        raise DamagedFileError(errno.EIO, f"it has {size} bytes and is not a database", str(path))
    if _is_ours(path) and sidecar(path, "-journal").exists():  # no reader may roll it back
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
        if bent := bad_tables(conn):
            raise DamagedFileError(errno.EIO, f"the definition of {', '.join(bent)} is damaged", str(path))


def _connect(path: Path, *, read_only: bool = False, immutable: bool = False) -> sqlite3.Connection:
    _check_regular(path)
    uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}{'&immutable=1' if immutable else ''}"
    conn = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, factory=Connection)
    conn.text_factory = lambda raw: raw.decode("utf-8", "replace")
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
    """By the header, which is all that is sure to be read: bytes 68 to 72 are the application's."""
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    return header[68:72] == APPLICATION_ID.to_bytes(4, "big") or os.path.getsize(path) < _HEADER_BYTES  # noqa: PTH202  # symmetric


def _sidecars(path: Path) -> tuple[Path, ...]:
    return tuple(sidecar(path, ending) for ending in ("-wal", "-shm", "-journal"))
