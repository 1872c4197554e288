"""Verified copies of a database: before risky changes, daily, and on request."""

from __future__ import annotations

import datetime
import logging
import re
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import sqlite_utils

from storage.database import connect, fetch
from storage.errors import StoreDamagedError, StoreFullError, typed_errors
from storage.files import ensure_file, free_name, journal_of, keep_as, sidecar, sync_folder
from storage.tables import checksums

log = logging.getLogger(__name__)
KEPT: Final = 7  # daily backups
SPARE: Final = 1 << 28  # bytes that a backup must leave free on the disk
FOLDER: Final = "backups"  # beside the database
RECOVERING: Final = ".recovering-"  # prefix of the working folder of a recovery
_DRAFT: Final = ".partial"
_DAILY: Final = re.compile(r"\.daily-(\d{6,})\.(\d{4}-\d{2}-\d{2})$")


def back_up(db: sqlite_utils.Database, target: Path) -> Path:
    """Copies the database of `db` to `target`, or to the next free name like it, and checks the copy.

    Returns:
        The path of the copy, where a file appears only when it is complete and verified.

    Raises:
        StoreDamagedError: The copy is damaged, as is the original.
    """
    final = free_name(target)
    draft = sidecar(final, _DRAFT)
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


def clear_drafts(path: Path) -> None:
    """Removes the remains of interrupted backups and recoveries. Only for the writer, before it starts any of these."""
    with suppress(OSError):  # remains do no harm except for the room they take
        for draft in (path.parent / FOLDER).glob(f"*{_DRAFT}*"):
            if draft.name.startswith(f"{path.stem}."):
                draft.unlink(missing_ok=True)
        for folder in path.resolve().parent.glob(f"{RECOVERING}*"):
            shutil.rmtree(folder, ignore_errors=True)


def back_up_before(db: sqlite_utils.Database, path: Path, change: str) -> Path:
    """Copies the database before a change, and verifies every row of the copy.

    Damage that the original has too is logged, and is not an error.

    Args:
        db: The database.
        path: The path of the database.
        change: Name of the change, for the name of the copy.

    Returns:
        The path of the copy.

    Raises:
        StoreDamagedError: The copy has damage that the original does not have; it was deleted.
    """
    made = back_up(db, path.parent / FOLDER / f"{path.stem}.before-{change}{path.suffix}")
    try:
        with connect(made, read_only=True, immutable=True) as copy:
            bad = set(_damaged(copy))
        if bad and (changed := bad - set(_damaged(db))):
            words = f"{len(changed):,} rows of the backup {made.name} are not what they are in the original"
            raise StoreDamagedError(f"{words}; nothing was changed. Is the disk sound?")
    except BaseException:
        made.unlink()
        raise
    if bad:
        log.warning(
            "%s: %d rows are damaged, here and in the backup %s; all others are brought up to date", path, len(bad), made
        )
    return made


def back_up_daily(path: Path, stop: threading.Event) -> Path | None:
    """Makes today's backup of the database at `path` if there is none; blocking, for a thread of its own.

    Backups are numbered, and the last `KEPT` stay: after the clock was set back another backup is made, and no newer one is
    deleted. Any date other than that of the last backup counts as a new day.

    Args:
        path: The database; later writes are in the next backup.
        stop: Set to cancel.

    Returns:
        The path of the backup; None if today has one already, or it was stopped.

    Raises:
        StoreDamagedError: The copy is damaged; it was deleted, and existing backups stay.
        StoreFullError: The disk has too little room for it.
    """
    day = today()
    held = daily_backups(path)
    last = _DAILY.search(held[-1].stem) if held else None
    if last is not None and last[2] == day:
        return None
    number = int(last[1]) + 1 if last is not None else 1
    made = _verified_copy(path, f"daily-{number:06}.{day}", stop)
    if made is not None:
        for old in daily_backups(path)[:-KEPT]:
            old.unlink(missing_ok=True)
    return made


def back_up_now(path: Path, stop: threading.Event) -> Path | None:
    """Makes a backup of the database at `path` on request; blocking, for a thread of its own.

    The backup replaces no other, and is never deleted automatically.

    Args:
        path: The database; later writes are in the next backup.
        stop: Set to cancel.

    Returns:
        The path of the backup; None if it was stopped.

    Raises:
        StoreDamagedError: The copy is damaged; it was deleted, and existing backups stay.
        StoreFullError: The disk has too little room for it.
    """
    return _verified_copy(path, f"by-hand.{today()}", stop)


def _verified_copy(path: Path, mark: str, stop: threading.Event) -> Path | None:
    """A copy with `mark` in its name, verified row by row; None if it was stopped."""
    with typed_errors(path), connect(path, read_only=True) as db:
        _check_room(path)
        made = back_up(db, path.parent / FOLDER / f"{path.stem}.{mark}{path.suffix}")
        try:
            with connect(made, read_only=True, immutable=True) as copy:
                bad = next(_damaged(copy, stop), None)
        except BaseException:
            made.unlink()
            raise
        if bad or stop.is_set():
            made.unlink()
        if bad:
            words = f"no backup was made, rows of {bad[0].replace('_', ' ')} are damaged"
            raise StoreDamagedError(f"{path}: {words}; `elsewise sessions verify` says where")
    return None if stop.is_set() else made


def _check_room(path: Path) -> None:
    """Refuses a backup that would leave too little room on the disk.

    Raises:
        StoreFullError: Too little room would be left.
    """
    folder, journal = path.parent / FOLDER, journal_of(path)
    size = path.stat().st_size + (journal.stat().st_size if journal.exists() else 0)
    free = shutil.disk_usage(folder if folder.exists() else path.parent).free
    if free < size + max(size // 10, SPARE):
        raise StoreFullError(
            f"{path}: no backup was made: it takes {size >> 20:,} MiB of the {free >> 20:,} MiB that are free, "
            f"and {max(size // 10, SPARE) >> 20:,} MiB must stay free"
        )


def daily_backups(path: Path) -> list[Path]:
    """The daily backups of a database, oldest first."""
    found = (path.parent / FOLDER).glob(f"{path.stem}.daily-*{path.suffix}")
    numbers = {each: int(match[1]) for each in found if (match := _DAILY.search(each.stem))}
    return sorted(numbers, key=numbers.__getitem__)


def keep_daily(path: Path, change: str) -> Path | None:
    """Gives the newest daily backup a second name, under which it is never deleted; returns None without a backup.

    Args:
        path: The database.
        change: Name of the change, for the name of the backup.
    """
    held = daily_backups(path)
    if not held:
        return None
    kept = free_name(path.parent / FOLDER / f"{path.stem}.before-{change}{path.suffix}")
    keep_as(held[-1], kept)
    sync_folder(kept.parent)
    return kept


def today() -> str:
    """The local date."""
    return datetime.date.today().isoformat()


def findings(conn: sqlite3.Connection) -> list[str]:
    """At most three findings of SQLite's integrity check; ["ok"] for a sound database."""
    try:
        return [row[0] for row in conn.execute("PRAGMA integrity_check(3)")]
    except sqlite3.DatabaseError as error:  # pages may be too broken for a report
        return [str(error)]


def _damaged(db: sqlite_utils.Database, stop: threading.Event | None = None) -> Iterator[tuple[str, int]]:
    """Table and row id of each row that fails its checksum, until `stop` is set; skips tables that an older version lacks."""
    there = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    for table in checksums.COVERED:
        last = 0
        while table in there and not (stop is not None and stop.is_set()):
            sql = f"SELECT rowid AS _row, * FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT 64"  # noqa: S608  # our own names
            rows = fetch(db, sql, [last])
            if not rows:
                break
            last = rows[-1]["_row"]
            yield from ((table, row["_row"]) for row in rows if not checksums.intact(table, row))
