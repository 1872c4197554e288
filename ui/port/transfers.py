"""Files and comparisons: sessions out and in, two branches side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

OnTransfer = Callable[[int, int], None]  # done and in all; on the window's thread


class ExportFormat(Struct, frozen=True):
    """A kind of file that a session is exported as."""

    name: str  # by which it is asked for, on the command line too
    ending: str  # of its files, without a dot in front
    menu: str  # its entry in the File menu, and
    files: str  # its line in the file dialogue; both to be translated in the context "Exports"
    keys: str = ""  # of the entry
    comes_back: bool = False  # whether such a file can be imported again


class ImportResult(Struct, frozen=True):
    """What an import brought: the sessions' numbers, and what could not be taken, in plain words."""

    sessions: tuple[int, ...]
    notes: tuple[str, ...] = ()
    carries_kv: bool = False  # it has KV too, which is taken by `take_kv` alone


class DiffSide(Struct, frozen=True):
    """Tokens of one branch that stand together."""

    text: str
    tokens: int
    logprob: float | None  # nats, of those that are scored together; None where none is


class DiffPart(Struct, frozen=True):
    """A stretch of two branches: equal on both sides (`same`), or what stands here and there instead."""

    same: bool
    left: DiffSide
    right: DiffSide


class BranchDiff(Struct, frozen=True):
    """Two branches compared token by token."""

    left_name: str  # what the first is called
    right_name: str  # and the second
    stem: DiffSide  # the beginning that both have; `logprob` belongs to it
    parts: tuple[DiffPart, ...]  # what follows, in order
    left: DiffSide  # all of the first branch after the stem
    right: DiffSide  # all of the second

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        return all(part.same for part in self.parts)


class TransferCommands(Protocol):
    """Files. Every coroutine may raise `Refusal`; cancelled, it leaves nothing behind."""

    @property
    def formats(self) -> Sequence[ExportFormat]:
        """What a session can be exported as, in the order of the menu."""

    async def export(self, session_id: int, form: str, path: Path, progress: OnTransfer) -> str:
        """Writes a session in the format of that name; a file is replaced when the export is whole. The window may go on.

        Returns:
            What the file does not have, in words; "" where nothing is missing.
        """

    async def import_file(self, path: Path, progress: OnTransfer) -> ImportResult:
        """Takes in a file of ours or a list of messages: all of it, or nothing."""

    async def take_kv(self, session_ids: Sequence[int], path: Path, progress: OnTransfer) -> int:
        """Takes the KV of sessions that were just imported from a file; how many blocks. Stopped, what was taken stays.

        What another program computed cannot be checked: only where a person says so.
        """
