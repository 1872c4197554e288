"""The part of the fake workbench that is about files and comparisons."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from ui import BranchDiff, ExportKind, ImportResult, OnTransfer, Refusal


class FakeTransfers(ABC):
    """Notes what is asked for; there are no files here."""

    @abstractmethod
    def _note(self, *call: object) -> None: ...

    async def export_session(self, session_id: int, kind: ExportKind, path: Path, progress: OnTransfer) -> None:
        self._note("export_session", session_id, kind, path)
        progress(1, 1)

    async def import_file(self, path: Path, progress: OnTransfer) -> ImportResult:
        self._note("import_file", path)
        raise Refusal(f"{path.name} cannot be read here")

    async def take_kv(self, session_ids: Sequence[int], path: Path, progress: OnTransfer) -> int:
        self._note("take_kv", session_ids, path)
        raise Refusal(f"{path.name} cannot be read here")

    async def compare(self, session_id: int, left: int, right: int) -> BranchDiff:
        self._note("compare", session_id, left, right)
        raise Refusal("nothing can be compared here")
