"""The errors of the store.

StoreError
├── StoreMissingError                   no store exists at that path (read-only opening, or a broken link)
├── StoreNewerError                     the file is of a newer version; it was not touched
├── StoreDamagedError                   the file is not a database, not a store, or has broken pages
├── StoreReadOnlyError                  the file or its folder cannot be written
├── StoreFullError                      the disk is full or refuses writes; the transaction was rolled back
├── StoreDiskError                      the disk failed while reading or syncing
├── StoreBusyError                      another program holds the database
├── StoreClosedError                    the store was closed
│   └── StoreForkedError                it belongs to the process that this one was forked from
├── UnknownRowError (LookupError)       no session, node or chunk has that id
├── InvalidRowError (ValueError)        the values to save are invalid; nothing was written
└── InvalidFileError (ValueError)       a file cannot be imported; nothing was imported
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class StoreError(Exception):
    """Base of all errors of the store."""


class StoreMissingError(StoreError):
    """No store exists at that path."""


class StoreNewerError(StoreError):
    """The database was written by a newer version of the app; it was not touched."""


class StoreDamagedError(StoreError):
    """The file is not a database, not a store, or damaged; it was not touched."""


class StoreReadOnlyError(StoreError):
    """The database or its folder cannot be written."""


class StoreFullError(StoreError):
    """The disk is full or refuses writes. The transaction was rolled back whole, after one retry."""


class StoreDiskError(StoreError):
    """The disk reported an error while reading or syncing."""


class StoreBusyError(StoreError):
    """Another program holds the database."""


class StoreClosedError(StoreError):
    """The store was closed."""


class StoreForkedError(StoreClosedError):
    """The store belongs to the process that this one was forked from: its thread and connection exist only there."""


class UnknownRowError(StoreError, LookupError):
    """No row has that id."""


class InvalidRowError(StoreError, ValueError):
    """The values to save are invalid; nothing was written."""


class InvalidFileError(StoreError, ValueError):
    """A file cannot be imported; nothing was imported.

    Args:
        name: The name of the file.
        what: The fault, in plain words.
        line: Line number from 1; None for a file without lines.
        place: The part of the file ("node 17"); empty for the whole file.
    """

    def __init__(self, name: str, what: str, *, line: int | None = None, place: str = "") -> None:
        self.line, self.place = line, place
        where = [name, *([f"line {line:,}"] if line is not None else []), *([place] if place else [])]
        super().__init__(f"{', '.join(where)}: {what}")


# Primary result code of SQLite (the low byte of the extended code) -> error and message.
_MEANING: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_FULL: (StoreFullError, "the disk is full; free some space, nothing that was saved is lost"),
    sqlite3.SQLITE_READONLY: (StoreReadOnlyError, "it cannot be written; check the permissions of the file and its folder"),
    sqlite3.SQLITE_PERM: (StoreReadOnlyError, "access was denied; check the permissions of the file and its folder"),
    sqlite3.SQLITE_CANTOPEN: (StoreReadOnlyError, "it cannot be opened; check that its folder exists and can be written"),
    sqlite3.SQLITE_CORRUPT: (StoreDamagedError, "the file is damaged; `elsewise sessions verify` says where"),
    sqlite3.SQLITE_NOTADB: (StoreDamagedError, "this is not a database; move it away or choose another data folder"),
    sqlite3.SQLITE_BUSY: (StoreBusyError, "another program holds it; close that program and try again"),
    sqlite3.SQLITE_LOCKED: (StoreBusyError, "another program holds it; close that program and try again"),
}
_WRITE_FAULTS = (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_TRUNCATE)


def is_write_fault(error: sqlite3.Error) -> bool:
    """Whether the disk was full or failed: the transaction is then repeated once."""
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return primary in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def is_damage(error: Exception) -> bool:
    """Whether the error of a valid query comes from broken pages or a broken schema, and not from the disk."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
    return isinstance(error, UnicodeDecodeError)


def typed(error: sqlite3.Error, path: Path) -> StoreError:
    """Converts an error of the database at `path` to an error of this module."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return StoreError(f"{path}: {error}")
    name = getattr(error, "sqlite_errorname", str(code))
    if code in _WRITE_FAULTS:
        return StoreFullError(f"{path}: the disk refuses writes ({name}); free some space, nothing that was saved is lost")
    if code & 0xFF == sqlite3.SQLITE_IOERR:
        return StoreDiskError(f"{path}: the disk reported an error ({name}); check the disk, nothing was changed")
    kind, meaning = _MEANING.get(code & 0xFF, (StoreError, str(error)))
    return kind(f"{path}: {meaning} ({name})")


@contextmanager
def typed_errors(path: Path) -> Iterator[None]:
    """Converts errors of SQLite and of files inside the `with` block to those of this module."""
    try:
        yield
    except sqlite3.Error as error:
        raise typed(error, path) from error
    except UnicodeDecodeError as error:  # SQLite quotes a damaged schema in its message
        raise StoreDamagedError(f"{path}: the file is damaged; `elsewise sessions verify` says where") from error
    except OSError as error:
        kind = StoreFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreReadOnlyError
        raise kind(f"{path}: the file cannot be opened for writing ({error.strerror}); check its folder") from error
