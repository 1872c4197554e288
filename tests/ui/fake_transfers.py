"""The part of the fake workbench that is about files and comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from app.workbench.transfer.exports import EXPORTS
from tests.ui.fake_base import FakeBase
from ui import BranchDiff, DiffPart, DiffSide, ExportFormat, ImportResult, OnTransfer

IMPORTED = 2  # the session that every file brings


class FakeTransfers(FakeBase):
    """Notes what is asked for, in three steps each; there are no files here."""

    def __init__(self) -> None:
        super().__init__()
        same, more = DiffSide(" in the rain", 3, -1.5), DiffSide(" of 上海 🌧 עברית", 6, None)
        parts = (
            DiffPart(False, DiffSide(" Lisbon", 1, -3.25), DiffSide(" Paris", 1, -0.8)),
            DiffPart(True, same, same),
            DiffPart(False, DiffSide("", 0, None), more),
        )
        stem = DiffSide("Where should we go?\nWe could visit", 12, -20.0)
        self.diff = BranchDiff(
            "Lisbon <b>when</b> it rains", "Paris", stem, parts, DiffSide("", 4, -4.75), DiffSide("", 10, -2.3)
        )

    @property
    def export_formats(self) -> Sequence[ExportFormat]:
        return [exporter.format for exporter in EXPORTS]

    async def export_session(self, session_id: int, form: str, path: Path, progress: OnTransfer) -> str:
        self._note("export_session", session_id, form, path)
        await self._transferred(progress)
        return "it has no snapshot" if form == "portable" else ""

    async def import_file(self, path: Path, progress: OnTransfer) -> ImportResult:
        self._note("import_file", path)
        await self._transferred(progress)
        return ImportResult((IMPORTED,), ("2 things were left out",), path.name.endswith(".kv.elsewise"))

    async def _transferred(self, progress: OnTransfer) -> None:
        for done in range(3):
            await self._pass()
            progress(done + 1, 3)

    async def take_kv(self, session_ids: Sequence[int], path: Path, progress: OnTransfer) -> int:
        self._note("take_kv", session_ids, path)
        await self._transferred(progress)
        return 1234

    async def compare(self, session_id: int, left: int, right: int) -> BranchDiff:
        self._note("compare", session_id, left, right)
        return self.diff
