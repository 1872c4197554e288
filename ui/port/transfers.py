"""Exports and imports of sessions, and comparisons of branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

OnTransfer = Callable[[int, int], None]  # gets the amounts done and in all, on the window's thread


class ExportFormat(Struct, frozen=True):
    """A file format for the export of sessions."""

    name: str  # as on the command line
    ending: str  # of its files, without a dot
    menu: str  # its entry in the File menu, to be translated in the context "Exports"
    files: str  # its line in the file dialogue, likewise
    keys: str = ""  # the entry's shortcut
    comes_back: bool = False  # its files can be imported again


class ImportResult(Struct, frozen=True):
    """The result of an import: the sessions' ids, and what could not be imported, in words."""

    sessions: tuple[int, ...]
    notes: tuple[str, ...] = ()
    carries_kv: bool = False  # the file has KV too, which only `take_kv` imports


class DiffSide(Struct, frozen=True):
    """A run of tokens of one branch."""

    text: str
    tokens: int
    logprob: float | None  # nats, joint, of the scored tokens; None if there are none


class DiffPart(Struct, frozen=True):
    """A part of two branches: equal on both sides (`same`), or different."""

    same: bool
    left: DiffSide
    right: DiffSide


class BranchDiff(Struct, frozen=True):
    """Two branches compared token by token."""

    left_name: str
    right_name: str
    stem: DiffSide  # the common beginning
    parts: tuple[DiffPart, ...]  # what follows, in order
    left: DiffSide  # all of the first branch after the stem
    right: DiffSide  # all of the second

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        return all(part.same for part in self.parts)


class TransferCommands(Protocol):
    """Files. Every coroutine may raise `Refusal`; if cancelled, it leaves nothing behind."""

    @property
    def formats(self) -> Sequence[ExportFormat]:
        """The formats for export, in the order of the menu."""

    async def export(self, session_id: int, form: str, path: Path, progress: OnTransfer) -> str:
        """Exports a session in the format `form`, without blocking the window; replaces a file once the export is complete.

        Returns:
            What the file lacks, in words; "" if nothing is missing.
        """

    async def import_file(self, path: Path, progress: OnTransfer) -> ImportResult:
        """Imports a file of ours or a list of messages, completely or not at all."""

    async def take_kv(self, session_ids: Sequence[int], path: Path, progress: OnTransfer) -> int:
        """Imports the KV of sessions just imported from a file; returns the number of blocks. If cancelled, imported KV stays.

        KV cannot be verified, so this is only called with the user's consent.
        """
