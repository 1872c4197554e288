"""`KvCache`: reads, fills, pins and saves the KV cache of a local engine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from runtime.adapters.uses import Adapters
from runtime.aio import blocking
from runtime.api.checks import RequestChecks, adapter_pairs, block_names
from runtime.errors import InvalidRequestError
from runtime.info import BlocksSaved, OnProgress, Pinned, PrefixMatch
from runtime.options.checking import check_path, check_value, is_whole, shown, whole
from runtime.transport.base import Transport


class KvCache:
    """The engine's KV cache.

    **Pins** protect the KV of a path, and of its continuation, from eviction by other text. Running requests take precedence:
    pins lapse where nothing else can be evicted, and when the cache is cleared. All pins together hold at most half of the KV
    budget; the least recently moved pins lapse first. Moving a lapsed pin puts it in force again. `CacheReport` counts the pins
    (`pins`) and their leases.

    **Blocks**: with `LoadOptions.blocks`, every query, score, generation and session restores the part of its path that is in
    the block file and not in memory before it computes the rest. Each block is verified; blocks of another model, adapter or
    format are never found, and a damaged block and those after it are computed again. Restored tokens count as reused, and in
    `Metrics.tokens_restored`. A failing block file is named in `ModelInfo.warnings`, and the model works without it.

    Methods ending in `_async` are awaited; their twins without the suffix block.
    """

    _pin_numbers = itertools.count(1)  # shared by all models, so that no number is given twice

    def __init__(self, transport: Transport, checks: RequestChecks) -> None:
        self._transport, self._checks = transport, checks

    async def prefix_match_async(self, ids: Sequence[int], *, adapters: Adapters = None) -> PrefixMatch:
        """How much of `ids` is in memory or in the block file; computes and restores nothing.

        The lookup counts as a use of the blocks in the file, but not of the KV in memory.
        """
        match: PrefixMatch = await self._transport.call(
            "prefix_match", ids=self._checks.ids(ids), adapters=adapter_pairs(adapters)
        )
        return match

    async def cache_kv_async(
        self, ids: Sequence[int], *, adapters: Adapters = None, on_progress: OnProgress | None = None
    ) -> None:
        """Computes the KV of `ids` into the cache, for later calls under these adapters that begin with them.

        `on_progress` is that of `LanguageModel.score`, and is not called for a path that is already in the cache.
        """
        await self._transport.call(
            "cache_kv", on_progress=on_progress, ids=self._checks.ids(ids), adapters=adapter_pairs(adapters)
        )

    async def clear_cache_async(self) -> None:
        """Drops cached next-token vectors and KV; the KV of running requests is dropped when they end."""
        await self._transport.call("clear_cache", vectors=True)

    async def clear_kv_cache_async(self) -> None:
        """Drops cached KV; next-token vectors stay."""
        await self._transport.call("clear_cache", vectors=False)

    async def keep_vectors_async(self, count: int) -> None:
        """Limits the number of cached next-token vectors (genlm's `cache_size`)."""
        check_value("count", count, whole(0))
        await self._transport.call("keep_vectors", count=count)

    async def set_kv_budget_async(self, budget_bytes: int) -> None:
        """Changes the KV budget, and evicts the excess at once.

        Raises:
            MemoryBudgetError: Running requests hold more than the budget.
        """
        check_value("budget_bytes", budget_bytes, whole(1))
        await self._transport.call("set_kv_budget", budget_bytes=budget_bytes)

    # ---- pins ------------------------------------------------------------------------------------------------

    def pin(self, ids: Sequence[int], pin: int | None = None, *, adapters: Adapters = None) -> int:
        """Pins the KV of `ids`; never blocks, and is in force before the next request.

        Args:
            ids: A path from its first token on.
            pin: The number of a pin to move to this path; None makes a new one.
            adapters: The adapters that the KV is computed under; None: the stack in force.

        Returns:
            The pin's number, for `unpin`.

        Raises:
            InvalidRequestError: Ids out of range or of the wrong type.
            AdapterError: An adapter is not loaded. Raised for a model in this process only; an engine process pins nothing.
        """
        number = self._number(pin)
        self._transport.post("pin", ids=self._checks.ids(ids), pin=number, adapters=adapter_pairs(adapters))
        return number

    async def pin_async(self, ids: Sequence[int], pin: int | None = None, *, adapters: Adapters = None) -> Pinned:
        """`pin`, and waits until it is in force."""
        number = self._number(pin)
        tokens = await self._transport.call("pin", ids=self._checks.ids(ids), pin=number, adapters=adapter_pairs(adapters))
        return Pinned(number, tokens)

    def unpin(self, pin: int) -> None:
        """Removes a pin; never blocks. Does nothing for an unknown number."""
        self._transport.post("unpin", pin=check_pin(pin))

    async def unpin_async(self, pin: int) -> None:
        """`unpin`, and waits until it is done."""
        await self._transport.call("unpin", pin=check_pin(pin))

    def _number(self, pin: int | None) -> int:
        return next(self._pin_numbers) if pin is None else check_pin(pin)

    # ---- the block file --------------------------------------------------------------------------------------

    async def save_blocks_async(
        self, ids: Sequence[int], *, adapters: Adapters = None, replaces: int | None = None
    ) -> BlocksSaved:
        """Writes the KV of a path that is in memory into the block file, except for blocks that the file already has.

        Other requests continue meanwhile. When cancelled, it ends after the current write.

        Args:
            ids: The path.
            adapters: The adapters that the KV was computed under.
            replaces: The number of tokens that the path had when it was last saved: the short block at that end is removed,
                unless it is pinned. None removes nothing, since another conversation may end there.

        Raises:
            InvalidRequestError: `replaces` is not a place on the path.
            BlockFileError: The block file could not be opened: another process has it, it is newer, or not a file.
            UnsupportedFeatureError: The model was loaded without `blocks`, or without a cache.
        """
        path = self._checks.ids(ids)
        if replaces is not None and not (is_whole(replaces, 1) and replaces <= len(path)):
            raise InvalidRequestError(f"replaces counts leading tokens of the path, 1 to {len(path):,}, not {replaces!r}")
        saved: BlocksSaved = await self._transport.call(
            "save_blocks", ids=path, adapters=adapter_pairs(adapters), replaces=replaces
        )
        return saved

    async def copy_blocks_async(self, keys: Sequence[bytes], path: str | Path) -> int:
        """Copies the blocks with these names (`block_keys`) that the block file holds into another file; returns their number.

        The block thread copies a few at a time, so that a reopened conversation need not wait for all of them. When cancelled,
        it ends after the current copy.

        Args:
            keys: Names of blocks, parents before children.
            path: A block file, made if missing, or any SQLite file, which gets missing tables; no process may have it open.

        Raises:
            UnsupportedFeatureError: The model was loaded without `blocks`, or without a cache.
            OSError: One of the files fails (`BlockFileError`: the block file could not be opened); finished copies stay.
        """
        copied: int = await self._transport.call("copy_blocks", keys=block_names(keys), path=_absolute(path))
        return copied

    async def take_blocks_async(self, keys: Sequence[bytes], path: str | Path) -> int:
        """Copies the blocks with these names from another file into the block file, within its budget.

        Each block is checked for damage, but not for wrong numbers of another program: use trusted files only.

        Args:
            keys: Names of blocks, parents before children.
            path: A file that `copy_blocks` wrote; it is only read.

        Returns:
            The number of these blocks in the block file afterwards.

        Raises:
            UnsupportedFeatureError: The model was loaded without `blocks`, or without a cache.
            OSError: One of the files fails (`BlockFileError`: the block file could not be opened), or the other file has no
                blocks; finished copies stay.
        """
        taken: int = await self._transport.call("take_blocks", keys=block_names(keys), path=_absolute(path))
        return taken

    async def pin_blocks_async(self, name: str, keys: Sequence[bytes]) -> None:
        """Pins blocks (`block_keys`) in the block file; the pin survives restarts.

        Args:
            name: The pin's name; these blocks replace the pin's earlier ones.
            keys: Names of blocks; blocks that are saved later are pinned as they are saved. An empty list removes the pin.

        Raises:
            UnsupportedFeatureError: The model was loaded without `blocks`, or without a cache.
            OSError: The block file cannot be written (`BlockFileError`: it could not be opened).
        """
        await self._transport.call("pin_blocks", name=name, keys=block_names(keys))

    # ---- snapshots -------------------------------------------------------------------------------------------

    async def kv_snapshot_async(self, ids: Sequence[int], path: str | Path, *, adapters: Adapters = None) -> int:
        """Writes the KV of `ids` into one safetensors file, with ids and fingerprint in its header; returns the file's size.

        KV that is not in memory is computed first. The file is replaced atomically.

        Raises:
            MemoryBudgetError: The path does not fit into the KV budget.
            OSError: The file cannot be written.
        """
        written: int = await self._transport.call(
            "kv_snapshot", path=_absolute(path), ids=self._checks.ids(ids), adapters=adapter_pairs(adapters)
        )
        return written

    async def kv_restore_async(self, path: str | Path, upto: int | None = None) -> int:
        """Loads the KV of a snapshot into memory.

        Args:
            path: A file that `kv_snapshot` wrote.
            upto: Leading tokens to load; None: all. A model with recurrent layers can continue only from the end.

        Returns:
            Leading tokens of the path that are now in memory; fewer than requested where the budget is full.

        Raises:
            SnapshotFormatError: The file is not a snapshot, is damaged or newer, or does not begin at its path's first token.
            SnapshotMismatchError: It is of another model; the message names the difference. Nothing was restored.
            OSError: The file cannot be read.
        """
        if upto is not None and not is_whole(upto, 1):
            raise InvalidRequestError(f"upto counts tokens, 1 or more, not {upto!r}")
        restored: int = await self._transport.call("kv_restore", path=_absolute(path), upto=upto)
        return restored

    prefix_match = blocking(prefix_match_async)
    cache_kv = blocking(cache_kv_async)
    clear_cache = blocking(clear_cache_async)
    clear_kv_cache = blocking(clear_kv_cache_async)
    keep_vectors = blocking(keep_vectors_async)
    set_kv_budget = blocking(set_kv_budget_async)
    save_blocks = blocking(save_blocks_async)
    copy_blocks = blocking(copy_blocks_async)
    take_blocks = blocking(take_blocks_async)
    pin_blocks = blocking(pin_blocks_async)
    kv_snapshot = blocking(kv_snapshot_async)
    kv_restore = blocking(kv_restore_async)


def check_pin(pin: object) -> int:
    """The number of a pin.

    Raises:
        InvalidRequestError: Not a number that `pin` can return.
    """
    if not is_whole(pin, 1):
        raise InvalidRequestError(f"a pin is the number that pin gave, not {shown(pin)}")
    return cast("int", pin)


def _absolute(path: str | Path) -> str:
    """The absolute path, resolved here because the engine process may have another working directory."""
    return str(check_path(path).absolute())
