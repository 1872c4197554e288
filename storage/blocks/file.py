"""`BlockFile`: KV blocks in one SQLite file, within a budget of bytes."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

from storage.blocks import eviction, rows, schema
from storage.blocks.errors import DamagedFileError, as_os_errors, foreign_errors
from storage.blocks.rows import BlockRow, NewBlock

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SLACK: Final = 8  # a file is shrunk if more than 1/8 of its pages are free


@dataclass(frozen=True, slots=True)
class BlockFileStats:
    """Statistics of a block file."""

    blocks: int
    bytes: int
    budget: int  # bytes
    evicted: int  # blocks, since it was opened
    damaged: int  # blocks that failed their SHA-256 and were dropped, since it was opened


class BlockFile:
    """KV blocks by key, each with a SHA-256 over all of its values.

    Used by one thread of one process, which makes it and calls every member; all members block. A member that raises
    `OSError` (the disk is full or failed, or the file cannot be written) has changed nothing. A file whose pages turn out to
    be broken is moved aside and replaced by an empty one, with a warning in the log.

    Args:
        path: The file; made (0600, its folder 0700) if missing.
        budget: The most bytes of data; blocks beyond it are evicted at once.
        read_only: For blocks inside a foreign file: uses are not marked, and writing members raise errors.

    Raises:
        OSError: ENOTSUP: the file is of a newer version (left untouched), or (`read_only`) has no blocks; EBUSY: another
            process has it open; otherwise an error of the disk or of permissions.
    """

    def __init__(self, path: Path, budget: int, *, read_only: bool = False) -> None:
        self.path, self.budget = path, budget
        self._read_only = read_only
        self._pid = os.getpid()
        self._evicted = self._damaged = self._last_use = 0
        self._conn: sqlite3.Connection | None = (
            schema.open_foreign(path, read_only=True) if read_only else schema.open_file(path)
        )
        try:
            if not read_only:
                self._last_use = self._write(eviction.repair_use_sequence)
                self._damaged += self._write(eviction.drop_cycles).damaged
                self._evicted += self._write(lambda conn: eviction.evict(conn, eviction.total(conn) - budget)).evicted
                self._shrink()
        except BaseException:
            self.close()
            raise

    def leading(self, keys: Sequence[bytes]) -> int:
        """The number of leading `keys` that are stored without a gap; marks their blocks as just used."""
        return self._run(lambda conn: self._mark(conn, list(eviction.held(conn, keys))))

    def get(self, keys: Sequence[bytes]) -> list[bytes]:
        """The verified data of the first `keys`, ending before the first that is missing, damaged, or of another path.

        A damaged block is dropped with all its descendants.
        """
        return self._run(lambda conn: self._get(conn, keys))

    def put(self, blocks: Sequence[NewBlock], *, superseded: Sequence[bytes] = (), pinned: bool = False) -> int:
        """Stores blocks, parents before children, in one transaction; marks stored ones as used.

        Evicts the least recently used blocks to stay within the budget; if that is not enough, the last new blocks are not
        stored. Blocks whose parent is missing are not stored either, since no path would reach them.

        Args:
            blocks: The blocks.
            superseded: Partial blocks that these replace: dropped, unless they are pinned or have children.
            pinned: Adds all of `blocks` to the pin of the empty name.

        Returns:
            The number of blocks written.

        Raises:
            ValueError: An item is not a valid block; nothing was written.
        """
        tick = self._next_use()
        change = self._write(lambda conn: eviction.put(conn, blocks, superseded, pinned=pinned, budget=self.budget, tick=tick))
        self._evicted += change.evicted
        self._damaged += change.damaged
        if change.freed:
            self._shrink()
        return change.written

    def pin(self, name: str, keys: Sequence[bytes]) -> None:
        """Pins these blocks under `name`, which prevents their eviction, also after a restart; () removes the pin."""
        self._write(lambda conn: eviction.pin(conn, name, keys))

    def evict(self, nbytes: int) -> int:
        """Frees at least `nbytes` if possible, least recently used first, without pinned blocks; returns the bytes freed.

        The file on the disk shrinks too.
        """
        change = self._write(lambda conn: eviction.evict(conn, nbytes))
        self._evicted += change.evicted
        self._shrink(slack=1 << 30)
        return change.freed

    def copy_to(self, path: Path, keys: Sequence[bytes]) -> int:
        """Copies the stored blocks of `keys`, verified, into another file, all or none; returns their number.

        Args:
            path: A block file (made if missing), or any other SQLite file, which gets missing tables; not open elsewhere.
                Blocks that it already has stay.
            keys: The blocks, parents before children.
        """
        if not path.exists():
            schema.create(path, portable=True)
        return self._run(lambda conn: self._copy(conn, path, keys))

    def take_from(self, path: Path, keys: Sequence[bytes]) -> int:
        """Copies blocks of `keys`, verified, from another file by `put`; returns how many of them are then stored.

        Args:
            path: A block file, or a foreign file with blocks; it is only read.
            keys: The blocks, parents before children.
        """
        with closing(schema.open_foreign(path, read_only=True)) as foreign:
            return self._write(lambda conn: self._take(conn, foreign, path, keys))

    def stats(self) -> BlockFileStats:
        """Counts, without reading a block."""
        count, held = self._run(lambda conn: conn.execute("SELECT count(*), total(bytes) FROM kv_blocks").fetchone())
        return BlockFileStats(count, int(held), self.budget, self._evicted, self._damaged)

    def close(self) -> None:
        """Closes the file. Idempotent."""
        conn, self._conn = self._conn, None
        if conn is not None:
            with as_os_errors(self.path):
                conn.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- transactions

    def _run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `job`, and repeats it on a new file if this one turns out to be broken."""
        try:
            with as_os_errors(self.path):
                return job(self._open_connection())
        except DamagedFileError as error:
            if self._read_only:
                raise OSError(errno.EIO, f"its blocks cannot be read: {error.strerror}", str(self.path)) from error
            self._start_anew(str(error.strerror))
        with as_os_errors(self.path):
            return job(self._open_connection())

    def _write(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `job` in one transaction."""
        if self._read_only:
            raise OSError(errno.EROFS, "these blocks are only read", str(self.path))
        return self._run(lambda conn: _transaction(conn, job))

    def _open_connection(self) -> sqlite3.Connection:
        if self._conn is None:
            raise OSError(errno.EBADF, "the block file was closed", str(self.path))
        if os.getpid() != self._pid:
            raise OSError(
                errno.EBUSY, f"the block file belongs to process {self._pid}, which this one was forked from", str(self.path)
            )
        return self._conn

    def _start_anew(self, reason: str) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with suppress(sqlite3.Error):
                conn.close()
        self._damaged += 1  # a lower bound: the blocks of a broken file cannot be counted
        schema.set_aside(self.path, reason)
        self._conn = schema.open_file(self.path)

    def _next_use(self) -> int:
        self._last_use += 1
        return self._last_use

    # ---- reading, copying, shrinking

    def _get(self, conn: sqlite3.Connection, keys: Sequence[bytes]) -> list[bytes]:
        found: list[bytes] = []
        good: list[BlockRow] = []
        for key, row in zip(keys, eviction.held(conn, keys), strict=False):
            data = rows.read(conn, row, key)
            if data is None:
                self._drop(conn, row, key)
                break
            found.append(data)
            good.append(row)
        self._mark(conn, good)
        return found

    def _mark(self, conn: sqlite3.Connection, used: Sequence[BlockRow]) -> int:
        """Marks blocks as just used; returns their number. A failure to write is ignored."""
        if used and not self._read_only:
            tick = self._next_use()
            with suppress(OSError), as_os_errors(self.path):
                _transaction(conn, lambda conn: eviction.mark(conn, used, tick))
        return len(used)

    def _drop(self, conn: sqlite3.Connection, row: BlockRow, key: bytes) -> None:
        """Logs a damaged block and deletes it with its descendants, if possible."""
        self._damaged += 1
        logger.warning("%s: KV block %s fails its checksum; it and what hangs on it are computed again", self.path, key.hex())
        if not self._read_only:
            with suppress(OSError), as_os_errors(self.path):
                _transaction(conn, lambda conn: eviction.drop(conn, row, key))

    def _copy(self, conn: sqlite3.Connection, path: Path, keys: Sequence[bytes]) -> int:
        with closing(schema.open_foreign(path, read_only=False)) as foreign, foreign_errors(path):
            return _transaction(
                foreign, lambda foreign: sum(self._copy_block(conn, foreign, key) for key in dict.fromkeys(keys))
            )

    def _copy_block(self, conn: sqlite3.Connection, foreign: sqlite3.Connection, key: bytes) -> bool:
        row = rows.find(conn, key)
        if row is None or rows.find(foreign, key) is not None:
            return row is not None
        data = rows.read(conn, row, key)
        if data is None:
            self._drop(conn, row, key)
            return False
        rows.insert(foreign, rows.Copied(row.key, row.parent, row.tokens, (data,)), row.used)
        return True

    def _take(self, conn: sqlite3.Connection, foreign: sqlite3.Connection, path: Path, keys: Sequence[bytes]) -> int:
        found: list[bytes] = []
        for key in dict.fromkeys(keys):  # one at a time: they may be large
            with foreign_errors(path):
                row = rows.find(foreign, key)
                data = None if row is None else rows.read(foreign, row, key)
            if row is not None and data is not None:
                found.append(key)
                block = rows.Copied(row.key, row.parent, row.tokens, (data,))
                change = eviction.put(conn, [block], (), pinned=False, budget=self.budget, tick=self._next_use())
                self._evicted += change.evicted
        return sum(rows.find(conn, key) is not None for key in found)

    def _shrink(self, slack: int = _SLACK) -> None:
        """Returns free pages to the disk if they are more than 1/`slack` of the file. Errors are ignored."""
        with suppress(OSError), as_os_errors(self.path):
            conn = self._open_connection()
            free, pages = (conn.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_count"))
            if free * slack > pages:
                conn.executescript("PRAGMA incremental_vacuum")  # `execute` would take one step, and free one page
                conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def open_blocks(path: str | Path, budget: int, *, read_only: bool = False) -> BlockFile:
    """Opens the block file at `path`; see `BlockFile`. The arguments are plain values, for a call in another process."""
    return BlockFile(Path(path), budget, read_only=read_only)


def _transaction(conn: sqlite3.Connection, job: Callable[[sqlite3.Connection], T]) -> T:
    conn.execute("BEGIN IMMEDIATE")
    try:
        result = job(conn)
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:  # a full disk has rolled it back already
            conn.execute("ROLLBACK")
        raise
    return result
