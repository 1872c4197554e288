"""The store's only connection, and the thread that uses it.

All access to SQLite is a function `(sqlite_utils.Database) -> T` that `Database.read` or `Database.write` runs on the store
thread. Results are `concurrent.futures`, so any event loop, or none, can wait for them.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import sqlite3
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import sqlite_utils

from storage.errors import (
    StoreClosedError,
    StoreDamagedError,
    StoreForkedError,
    StoreMissingError,
    UnknownRowError,
    is_write_fault,
    typed_errors,
)
from storage.files import journal_of, sidecar

T = TypeVar("T")
Rows = list[dict[str, Any]]
Job = Callable[[sqlite_utils.Database], T]

_PRAGMAS = (
    "foreign_keys = ON",
    "synchronous = FULL",  # a commit is on the disk when it returns
    "trusted_schema = OFF",  # a foreign schema cannot call functions with side effects
    "cell_size_check = ON",
    "journal_size_limit = 67108864",  # bytes of the WAL file after a checkpoint
)
# On macOS only F_FULLFSYNC reaches the disk; on other systems fsync does.
_PRAGMAS_MACOS = ("fullfsync = ON", "checkpoint_fullfsync = ON")
_BUSY_SECONDS = 5.0
HEADER_BYTES: Final = 100  # of any SQLite file
SQLITE_MAGIC: Final = b"SQLite format 3\0"  # its first bytes
_NO_FILES_BESIDE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


class Database:
    """A SQLite file, its connection and its thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="elsewise-store")
        self._db: sqlite_utils.Database | None = None
        self._closed = False
        self._pid = os.getpid()

    def open(self, opener: Callable[[], sqlite_utils.Database]) -> None:
        """Opens the connection by `opener` on the store thread; blocking. A failure leaves nothing open."""
        try:
            self._thread.submit(self._open, opener).result()
        except BaseException:
            self.close()
            raise

    def submit(self, job: Job[T]) -> Future[T]:
        """Runs `job` on the store thread; SQLite errors are converted to those of `storage.errors`.

        Raises:
            StoreClosedError: The store was closed.
            StoreForkedError: The store belongs to another process.
        """
        if self._forked:
            raise StoreForkedError(
                f"{self.path}: the store belongs to process {self._pid}, which this one was forked from; open it in this "
                'process, and start the process by spawn instead of fork: multiprocessing.get_context("spawn")'
            )
        if self._closed:
            raise StoreClosedError(f"{self.path}: the store was closed")
        return self._thread.submit(self._run, job)

    async def read(self, job: Job[T]) -> T:
        """Runs `job`, which does not write."""
        return await asyncio.wrap_future(_relay(self.submit(job)))

    async def write(self, job: Job[T]) -> T:
        """Runs `job` in one transaction, which is durable on return.

        The job runs to its end even if the caller is cancelled.
        """
        return await self.read(lambda db: transaction(db, job))

    def close(self) -> None:
        """Completes submitted jobs, closes the connection and ends the thread. Blocking; idempotent.

        Does nothing in a forked child.
        """
        if self._forked:
            return
        if not self._closed:
            self._closed = True
            self._thread.submit(self._disconnect).result()
        self._thread.shutdown()

    async def close_async(self) -> None:
        """`close` without blocking the event loop while jobs are pending."""
        if self._forked:
            return
        if not self._closed:
            self._closed = True
            await asyncio.wrap_future(_relay(self._thread.submit(self._disconnect)))
        self._thread.shutdown()  # short: the thread has no jobs left

    @property
    def _forked(self) -> bool:
        """Whether this is a forked child, where the thread does not exist."""
        return os.getpid() != self._pid

    def _open(self, opener: Callable[[], sqlite_utils.Database]) -> None:
        with typed_errors(self.path):
            self._db = opener()

    def _run(self, job: Job[T]) -> T:
        if self._db is None:
            raise StoreClosedError(f"{self.path}: the store was closed")
        with typed_errors(self.path):
            return job(self._db)

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()


def connect(path: Path, *, read_only: bool = False, immutable: bool = False) -> sqlite_utils.Database:
    """A connection with our pragmas to an existing file, for the calling thread.

    On a read-only or full disk SQLite cannot make the files that a WAL needs. With `read_only` the file is then read without
    them; if it has a WAL, both are copied into the temporary folder and read there.

    Args:
        path: The file.
        read_only: Whether nothing is written.
        immutable: Whether the file has no writer meanwhile: SQLite then takes no lock and makes no other files.
    """
    if read_only and not path.exists():
        raise StoreMissingError(f"{path}: there are no saved sessions here yet")
    if path.exists() and not path.is_file():  # opening a pipe would wait for its other end
        raise StoreDamagedError(f"{path} is no regular file; move it away or choose another data folder")
    if not read_only or immutable:
        return _connection(path, read_only=read_only, immutable=immutable)
    try:
        return _connection(path, read_only=True)
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _NO_FILES_BESIDE:
            raise
    journal = journal_of(path)
    if not journal.exists() or not journal.stat().st_size:
        return _connection(path, read_only=True, immutable=True)
    folder = tempfile.TemporaryDirectory(prefix="elsewise-")
    copy = Path(folder.name) / path.name
    try:
        shutil.copyfile(path, copy)
        shutil.copyfile(journal, sidecar(copy, "-wal"))
        db = _connection(copy, read_only=True)
    except BaseException:
        folder.cleanup()
        raise
    assert isinstance(db.conn, ForkSafeConnection)
    db.conn.folder = folder
    return db


class ForkSafeConnection(sqlite3.Connection):
    """A connection of the process that opened it: SQLite does not allow a forked child even to close it.

    The connection may own the folder of the copy that it reads.
    """

    folder: tempfile.TemporaryDirectory[str] | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._pid = os.getpid()
        _connections.add(self)

    def close(self) -> None:
        """Closes the connection and deletes the copy, if any; does nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        super().close()
        if self.folder is not None:
            self.folder.cleanup()


_connections: weakref.WeakSet[ForkSafeConnection] = weakref.WeakSet()


def _keep_connections() -> None:
    """Keeps connections alive in a forked child, whose interpreter would otherwise close them in SQLite at its end."""
    for connection in list(_connections):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


os.register_at_fork(after_in_child=_keep_connections)


def open_connection(
    path: Path,
    *,
    read_only: bool = False,
    immutable: bool = False,
    timeout: float = _BUSY_SECONDS,
    isolation_level: Literal["DEFERRED"] | None = "DEFERRED",
) -> ForkSafeConnection:
    """A connection to an existing SQLite file, ours or not; `timeout` (seconds) and `isolation_level` are sqlite3's."""
    uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}{'&immutable=1' if immutable else ''}"
    conn = sqlite3.connect(uri, timeout, isolation_level=isolation_level, uri=True, factory=ForkSafeConnection)
    # damaged text must reach the checksum instead of failing in the decoder
    conn.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return conn


def _connection(path: Path, *, read_only: bool, immutable: bool = False) -> sqlite_utils.Database:
    conn = open_connection(path, read_only=read_only, immutable=immutable)
    try:
        db = sqlite_utils.Database(conn, execute_plugins=False)
        for pragma in _PRAGMAS + (_PRAGMAS_MACOS if sys.platform == "darwin" else ()):
            db.execute(f"PRAGMA {pragma}")
        if read_only:
            db.execute("PRAGMA user_version").fetchone()  # fails now, instead of at the first query
    except BaseException:
        conn.close()
        raise
    return db


def fetch(db: sqlite_utils.Database, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> Rows:
    """All rows of a query, as dictionaries. Errors of reading are raised, and never taken for "no rows"."""
    return list(dictionaries(db.execute(sql, parameters)))


def require(db: sqlite_utils.Database, table: str, row_id: int) -> dict[str, Any]:
    """The row of a table by its id.

    Raises:
        UnknownRowError: There is no such row.
    """
    for row in fetch(db, f"SELECT * FROM {table} WHERE id = ?", [row_id]):  # noqa: S608  # our own names
        return row
    raise UnknownRowError(f"there is no {table.removesuffix('s')} {row_id}")


def dictionaries(cursor: sqlite3.Cursor) -> Iterator[dict[str, Any]]:
    """The rows of a query, as dictionaries, one at a time."""
    names = [column[0] for column in cursor.description]
    return (dict(zip(names, row, strict=True)) for row in cursor)


def scalar(db: sqlite_utils.Database, sql: str, parameters: Sequence[Any] = ()) -> Any:
    """The first column of the first row; None without rows."""
    row = db.execute(sql, parameters).fetchone()
    return None if row is None else row[0]


def transaction(db: sqlite_utils.Database, job: Job[T]) -> T:
    """Runs `job` in one transaction; repeats it once after a disk fault, after which SQLite has rolled it back."""
    try:
        with db.atomic():
            return job(db)
    except sqlite3.Error as error:
        if not is_write_fault(error):
            raise
    with db.atomic():
        return job(db)


def _relay(source: Future[T]) -> Future[T]:
    """A future that can be cancelled, or outlive its event loop, without touching `source`."""
    relay: Future[T] = Future()

    def hand_over(done: Future[T]) -> None:
        if relay.set_running_or_notify_cancel():
            error = done.exception()
            relay.set_exception(error) if error else relay.set_result(done.result())

    source.add_done_callback(hand_over)
    return relay
