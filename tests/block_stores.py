"""A block store in memory that can be opened again by its name, and faults on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from runtime.kv.store import Block
from runtime.options.load import BlockOptions

SHELVES: dict[str, MemoryBlocks] = {}


class BlockStats(NamedTuple):
    """The counts of a store."""

    blocks: int
    bytes: int
    budget: int
    evicted: int
    damaged: int


@dataclass
class MemoryBlocks:
    """A `BlockStore` without a file. `close` closes it for its opener alone: the next opener finds the blocks.

    Attributes:
        blocks: The stored blocks: (parent, tokens, data) by key.
        calls: Names of the members that were called, in order.
        before: Called before each member with its name, on the block thread; may raise.
    """

    budget: int = 1 << 40
    blocks: dict[bytes, tuple[bytes | None, int, bytes]] = field(default_factory=dict)
    pins: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda _: None
    threads: set[str] = field(default_factory=set)
    closed: int = 0

    def _enter(self, name: str) -> None:
        self.calls.append(name)
        self.threads.add(threading.current_thread().name)
        self.before(name)

    def leading(self, keys: Sequence[bytes]) -> int:
        self._enter("leading")
        return next((at for at, key in enumerate(keys) if key not in self.blocks), len(keys))

    def get(self, keys: Sequence[bytes]) -> list[bytes]:
        self._enter("get")
        return [self.blocks[key][2] for key in keys[: next((i for i, k in enumerate(keys) if k not in self.blocks), len(keys))]]

    def put(self, blocks: Sequence[Block], *, superseded: Sequence[bytes] = (), pinned: bool = False) -> int:
        self._enter("put")
        written = 0
        for block in blocks:
            assert 1 <= block.tokens <= 64
            assert block.parent is None or block.parent in self.blocks, "a child came before its parent"
            if block.key not in self.blocks:
                self.blocks[block.key] = block.parent, block.tokens, b"".join(block.data)
                written += 1
        parents = {parent for parent, _, _ in self.blocks.values()}
        for key in superseded:
            if key not in parents:
                self.blocks.pop(key, None)
        return written

    def pin(self, name: str, keys: Sequence[bytes]) -> None:
        self._enter("pin")
        self.pins[name] = tuple(keys)

    def evict(self, nbytes: int) -> int:
        self._enter("evict")
        return 0

    def copy_to(self, path: Path, keys: Sequence[bytes]) -> int:
        raise AssertionError(f"no test copies to {path}: {len(keys)}")

    def take_from(self, path: Path, keys: Sequence[bytes]) -> int:
        raise AssertionError(f"no test copies from {path}: {len(keys)}")

    def stats(self) -> BlockStats:
        return BlockStats(len(self.blocks), self.nbytes, self.budget, 0, 0)

    def close(self) -> None:
        self._enter("close")
        self.closed += 1

    @property
    def nbytes(self) -> int:
        return sum(len(data) for _, _, data in self.blocks.values())


def open_memory(path: str, budget: int = 1 << 40) -> MemoryBlocks:
    """The factory: "tests.block_stores:open_memory"; the path is a name."""
    store = SHELVES.setdefault(path, MemoryBlocks())
    store.budget = budget
    return store


def open_broken(path: str, budget: int = 0) -> MemoryBlocks:
    """A factory that fails."""
    raise OSError(5, "Input/output error", path, None, budget and None)


def memory_options(name: str) -> BlockOptions:
    """Load options of a store in memory."""
    return BlockOptions("tests.block_stores:open_memory", name)
