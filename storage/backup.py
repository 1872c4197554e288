"""A verified copy of a database, made before anything that could spoil it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import sqlite_utils

from storage.database import ensure_file, sync_folder
from storage.errors import StoreDamagedError


def back_up(db: sqlite_utils.Database, target: Path) -> Path:
    """Copies the database behind `db` to `target`, or to the next free name like it, and checks the copy.

    Returns:
        Where the copy is. It appears under that name only when it is complete and verified.

    Raises:
        StoreDamagedError: The copy is not sound, so the original is not either.
    """
    final = free_name(target)
    draft = final.with_name(final.name + ".partial")
    draft.unlink(missing_ok=True)
    ensure_file(draft)
    try:
        with closing(sqlite3.connect(draft)) as copy:
            db.conn.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, no -wal beside it
            found = findings(copy)
        if found != ["ok"]:
            raise StoreDamagedError(f"the backup {final.name} would be damaged, nothing was changed: {'; '.join(found)}")
        draft.rename(final)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(final.parent)
    return final


def findings(conn: sqlite3.Connection) -> list[str]:
    """What SQLite itself finds wrong with a database, at most three things; ["ok"] where nothing is."""
    try:
        return [row[0] for row in conn.execute("PRAGMA integrity_check(3)")]
    except sqlite3.DatabaseError as error:  # some pages are too broken to be reported about
        return [str(error)]


def free_name(target: Path) -> Path:
    """`target`, or the next name like it that nothing has."""
    names = [target, *(target.with_stem(f"{target.stem}-{n}") for n in range(2, 1000))]
    return next(name for name in names if not name.exists())
