"""`KvCache`: the capability of an engine that has a KV cache of its own: looking into it, filling, moving and saving it."""

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

    **Pins** keep the KV of a path that is coming back, and what follows it: other text does not push them out. They are no
    claim to memory that running requests need: where nothing else can give way, pins lapse, as they do when the cache is
    cleared. All pins together hold at most half of the KV budget; those that were moved least recently lapse first. A lapsed
    pin is in force again when it is moved. `CacheReport` counts their leases, and them as `pins`.

    **Blocks**: with `LoadOptions.blocks`, a path that goes on in the block file beyond what is in memory is restored before
    its prompt is computed, by whatever asks: query, score, generation, session. Each block is verified; one of another model,
    adapter or format is never found, a damaged one and what follows it are computed again. Restored tokens count as reused,
    and in `Metrics.tokens_restored`. A block file that fails is named in `ModelInfo.warnings`, and the model goes on without.

    Methods ending in `_async` are awaited; their twins of the same name without it block.
    """

    _pin_numbers = itertools.count(1)  # of all models: a number is never given twice

    def __init__(self, transport: Transport, checks: RequestChecks) -> None:
        self._transport, self._checks = transport, checks

    async def prefix_match_async(self, ids: Sequence[int], *, adapters: Adapters = None) -> PrefixMatch:
        """How much of `ids` is held already, in memory or in the block file; computes and restores nothing.

        In memory it refreshes nothing; blocks in the file that it meets count as just used.
        """
        match: PrefixMatch = await self._transport.call(
            "prefix_match", ids=self._checks.ids(ids), adapters=adapter_pairs(adapters)
        )
        return match

    async def cache_kv_async(
        self, ids: Sequence[int], *, adapters: Adapters = None, on_progress: OnProgress | None = None
    ) -> None:
        """Computes and keeps the KV of `ids`, for later calls under these adapters that begin with them.

        `on_progress` as in `LanguageModel.score`, but for a path that is all there, which needs none.
        """
        await self._transport.call(
            "cache_kv", on_progress=on_progress, ids=self._checks.ids(ids), adapters=adapter_pairs(adapters)
        )

    async def clear_cache_async(self) -> None:
        """Drops kept next-token vectors and KV; what running requests hold goes when they end."""
        await self._transport.call("clear_cache", vectors=True)

    async def clear_kv_cache_async(self) -> None:
        """Drops kept KV alone; next-token vectors stay."""
        await self._transport.call("clear_cache", vectors=False)

    async def keep_vectors_async(self, count: int) -> None:
        """At most so many next-token vectors are remembered from now on (genlm's `cache_size`)."""
        check_value("count", count, whole(0))
        await self._transport.call("keep_vectors", count=count)

    async def set_kv_budget_async(self, budget_bytes: int) -> None:
        """Changes how many bytes of KV are kept; evicts at once if there is more.

        Raises:
            MemoryBudgetError: Running requests hold more than that.
        """
        check_value("budget_bytes", budget_bytes, whole(1))
        await self._transport.call("set_kv_budget", budget_bytes=budget_bytes)

    # ---- pins ------------------------------------------------------------------------------------------------

    def pin(self, ids: Sequence[int], pin: int | None = None, *, adapters: Adapters = None) -> int:
        """Keeps what is held of `ids` from now on; never blocks, and is in force before what is asked next.

        Args:
            ids: A path from its first token on.
            pin: A pin that moves here from where it was; None makes a new one.
            adapters: Under which it was computed; None: the stack in force.

        Returns:
            The pin's number, for `unpin`.

        Raises:
            InvalidRequestError: Ids out of range or of the wrong type.
            AdapterError: An adapter that is not loaded (in this process; over the pipe nothing is pinned then).
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
        """Lets a path go; never blocks. A number that is not known (any more) is nothing to worry about."""
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
        """Writes what is in memory of a path's KV into the block file, as far as it is not there yet.

        Other requests go on meanwhile. Cancelled, it ends after what is being written.

        Args:
            ids: The path.
            adapters: What it is under.
            replaces: Where it ended when it was saved before, in tokens: that end's short block is removed, unless it is
                pinned. None: all stays, since another conversation may end there.

        Raises:
            InvalidRequestError: `replaces` is no place on the path.
            BlockFileError: The block file could not be opened: another process has it, or it is newer, or no file.
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
        """Copies those of these blocks (`block_keys`) that the block file holds into another file; how many.

        The block thread does it, a few at a time, so that a conversation that is reopened need not wait for the whole.
        Cancelled, it ends after what is being copied.

        Args:
            keys: Their names, parents before children.
            path: A block file, made when missing, or any SQLite file, which gets the tables it lacks; nothing has it open.

        Raises:
            UnsupportedFeatureError: The model was loaded without `blocks`, or without a cache.
            OSError: One of the files fails (`BlockFileError`: ours could not be opened); what was copied before stays.
        """
        copied: int = await self._transport.call("copy_blocks", keys=block_names(keys), path=_absolute(path))
        return copied

    async def take_blocks_async(self, keys: Sequence[bytes], path: str | Path) -> int:
        """Copies those of these blocks that another file holds into the block file, within its budget.

        Each is checked against damage; what another program computed cannot be checked: take blocks from trusted files only.

        Args:
            keys: Their names, parents before children.
            path: A file that `copy_blocks` wrote; it is only read.

        Returns:
            How many of them the block file holds then.

        Raises:
            UnsupportedFeatureError: The model was loaded without `blocks`, or without a cache.
            OSError: One of the files fails (`BlockFileError`: ours could not be opened), or the other has no blocks; what was
                copied before stays.
        """
        taken: int = await self._transport.call("take_blocks", keys=block_names(keys), path=_absolute(path))
        return taken

    async def pin_blocks_async(self, name: str, keys: Sequence[bytes]) -> None:
        """These blocks (`block_keys`) stay in the block file while the pin `name` stands, also over restarts.

        Args:
            name: Of the pin; whatever it held before is let go.
            keys: Their names; those that are not held yet stay when they are. Without any the pin is removed.

        Raises:
            UnsupportedFeatureError: The model was loaded without `blocks`, or without a cache.
            OSError: The block file cannot be written (`BlockFileError`: it could not be opened).
        """
        await self._transport.call("pin_blocks", name=name, keys=block_names(keys))

    # ---- snapshots -------------------------------------------------------------------------------------------

    async def kv_snapshot_async(self, ids: Sequence[int], path: str | Path, *, adapters: Adapters = None) -> int:
        """Writes the KV of `ids` into one safetensors file, with ids and fingerprint in its header; its bytes.

        What is not in memory is computed first. The file is complete under its name, or as it was before.

        Raises:
            MemoryBudgetError: The path does not fit into the KV budget.
            OSError: It cannot be written.
        """
        written: int = await self._transport.call(
            "kv_snapshot", path=_absolute(path), ids=self._checks.ids(ids), adapters=adapter_pairs(adapters)
        )
        return written

    async def kv_restore_async(self, path: str | Path, upto: int | None = None) -> int:
        """Brings the KV of a snapshot into memory.

        Args:
            path: What `kv_snapshot` wrote.
            upto: Leading tokens that are wanted; None: all. A model with recurrent layers can go on from the end alone.

        Returns:
            Tokens that are in memory now from the path's start; fewer than asked for where the budget ends.

        Raises:
            SnapshotFormatError: Not a snapshot, damaged, newer, or one that does not begin at its path's first token.
            SnapshotMismatchError: Of another model; the message says which part differs. Nothing was restored.
            OSError: It cannot be read.
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
        InvalidRequestError: Something else.
    """
    if not is_whole(pin, 0):
        raise InvalidRequestError(f"a pin is the number that pin gave, not {shown(pin)}")
    return cast("int", pin)


def _absolute(path: str | Path) -> str:
    """A relative path counts from the caller's folder, not the engine process's."""
    return str(check_path(path).absolute())
