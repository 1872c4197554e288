"""Arguments of what is called about KV that outlives the process."""

from __future__ import annotations

import msgspec


class SaveBlocks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `save_blocks_async`."""

    ids: list[int]
    adapters: list[tuple[str, float]] | None = None  # (name, scale)
    replaces: int | None = None


class CopyBlocks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `copy_blocks_async` and `take_blocks_async`."""

    keys: list[bytes]
    path: str


class PinBlocks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `pin_blocks_async`."""

    name: str
    keys: list[bytes]


class KvSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `kv_snapshot_async`."""

    ids: list[int]
    path: str
    adapters: list[tuple[str, float]] | None = None  # (name, scale)


class KvRestore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `kv_restore_async`."""

    path: str
    upto: int | None
