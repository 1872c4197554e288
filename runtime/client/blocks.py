"""KV that outlives the process, over the pipe: the engine process reads and writes, counts alone come here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from runtime.adapters.uses import Adapters
from runtime.client.arguments import plain_adapters, plain_ids, plain_keys
from runtime.client.calls import Calls
from runtime.members.blocks import BlocksSaved
from runtime.options.checking import check_path


class BlockCalls:
    """KV blocks and snapshots; see `runtime.members.blocks`. Relative paths: from here."""

    _calls: Calls

    def save_blocks(self, ids: Sequence[int], *, adapters: Adapters = None, replaces: int | None = None) -> BlocksSaved:
        given: dict[str, Any] = {"ids": plain_ids(ids), "adapters": plain_adapters(adapters), "replaces": replaces}
        answer = self._calls.call_sync("save_blocks_async", **given)
        return cast("BlocksSaved", answer)

    async def save_blocks_async(
        self, ids: Sequence[int], *, adapters: Adapters = None, replaces: int | None = None
    ) -> BlocksSaved:
        given: dict[str, Any] = {"ids": plain_ids(ids), "adapters": plain_adapters(adapters), "replaces": replaces}
        answer = await self._calls.call("save_blocks_async", **given)
        return cast("BlocksSaved", answer)

    def copy_blocks(self, keys: Sequence[bytes], path: str | Path) -> int:
        return cast("int", self._calls.call_sync("copy_blocks_async", keys=plain_keys(keys), path=_from_here(path)))

    async def copy_blocks_async(self, keys: Sequence[bytes], path: str | Path) -> int:
        return cast("int", await self._calls.call("copy_blocks_async", keys=plain_keys(keys), path=_from_here(path)))

    def take_blocks(self, keys: Sequence[bytes], path: str | Path) -> int:
        return cast("int", self._calls.call_sync("take_blocks_async", keys=plain_keys(keys), path=_from_here(path)))

    async def take_blocks_async(self, keys: Sequence[bytes], path: str | Path) -> int:
        return cast("int", await self._calls.call("take_blocks_async", keys=plain_keys(keys), path=_from_here(path)))

    def pin_blocks(self, name: str, keys: Sequence[bytes]) -> None:
        self._calls.call_sync("pin_blocks_async", name=name, keys=plain_keys(keys))

    async def pin_blocks_async(self, name: str, keys: Sequence[bytes]) -> None:
        await self._calls.call("pin_blocks_async", name=name, keys=plain_keys(keys))

    def kv_snapshot(self, ids: Sequence[int], path: str | Path, *, adapters: Adapters = None) -> int:
        return cast("int", self._calls.call_sync("kv_snapshot_async", **_snapshot(ids, path, adapters)))

    async def kv_snapshot_async(self, ids: Sequence[int], path: str | Path, *, adapters: Adapters = None) -> int:
        return cast("int", await self._calls.call("kv_snapshot_async", **_snapshot(ids, path, adapters)))

    def kv_restore(self, path: str | Path, upto: int | None = None) -> int:
        return cast("int", self._calls.call_sync("kv_restore_async", path=_from_here(path), upto=upto))

    async def kv_restore_async(self, path: str | Path, upto: int | None = None) -> int:
        return cast("int", await self._calls.call("kv_restore_async", path=_from_here(path), upto=upto))


def _snapshot(ids: Sequence[int], path: str | Path, adapters: Adapters) -> dict[str, Any]:
    return {"ids": plain_ids(ids), "path": _from_here(path), "adapters": plain_adapters(adapters)}


def _from_here(path: str | Path) -> str:
    return str(check_path(path).absolute())
