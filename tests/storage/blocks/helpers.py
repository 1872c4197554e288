"""Small blocks for tests, addressed by names."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from runtime.kv.store import Block

BUDGET = 1 << 30


def key(*path: str) -> bytes:
    """The key at the end of a path of names."""
    return hashlib.sha256("/".join(path).encode()).digest()


def block(*path: str, nbytes: int = 100, tokens: int = 64) -> Block:
    """The last block of a path, with data derived from its key."""
    parent = key(*path[:-1]) if path[1:] else None
    return Block(key(*path), parent, tokens, [data(*path, nbytes=nbytes)])


def chain(*path: str, nbytes: int = 100) -> list[Block]:
    """All blocks of a path."""
    return [block(*path[: n + 1], nbytes=nbytes) for n in range(len(path))]


def keys(*path: str) -> list[bytes]:
    """The keys of all blocks of a path."""
    return [key(*path[: n + 1]) for n in range(len(path))]


def data(*path: str, nbytes: int = 100) -> bytes:
    """The data of the block at the end of a path."""
    seed = key(*path)
    return (seed * (nbytes // len(seed) + 1))[:nbytes]


def size(path: Path) -> int:
    """Bytes of the file on the disk, without its journal."""
    return path.stat().st_size


def expected(*path: str, nbytes: int = 100) -> list[bytes]:
    """What `get` returns for a whole path."""
    return [data(*path[: n + 1], nbytes=nbytes) for n in range(len(path))]


def joined(parts: Sequence[bytes | bytearray | memoryview]) -> bytes:
    """The data of a block as `get` returns it."""
    return b"".join(bytes(part) for part in parts)
