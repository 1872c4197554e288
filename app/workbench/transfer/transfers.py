"""Exports and imports sessions; what a file lacks is reported in words."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from app.supervisor import Supervisor
from app.workbench.refusals import stored
from app.workbench.transfer.exports import EXPORTS, FORMATS, refuse_own, write_export
from app.workbench.windows import Windows
from runtime import RuntimeFault
from storage import PortableFile, SessionStore, StoreError
from ui import QT_TRANSLATE_NOOP, ExportFormat, ImportResult, OnTransfer, Refusal, SessionsChanged, in_window, translate

NO_SNAPSHOT = QT_TRANSLATE_NOOP(
    "Workbench",
    "no program can continue from its exact tokens: not all of the path that is shown was written by one model, or some of it "
    "is damaged or was never read by one. Its text, tokens and numbers are in the file",
)


@dataclass(eq=False, repr=False)
class Transfers:
    """Exports and imports sessions (`ui.port.TransferCommands`)."""

    _store: SessionStore
    _supervisor: Supervisor  # its engine has the block file open
    _windows: Windows  # show imports

    @property
    def formats(self) -> Sequence[ExportFormat]:
        return [exporter.format for exporter in EXPORTS]

    async def export(self, session_id: int, form: str, path: Path, progress: OnTransfer) -> str:
        """Writes a file on a thread of its own; returns what the file lacks, in words."""
        exporter, blocks = FORMATS[form], self._supervisor.options.get("blocks")
        try:
            refuse_own(path, [self._store.path, *([Path(blocks["path"])] if blocks else [])])
            if exporter.with_kv:
                from app.portable_kv import export_with_kv  # the window opens without it

                await export_with_kv(self._store, self._supervisor, session_id, path, progress)
            else:
                await write_export(self._store, session_id, exporter, path, progress)
            return await asyncio.to_thread(left_out, path) if exporter.snapshot else ""
        except (StoreError, RuntimeFault, OSError) as fault:
            raise Refusal(str(fault)) from fault

    async def import_file(self, path: Path, progress: OnTransfer) -> ImportResult:
        imported = await stored(self._store.import_file(path, progress))
        self._windows.tell(SessionsChanged())
        from app.portable_kv import carries_blocks  # the window opens without it
        from app.workbench.transfer.import_check import foreign_models

        taken = [await stored(foreign_models(self._store, session_id)) for session_id in imported.sessions]
        notes = dict.fromkeys(map(in_window, [*imported.notes, *(note for notes in taken for note in notes)]))
        return ImportResult(imported.sessions, tuple(notes), await asyncio.to_thread(carries_blocks, path))

    async def take_kv(self, session_ids: Sequence[int], path: Path, progress: OnTransfer) -> int:
        """Copies the KV of a file into the block file, while the engine runs."""
        from app.portable_kv import take_kv  # the window opens without it

        try:
            return await take_kv(self._store, self._supervisor, session_ids, path, progress)
        except (StoreError, RuntimeFault, OSError) as fault:
            raise Refusal(str(fault)) from fault


def left_out(file: Path) -> str:
    """What a just written portable file lacks, in words; blocking."""
    with closing(PortableFile(file)) as written:
        return translate("Workbench", NO_SNAPSHOT) if written.snapshot() is None else ""
