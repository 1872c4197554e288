"""Blocks as rows of the database, with their SHA-256."""

from __future__ import annotations

import hashlib
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

Buffer = bytes | bytearray | memoryview

CHUNK_BYTES: Final = 1 << 20  # of one row of data
_PLACES: Final = 1 << 20  # the most chunk rows of a block; a chunk's id is the block's id times this, plus the chunk's place
_KEY_BYTES: Final = 32

_COLUMNS: Final = (
    "id, key, parent, CAST(tokens AS INTEGER), CAST(bytes AS INTEGER), CAST(used AS INTEGER), sha256"  # types may be damaged
)


class NewBlock(Protocol):
    """A block to store."""

    @property
    def key(self) -> bytes:
        """The name of the block: 32 bytes."""

    @property
    def parent(self) -> bytes | None:
        """The key of the previous block on the path; None at the start of a path."""

    @property
    def tokens(self) -> int:
        """The number of tokens that the block holds."""

    @property
    def data(self) -> Sequence[Buffer]:
        """The bytes of the block, in parts."""


@dataclass(frozen=True, slots=True)
class BlockRow:
    """A stored block without its data."""

    id: int
    key: bytes
    parent: bytes | None
    tokens: int
    nbytes: int
    used: int  # sequence number of the last use
    sha256: bytes


@dataclass(frozen=True, slots=True)
class Copied:
    """A verified copy of a stored block."""

    key: bytes
    parent: bytes | None
    tokens: int
    data: tuple[bytes]


def size_of(block: NewBlock) -> int:
    """Bytes of a block's data.

    Raises:
        ValueError: The block is invalid: a key is not 32 bytes, there are no tokens, or more bytes than a block may have.
    """
    for key in (block.key, block.parent):
        if key is not None and len(key) != _KEY_BYTES:
            raise ValueError(f"a block's key has {_KEY_BYTES} bytes, not {len(key)}")
    nbytes = sum(memoryview(part).nbytes for part in block.data)
    if block.tokens < 1 or nbytes > CHUNK_BYTES * _PLACES:
        raise ValueError(f"{block.tokens} tokens in {nbytes:,} bytes are not a block")
    return nbytes


def find(conn: sqlite3.Connection, key: bytes) -> BlockRow | None:
    """The row of a block; None if the block is not stored."""
    row = conn.execute(f"SELECT {_COLUMNS} FROM kv_blocks WHERE key = ?", [key]).fetchone()  # noqa: S608  # our own names
    return None if row is None else BlockRow(*row)


def everything(conn: sqlite3.Connection) -> list[BlockRow]:
    """The rows of all blocks."""
    return [BlockRow(*row) for row in conn.execute(f"SELECT {_COLUMNS} FROM kv_blocks")]  # noqa: S608  # our own names


def insert(conn: sqlite3.Connection, block: NewBlock, used: int) -> None:
    """Adds a block, inside a transaction."""
    nbytes = size_of(block)
    row_id = conn.execute(
        "INSERT INTO kv_blocks (key, parent, tokens, bytes, used, sha256) VALUES (?, ?, ?, ?, ?, x'')",
        [block.key, block.parent, block.tokens, nbytes, used],
    ).lastrowid
    assert row_id is not None  # an INSERT has one
    digest = _digest(block.key, block.parent, block.tokens, nbytes)
    for place, chunk in enumerate(_chunks(block.data)):
        digest.update(chunk)
        conn.execute("INSERT INTO kv_chunks (id, data) VALUES (?, ?)", [row_id * _PLACES + place, chunk])
    conn.execute("UPDATE kv_blocks SET sha256 = ? WHERE id = ?", [digest.digest(), row_id])


def read(conn: sqlite3.Connection, row: BlockRow, key: bytes) -> bytes | None:
    """The data of the block `key`, found as `row`; None if the checksum does not match."""
    if row.key != key or not isinstance(row.parent, bytes | None):
        return None
    if not 0 < row.tokens < 1 << 32 or not 0 <= row.nbytes <= CHUNK_BYTES * _PLACES:
        return None
    digest = _digest(row.key, row.parent, row.tokens, row.nbytes)
    parts: list[bytes] = []
    first = row.id * _PLACES
    sql = "SELECT data FROM kv_chunks WHERE id BETWEEN ? AND ? ORDER BY id"
    for (data,) in conn.execute(sql, [first, first + _PLACES - 1]):
        if not isinstance(data, bytes):
            return None
        digest.update(data)  # releases the interpreter's lock, as does reading the row
        parts.append(data)
    return b"".join(parts) if digest.digest() == row.sha256 else None


def delete(conn: sqlite3.Connection, rows: Iterable[BlockRow]) -> int:
    """Deletes blocks with their data, inside a transaction; returns the bytes freed."""
    freed = 0
    for row in rows:
        first = row.id * _PLACES
        conn.execute("DELETE FROM kv_chunks WHERE id BETWEEN ? AND ?", [first, first + _PLACES - 1])
        conn.execute("DELETE FROM kv_blocks WHERE id = ?", [row.id])
        freed += row.nbytes
    return freed


def _digest(key: bytes, parent: bytes | None, tokens: int, nbytes: int) -> hashlib._Hash:
    """A SHA-256 of a block's values without its data and last use."""
    return hashlib.sha256(struct.pack("<32s?32sIQ", key, parent is not None, parent or b"", tokens, nbytes))


def _chunks(parts: Sequence[Buffer]) -> Iterator[Buffer]:
    """The concatenated parts, cut into rows of `CHUNK_BYTES`; parts are copied only where a row combines several."""
    waiting = bytearray()
    for part in parts:
        rest = memoryview(part).cast("B")
        while rest:
            take = rest[: CHUNK_BYTES - len(waiting)]
            rest = rest[len(take) :]
            if not waiting and len(take) == CHUNK_BYTES:
                yield take
                continue
            waiting += take
            if len(waiting) == CHUNK_BYTES:
                yield waiting
                waiting = bytearray()
    if waiting:
        yield waiting
