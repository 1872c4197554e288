"""Opens the sessions file after checks of its application id, version and integrity. `storage.migrations` makes its tables.

The `application_id` identifies our files; a migration that is unknown here identifies a newer version.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

import sqlite_utils

from storage.database import HEADER_BYTES, connect, fetch, scalar, transaction
from storage.errors import StoreDamagedError, StoreMissingError, StoreNewerError, StoreReadOnlyError
from storage.files import ensure_file, journal_of, sidecar, sync_folder
from storage.migrations import APPLICATION_ID, migrations
from storage.repair.backup import back_up_before, clear_drafts
from storage.tables.sessions import LISTED
from storage.tables.views import VIEWS

_DEFINITIONS: Final = r"""
SELECT name, sql FROM sqlite_schema
WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\_%' ESCAPE '\' AND name NOT LIKE '\_sqlite%' ESCAPE '\'
  AND name NOT LIKE 'idx\__sqlite%' ESCAPE '\' AND name NOT LIKE 'search\_%' ESCAPE '\'
"""


def open_sessions(path: Path, *, read_only: bool) -> sqlite_utils.Database:
    """A connection to the sessions file at `path`, created or migrated if necessary, for the calling thread.

    Raises:
        StoreNewerError, StoreDamagedError: This version cannot open the file, which was not touched.
        StoreReadOnlyError: The file cannot be written, or (read-only) must be migrated first.
        StoreMissingError: `path` is a broken link, or (read-only) does not exist.
    """
    if path.is_symlink() and not path.exists():
        raise StoreMissingError(f"{path} is a link to {path.readlink()}, which is not there; put the file back there")
    if not read_only:
        if not path.exists():
            create(path)
        ensure_file(path)  # fails here, with the file's name, if it cannot be written
        clear_drafts(path)
    applied = _survey(path, to_write=not read_only)
    known = migration_names()
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
        db.close()
        raise
    return db


def create(path: Path) -> None:
    """Makes an empty store under another name and renames it: `path` is never incomplete, and 0 bytes mean damage."""
    if _size(journal_of(path)):
        raise StoreDamagedError(f"{path} is missing, but its journal {journal_of(path).name} is there; put the file back")
    draft = sidecar(path, ".new")
    for leftover in (draft, journal_of(draft)):
        leftover.unlink(missing_ok=True)
    ensure_file(draft)
    with connect(draft) as db:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # must come before the first page is written
        migrations.apply(db)
        fetch(db, "PRAGMA journal_mode = WAL")
    draft.rename(path)
    sync_folder(path.parent)


def _survey(path: Path, *, to_write: bool) -> list[str]:
    """The applied migrations of a file, read without changing it (a connection that may write would merge its WAL)."""
    size, alone = _size(path), not _size(journal_of(path))
    if path.is_file() and size < HEADER_BYTES:  # SQLite would take it for a new database
        raise StoreDamagedError(f"{path} has {size} bytes and is not a database")
    # without a WAL there is no writer; an immutable connection makes no files
    with connect(path, read_only=True, immutable=alone) as db:
        whole = scalar(db, "PRAGMA page_count") * scalar(db, "PRAGMA page_size")
        if alone and size < whole:  # SQLite does not notice that part of the last page is missing
            raise StoreDamagedError(f"{path} is cut short: {size:,} of {whole:,} bytes are there")
        applied = [migration.name for migration in migrations.applied(db)]
        ours = scalar(db, "PRAGMA application_id") == APPLICATION_ID
        if not ours or not applied:
            raise StoreDamagedError(f"{path} is not one of Elsewise's databases; move it away or choose another data folder")
        if changed := [name for name in changed_definitions(db) if name not in VIEWS]:
            raise StoreDamagedError(f"{path}: the definition of {', '.join(changed)} is damaged")
        if to_write:  # fails now if the session list cannot be read
            # by the statement of the list itself, since another statement may still read a row with a broken header; an older
            # version has no folders yet, so that only titles are read
            known = len(applied) == len(migration_names())
            for _ in db.execute(LISTED, {"found": None}) if known else db.execute("SELECT title FROM sessions NOT INDEXED"):
                pass
    return applied


def migration_names() -> list[str]:
    """The names of all migrations, in order."""
    return [migration.name for migration in migrations._migrations]  # noqa: SLF001  # the library has no public list


def changed_definitions(db: sqlite_utils.Database) -> list[str]:
    """Our tables, indexes and views whose definition differs from that of the applied migrations.

    Objects that SQLite and its libraries make differ between their versions and are not compared.
    """
    applied = {migration.name for migration in migrations.applied(db)}
    expected = definitions(applied)
    found = {row["name"]: row["sql"] for row in fetch(db, _DEFINITIONS)}
    return sorted(name for name, definition in expected.items() if found.get(name) != definition)


def definitions(applied: Collection[str] | None = None) -> dict[str, str]:
    """The SQL of our tables, indexes and views by name after these migrations; None: after all."""
    with sqlite_utils.Database(memory=True, execute_plugins=False) as fresh:
        pending = [migration.name for migration in migrations.pending(fresh)]
        later = [] if applied is None else [name for name in pending if name not in applied]
        migrations.apply(fresh, stop_before=later)
        return {row["name"]: row["sql"] for row in fetch(fresh, _DEFINITIONS)}


def _bring_up_to_date(db: sqlite_utils.Database, path: Path, *, pending: list[str]) -> None:
    if pending:
        back_up_before(db, path, pending[0])
        migrations.apply(db)
    # a real write, which fails now instead of at the first message if the store cannot be written
    version = len(migrations.applied(db))
    transaction(db, lambda db: db.execute(f"PRAGMA user_version = {version}"))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
