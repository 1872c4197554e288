"""One writer per data folder: a file lock, a note of its holder, and requests to focus the window."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import filelock
import msgspec
import psutil

from storage.errors import StoreReadOnlyError

_CLOCK_SLACK = 60.0  # seconds; setting the clock changes the start times that the system reports


class _Holder(msgspec.Struct, frozen=True):
    pid: int
    started: float  # start of the process, to recognise a reused pid
    what: str


class FocusRequest(msgspec.Struct, frozen=True):
    """A request from a second start of the app to the first; `stamp` makes each request different."""

    stamp: int
    files: tuple[str, ...] = ()


class DataFolderLock:
    """The right to write into a data folder; the operating system releases it when the process ends.

    Keep a reference: the lock is released when the object is collected.

    Args:
        data_dir: The data folder; made (0700) if missing.
        what: The holder, for messages: "window", "ask --session".
    """

    def __init__(self, data_dir: Path, what: str = "window") -> None:
        self._dir, self._what = data_dir, what
        self._note = data_dir / "lock.json"
        # thread_local=False: the lock may be released on another thread than the one that acquired it
        self._lock = filelock.FileLock(data_dir / "lock", mode=0o600, thread_local=False)

    def acquire(self) -> bool:
        """Takes the lock without waiting; False if another process (or lock object) holds it.

        Raises:
            StoreReadOnlyError: The folder cannot be written.
        """
        try:
            self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            return False
        except OSError as error:
            raise StoreReadOnlyError(f"{self._dir}: the data folder cannot be written ({error.strerror})") from error
        try:
            me = psutil.Process()
            _write(self._note, msgspec.json.encode(_Holder(me.pid, me.create_time(), self._what)))
            (self._dir / "focus").touch(mode=0o600)  # exists from the start, so that it can be watched
        except OSError as error:
            self._lock.release()
            raise StoreReadOnlyError(f"{self._dir}: the data folder cannot be written ({error.strerror})") from error
        return True

    def release(self) -> None:
        """Releases the lock; does nothing if it is not held."""
        if self._lock.is_locked:
            self._note.unlink(missing_ok=True)  # before the release, after which the note may be that of the next holder
            self._lock.release()

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return bool(self._lock.is_locked)

    @property
    def held_by(self) -> str | None:
        """The holder of the folder, such as "window, pid 4711"; None if it is free."""
        try:
            holder = msgspec.json.decode(self._note.read_bytes(), type=_Holder)
            alive = abs(psutil.Process(holder.pid).create_time() - holder.started) < _CLOCK_SLACK
        except (OSError, msgspec.DecodeError, psutil.NoSuchProcess, ValueError):
            return None
        return f"{holder.what}, pid {holder.pid}" if alive else None


def request_focus(data_dir: Path, files: Sequence[Path] = ()) -> None:
    """Asks the window that holds `data_dir` to come to the front and open `files`. It watches the file `focus`.

    Raises:
        StoreReadOnlyError: The folder cannot be written.
    """
    try:
        _write(data_dir / "focus", msgspec.json.encode(FocusRequest(time.time_ns(), tuple(map(str, files)))))
    except OSError as error:
        raise StoreReadOnlyError(f"{data_dir}: the data folder cannot be written ({error.strerror})") from error


def read_focus(data_dir: Path) -> FocusRequest | None:
    """The last focus request; None without a request, or while it is being written."""
    try:
        return msgspec.json.decode((data_dir / "focus").read_bytes(), type=FocusRequest)
    except (OSError, msgspec.DecodeError):
        return None


def _write(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
