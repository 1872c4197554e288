"""Kept KV of the model that computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runtime import BlocksSaved, InvalidRequestError
from runtime.adapters.uses import Adapters


class FakeBlocks:
    """Writes nothing, and says how much that would have been."""

    def save_blocks(self, ids: Sequence[int], *, adapters: Adapters = None, replaces: int | None = None) -> BlocksSaved:
        return BlocksSaved(len(ids), 1 + (replaces or 0), len(ids), len(adapters or ()), 0.5, 0.25)

    async def save_blocks_async(
        self, ids: Sequence[int], *, adapters: Adapters = None, replaces: int | None = None
    ) -> BlocksSaved:
        return self.save_blocks(ids, adapters=adapters, replaces=replaces)

    def copy_blocks(self, keys: Sequence[bytes], path: str | Path) -> int:
        return len(keys) + len(Path(path).name)

    async def copy_blocks_async(self, keys: Sequence[bytes], path: str | Path) -> int:
        return self.copy_blocks(keys, path)

    def take_blocks(self, keys: Sequence[bytes], path: str | Path) -> int:
        return 2 * len(keys) + len(Path(path).name)

    async def take_blocks_async(self, keys: Sequence[bytes], path: str | Path) -> int:
        return self.take_blocks(keys, path)

    def pin_blocks(self, name: str, keys: Sequence[bytes]) -> None:
        if name == "refused":
            raise InvalidRequestError(f"{len(keys)} keys")

    async def pin_blocks_async(self, name: str, keys: Sequence[bytes]) -> None:
        self.pin_blocks(name, keys)

    def kv_snapshot(self, ids: Sequence[int], path: str | Path, *, adapters: Adapters = None) -> int:
        return len(ids) + len(Path(path).name) + len(adapters or ())

    async def kv_snapshot_async(self, ids: Sequence[int], path: str | Path, *, adapters: Adapters = None) -> int:
        return self.kv_snapshot(ids, path, adapters=adapters)

    def kv_restore(self, path: str | Path, upto: int | None = None) -> int:
        return upto or len(Path(path).name)

    async def kv_restore_async(self, path: str | Path, upto: int | None = None) -> int:
        return self.kv_restore(path, upto)
