"""`BlockStore`: the interface of a store of KV blocks.

A block is at most 64 tokens of one path. Its key is a hash chain over namespaces and tokens up to its end, so that equal keys
mean equal KV, and paths that share a prefix share its blocks. Blocks are opaque to the store. The store is a cache and may drop
any block at any time, but it never returns other bytes than it was given: it checks a SHA-256 of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Block:
    """One block to store."""

    key: bytes  # SHA-256 over the parent's key, the namespace and the tokens, 32 bytes
    parent: bytes | None  # the key of the previous block on the path; None at the start of a path
    tokens: int  # number of tokens, 1 to 64
    # the parts of its bytes, in order; the store need not join them
    data: Sequence[Buffer]


class BlockStats(Protocol):
    """The counts of a store. A Protocol, since a store does not import the runtime."""

    @property
    def blocks(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def budget(self) -> int: ...  # bytes
    @property
    def evicted(self) -> int: ...  # blocks, since it was opened
    @property
    def damaged(self) -> int: ...  # blocks that failed their SHA-256 and were dropped, since it was opened


class BlockStore(Protocol):
    """Stores blocks. All members block, and are called on one thread, the block thread of the engine process.

    Every member may raise `OSError` where the disk fails; the store is then unchanged, and the runtime works without it.
    """

    def leading(self, keys: Sequence[bytes]) -> int:
        """The number of leading `keys` held without a gap; marks them as just used."""

    def get(self, keys: Sequence[bytes]) -> list[bytes]:
        """The data of the leading `keys`, each verified, up to the first that is missing or damaged.

        A damaged block is dropped with all its descendants. No block of another path is ever returned.
        """

    def put(self, blocks: Sequence[Block], *, superseded: Sequence[bytes] = (), pinned: bool = False) -> int:
        """Stores blocks (parents before children), all or none; blocks that are held already are only marked as used.

        Stays within the budget by evicting blocks without children, least recently used first; blocks that exceed it on their
        own are not stored. `superseded` are partial blocks that these replace: they are dropped unless they have another child
        or a pin. `pinned` adds all of `blocks` to the pin of the empty name. A block whose parent is not held is not stored.

        Returns:
            The number of blocks written.
        """

    def pin(self, name: str, keys: Sequence[bytes]) -> None:
        """Pins blocks against eviction, replacing the pin of that name; () removes the pin."""

    def evict(self, nbytes: int) -> int:
        """Frees at least `nbytes` if possible, least recently used first, except pinned blocks; returns the bytes freed."""

    def copy_to(self, path: Path, keys: Sequence[bytes]) -> int:
        """Copies the held blocks among `keys` into another block file at `path` (made if missing); returns their number."""

    def take_from(self, path: Path, keys: Sequence[bytes]) -> int:
        """Stores the blocks of `keys` (parents before children) that another file holds; returns how many are then held."""

    def stats(self) -> BlockStats:
        """Counts, without reading a block."""

    def close(self) -> None:
        """Closes the file; idempotent."""
