"""Opens the sessions file after checks of its application id, version and integrity. `storage.migrations` makes its tables.

`application_id` says that a file is ours; a migration this version does not know says that it is newer.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Final

import sqlite_utils

from storage.database import connect, fetch, scalar, transaction
from storage.errors import StoreDamagedError, StoreMissingError, StoreNewerError, StoreReadOnlyError
from storage.files import ensure_file, journal_of, sidecar, sync_folder
from storage.migrations import APPLICATION_ID, migrations
from storage.repair.backup import back_up_before, clear_drafts
from storage.tables.sessions import LISTED
from storage.tables.views import VIEWS

_HEADER_BYTES: Final = 100  # of any SQLite file

_DEFINITIONS: Final = r"""
SELECT name, sql FROM sqlite_schema
WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\_%' ESCAPE '\' AND name NOT LIKE '\_sqlite%' ESCAPE '\'
  AND name NOT LIKE 'idx\__sqlite%' ESCAPE '\' AND name NOT LIKE 'search\_%' ESCAPE '\'
"""


def open_sessions(path: Path, *, read_only: bool) -> sqlite_utils.Database:
    """A connection to the sessions file at `path`, made or migrated when needed, for the calling thread.

    Raises:
        StoreNewerError, StoreDamagedError: Not for this version to open; the file was not touched.
        StoreReadOnlyError: It cannot be written, or (read-only) must be migrated first.
        StoreMissingError: It is a link to what is not there, or (read-only) is not there itself.
    """
    if path.is_symlink() and not path.exists():
        raise StoreMissingError(f"{path} is a link to {path.readlink()}, which is not there; put the file back there")
    if not read_only:
        if not path.exists():
            create(path)
        ensure_file(path)  # a file that cannot be opened for writing is named here
        clear_drafts(path)
    applied = _survey(path, to_write=not read_only)
    known = [migration.name for migration in migrations._migrations]  # noqa: SLF001  # the library has no public list
    if newer := [name for name in applied if name not in known]:
        raise StoreNewerError(
            f"{path} was written by a newer version of Elsewise (it has {', '.join(newer)}); "
            "it was not touched, update the app or choose another data folder"
        )
    if read_only and applied != known:
        raise StoreReadOnlyError(f"{path} must be brought up to date first; open it once with the window")
    db = connect(path, read_only=read_only)
    try:
        if not read_only:
            _bring_up_to_date(db, path, pending=known[len(applied) :])
    except BaseException:
        db.conn.close()
        raise
    return db


def create(path: Path) -> None:
    """Makes a whole, empty store under another name first: at `path` there is never half of one, so 0 bytes are damage."""
    if _size(journal_of(path)):
        raise StoreDamagedError(f"{path} is missing, but its journal {journal_of(path).name} is there; put the file back")
    draft = sidecar(path, ".new")
    for leftover in (draft, journal_of(draft)):
        leftover.unlink(missing_ok=True)
    ensure_file(draft)
    with closing(connect(draft).conn) as conn:
        db = sqlite_utils.Database(conn, execute_plugins=False)
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # must stand before the first page is written
        migrations.apply(db)
        fetch(db, "PRAGMA journal_mode = WAL")
    draft.rename(path)
    sync_folder(path.parent)


def _survey(path: Path, *, to_write: bool) -> list[str]:
    """The migrations a file has, without changing a byte of it (a connection that could write would merge its WAL)."""
    size, alone = _size(path), not _size(journal_of(path))
    if path.is_file() and size < _HEADER_BYTES:  # SQLite would take it for a new database
        raise StoreDamagedError(f"{path} has {size} bytes and is not a database")
    # without a WAL there is no writer, and an immutable connection leaves no files of its own behind
    with closing(connect(path, read_only=True, immutable=alone).conn) as conn:
        db = sqlite_utils.Database(conn, execute_plugins=False)
        whole = scalar(db, "PRAGMA page_count") * scalar(db, "PRAGMA page_size")
        if alone and size < whole:  # SQLite does not miss part of the last page
            raise StoreDamagedError(f"{path} is cut short: {size:,} of {whole:,} bytes are there")
        applied = [migration.name for migration in migrations.applied(db)]
        ours = scalar(db, "PRAGMA application_id") == APPLICATION_ID
        if not ours or not applied:
            raise StoreDamagedError(f"{path} is not one of Elsewise's databases; move it away or choose another data folder")
        if bent := [name for name in changed_definitions(db) if name not in VIEWS]:
            raise StoreDamagedError(f"{path}: the definition of {', '.join(bent)} is damaged")
        if to_write:  # a list that cannot be read is told of now, not in the middle of work
            # of an older version, which has no folders yet, the titles; else the list as it will be asked for: where the header
            # of one row is broken, another statement may still read it
            known = len(applied) == len(migrations._migrations)  # noqa: SLF001  # the library has no public list
            for _ in db.execute(LISTED, {"found": None}) if known else db.execute("SELECT title FROM sessions NOT INDEXED"):
                pass
    return applied


def changed_definitions(db: sqlite_utils.Database) -> list[str]:
    """Tables, indexes and views of ours whose definition is not the one that the migrations applied so far write.

    What SQLite and its libraries make for themselves may differ between their versions and is not compared.
    """
    applied = {migration.name for migration in migrations.applied(db)}
    theirs = definitions(applied)
    found = {row["name"]: row["sql"] for row in fetch(db, _DEFINITIONS)}
    return sorted(name for name, definition in theirs.items() if found.get(name) != definition)


def definitions(applied: Collection[str] | None = None) -> dict[str, str]:
    """How our tables, indexes and views are defined after these migrations; None: after all."""
    fresh = sqlite_utils.Database(memory=True, execute_plugins=False)
    with closing(fresh.conn):
        pending = [migration.name for migration in migrations.pending(fresh)]
        later = [] if applied is None else [name for name in pending if name not in applied]
        migrations.apply(fresh, stop_before=later)
        return {row["name"]: row["sql"] for row in fetch(fresh, _DEFINITIONS)}


def _bring_up_to_date(db: sqlite_utils.Database, path: Path, *, pending: list[str]) -> None:
    if pending:
        back_up_before(db, path, pending[0])
        migrations.apply(db)
    # a real write, so that a store that cannot be written is noticed now and not at the first message
    version = len(migrations.applied(db))
    transaction(db, lambda db: db.execute(f"PRAGMA user_version = {version}"))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
