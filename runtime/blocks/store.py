"""What the runtime asks of a store of its KV blocks, and nothing more.

A block is at most 64 tokens of one path. Its key is a hash chain over namespaces and tokens up to its end, so equal keys
are equal KV, and paths that share a prefix share its blocks. The store never looks inside; it may forget any block at any
time (it is a cache), but what it gives back is what it was given: it checks a SHA-256 of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Block:
    """One block to keep."""

    key: bytes  # SHA-256 over the parent's key, the namespace and the tokens, 32 bytes
    parent: bytes | None  # the key of the block before it on its path; None at the start of one
    tokens: int  # how many it holds, 1 to 64
    # what it is made of, in order; the store may write the parts one after the other without joining them
    data: Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class BlockStats:
    """What a store holds."""

    blocks: int
    bytes: int
    budget: int  # bytes
    evicted: int  # blocks, since it was opened
    damaged: int  # blocks that failed their SHA-256 and were dropped, since it was opened


class BlockCounts(Protocol):
    """`BlockStats` by its shape: a store does not know the runtime's classes."""

    @property
    def blocks(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def budget(self) -> int: ...
    @property
    def evicted(self) -> int: ...
    @property
    def damaged(self) -> int: ...


class BlockStore(Protocol):
    """Keeps blocks. All members block and belong to one thread, the block thread of the engine process.

    Every member may raise `OSError` where the disk fails; the store is then as it was before the call, and the runtime goes
    on without it.
    """

    def leading(self, keys: Sequence[bytes]) -> int:
        """How many of the first `keys` are held, without a gap; marks them as just used."""

    def get(self, keys: Sequence[bytes]) -> list[bytes]:
        """The data of the first `keys`, each verified; ends before the first that is missing or damaged.

        A damaged block is dropped with everything that hangs under it. No block of another path is ever given.
        """

    def put(self, blocks: Sequence[Block], *, superseded: Sequence[bytes] = (), pinned: bool = False) -> int:
        """Keeps blocks (parents before children), all or none; those that are held already are marked as used only.

        Evicts least recently used blocks without children first, to stay within the budget; what alone exceeds it is not
        kept. `superseded` are partial blocks that these replace: dropped unless another block or a pin hangs on them.
        `pinned` adds all of `blocks` to the pin of the empty name. A block whose parent is not held is not kept.

        Returns:
            How many were written.
        """

    def pin(self, name: str, keys: Sequence[bytes]) -> None:
        """These blocks are not evicted while the pin `name` stands; it replaces the pin of that name, and () removes it."""

    def evict(self, nbytes: int) -> int:
        """Frees at least `nbytes` if it can, least recently used first, never what is pinned; returns the bytes freed."""

    def copy_to(self, path: Path, keys: Sequence[bytes]) -> int:
        """Copies those of `keys` that are held into another block file at `path` (made when missing); how many."""

    def take_from(self, path: Path, keys: Sequence[bytes]) -> int:
        """Keeps those of `keys` (parents before children) that another block file holds; how many of them are held then."""

    def stats(self) -> BlockCounts:
        """Counts, without reading a block."""

    def close(self) -> None:
        """Closes the file; may be repeated."""
