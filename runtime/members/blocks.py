"""The members of `LanguageModel` that keep KV beyond the process: in the block file, and in files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runtime.adapters.uses import Adapters


@dataclass(frozen=True, slots=True)
class BlocksSaved:
    """What `save_blocks` did.

    Attributes:
        blocks: Of the path, as far as its KV is in memory.
        written: Of them, those that were not in the block file yet.
        tokens: Leading tokens of the path that the block file holds now.
        bytes: Written.
        seconds: It took, while others went on.
        engine_seconds: Of them, those in which the owner thread did nothing else.
        no_room: Whether some of it was not kept: the block file's budget is full of what is pinned, or smaller than the path.
    """

    blocks: int
    written: int
    tokens: int
    bytes: int
    seconds: float
    engine_seconds: float
    no_room: bool = False


class BlockMembers(Protocol):
    """KV that outlives the process.

    With `LoadOptions.blocks`, a path that goes on in the block file beyond what is in memory is restored before its prompt
    is computed, whoever asks: query, score, generation, session. Each block is verified; one of another model, adapter or
    format is never found, a damaged one and what follows it are computed again. It counts as reused, and in
    `Metrics.tokens_restored`. A block file that fails is named in `ModelInfo.warnings`, and the model goes on without.
    """

    def save_blocks(self, ids: Sequence[int], *, adapters: Adapters = None, replaces: int | None = None) -> BlocksSaved:
        """Writes what is in memory of a path's KV into the block file, as far as it is not there yet. Blocking.

        Others go on meanwhile.

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

    async def save_blocks_async(
        self, ids: Sequence[int], *, adapters: Adapters = None, replaces: int | None = None
    ) -> BlocksSaved:
        """`save_blocks`, awaited; cancelled, it ends after what is being written."""

    def copy_blocks(self, keys: Sequence[bytes], path: str | Path) -> int:
        """Copies those of these blocks (`block_keys`) that the block file holds into another file. Blocking.

        The block thread does it, a few at a time, so that nobody who reopens a conversation waits for the whole.

        Args:
            keys: Their names, parents before children.
            path: A block file, made when missing, or any SQLite file, which gets the tables it lacks; nobody has it open.

        Returns:
            How many.

        Raises:
            UnsupportedFeatureError: The model was loaded without `blocks`, or without a cache.
            OSError: One of the files fails (`BlockFileError`: ours could not be opened); what was copied before stays.
        """

    async def copy_blocks_async(self, keys: Sequence[bytes], path: str | Path) -> int:
        """`copy_blocks`, awaited; cancelled, it ends after what is being copied."""

    def take_blocks(self, keys: Sequence[bytes], path: str | Path) -> int:
        """Copies those of these blocks that another file holds into the block file, within its budget. Blocking.

        Each is checked against damage; nobody can check what somebody else computed: only from people one trusts.

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

    async def take_blocks_async(self, keys: Sequence[bytes], path: str | Path) -> int:
        """`take_blocks`, awaited; cancelled, it ends after what is being copied."""

    def pin_blocks(self, name: str, keys: Sequence[bytes]) -> None:
        """These blocks (`block_keys`) stay in the block file while the pin `name` stands, also over restarts. Blocking.

        Args:
            name: Of the pin; whatever it held before is let go.
            keys: Their names; those that are not held yet stay when they are. Without any the pin is removed.

        Raises:
            UnsupportedFeatureError: The model was loaded without `blocks`, or without a cache.
            OSError: The block file cannot be written (`BlockFileError`: it could not be opened).
        """

    async def pin_blocks_async(self, name: str, keys: Sequence[bytes]) -> None:
        """`pin_blocks`, awaited."""

    def kv_snapshot(self, ids: Sequence[int], path: str | Path, *, adapters: Adapters = None) -> int:
        """Writes the KV of `ids` into one safetensors file, with ids and fingerprint in its header. Blocking.

        What is not in memory is computed first. The file is complete under its name, or as it was before.

        Returns:
            Its bytes.

        Raises:
            MemoryBudgetError: The path does not fit into the KV budget.
            OSError: It cannot be written.
        """

    async def kv_snapshot_async(self, ids: Sequence[int], path: str | Path, *, adapters: Adapters = None) -> int:
        """`kv_snapshot`, awaited."""

    def kv_restore(self, path: str | Path, upto: int | None = None) -> int:
        """Brings the KV of a snapshot into memory. Blocking.

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

    async def kv_restore_async(self, path: str | Path, upto: int | None = None) -> int:
        """`kv_restore`, awaited."""
