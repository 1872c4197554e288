"""Conversion of SQLite's errors about the block file to `OSError`s."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.errors import is_damage

_CODES: dict[int, tuple[int, str]] = {
    sqlite3.SQLITE_FULL: (errno.ENOSPC, "the disk is full"),
    sqlite3.SQLITE_READONLY: (errno.EROFS, "the block file cannot be written"),
    sqlite3.SQLITE_PERM: (errno.EACCES, "access to the block file was denied"),
    sqlite3.SQLITE_CANTOPEN: (errno.EACCES, "the block file cannot be opened"),
    sqlite3.SQLITE_BUSY: (errno.EBUSY, "another program holds the block file"),
    sqlite3.SQLITE_LOCKED: (errno.EBUSY, "another program holds the block file"),
}


class DamagedFileError(OSError):
    """The file is broken or foreign, and must be replaced by a new one. Never leaves the package."""


@contextmanager
def as_os_errors(path: Path) -> Iterator[None]:
    """Converts SQLite errors raised inside the `with` block to `OSError`s that name the file."""
    try:
        yield
    except UnicodeDecodeError as error:  # SQLite quotes a damaged schema in its message
        raise DamagedFileError(errno.EIO, "the block file is damaged", str(path)) from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:  # misuse by the caller: another thread, a closed connection
            raise
        number, meaning = _CODES.get(code & 0xFF, (errno.EIO, "the disk reported an error"))
        kind = DamagedFileError if is_damage(error) else OSError
        raise kind(number, f"{meaning} ({error.sqlite_errorname})", str(path)) from error


@contextmanager
def foreign_errors(path: Path) -> Iterator[None]:
    """As `as_os_errors`, for a foreign file: damage is an ordinary error, since such a file is not replaced."""
    try:
        with as_os_errors(path):
            yield
    except DamagedFileError as error:
        raise OSError(error.errno, f"its blocks cannot be read: {error.strerror}", str(path)) from error
