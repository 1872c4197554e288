"""The export formats of sessions, for the window's menu and the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct

import storage
from app.workbench.background import stoppable
from storage import SessionStore
from ui import QT_TRANSLATE_NOOP, ExportFormat, OnTransfer, Refusal, translate


class Exporter(Struct, frozen=True):
    """An export format and the function that writes it.

    Attributes:
        format: The names and texts of the format in the window.
        write: Takes the sessions file, the session's id, the file to write and a progress listener; with `snapshot` also the
            snapshot. Blocking, any thread.
        snapshot: Whether the file has a snapshot to resume the session from.
        with_kv: Whether the file has KV blocks.
    """

    format: ExportFormat
    write: Callable[..., None]  # imports from `storage` lazily: the window opens without it
    snapshot: bool = False
    with_kv: bool = False


EXPORTS = (
    Exporter(
        ExportFormat(
            "json", "json", QT_TRANSLATE_NOOP("Exports", "Export as JSON…"), QT_TRANSLATE_NOOP("Exports", "JSON (*.json)"),
            keys="Ctrl+Shift+E", comes_back=True,
        ),
        lambda *given: storage.export_json(*given),
    ),
    Exporter(
        ExportFormat(
            "markdown", "md", QT_TRANSLATE_NOOP("Exports", "Export Branch as Markdown…"),
            QT_TRANSLATE_NOOP("Exports", "Markdown (*.md)"),
        ),
        lambda *given: storage.export_text("markdown", *given),
    ),
    Exporter(
        ExportFormat(
            "csv", "csv", QT_TRANSLATE_NOOP("Exports", "Export Tokens as CSV…"),
            QT_TRANSLATE_NOOP("Exports", "Comma-separated values (*.csv)"),
        ),
        lambda *given: storage.export_text("csv", *given),
    ),
    Exporter(
        ExportFormat(
            "tokens", "jsonl", QT_TRANSLATE_NOOP("Exports", "Export Tokens as JSON Lines…"),
            QT_TRANSLATE_NOOP("Exports", "JSON lines (*.jsonl)"),
        ),
        lambda *given: storage.export_text("tokens", *given),
    ),
    Exporter(
        ExportFormat(
            "portable", "elsewise", QT_TRANSLATE_NOOP("Exports", "Export Session File…"),
            QT_TRANSLATE_NOOP("Exports", "Elsewise session file (*.elsewise)"), comes_back=True,
        ),
        lambda *given: storage.export_portable(*given),
        snapshot=True,
    ),
    Exporter(
        ExportFormat(
            "portable-kv", "kv.elsewise", QT_TRANSLATE_NOOP("Exports", "Export Session File with KV…"),
            QT_TRANSLATE_NOOP("Exports", "Elsewise session file with KV (*.kv.elsewise)"), comes_back=True,
        ),
        lambda *given: storage.export_portable(*given),
        snapshot=True,
        with_kv=True,
    ),
)  # fmt: skip
FORMATS = {exporter.format.name: exporter for exporter in EXPORTS}


def refuse_own(path: Path, own: Iterable[Path]) -> None:
    """Refuses to replace a database of the data folder by an export.

    Args:
        path: The file to be written.
        own: The databases, which may have -wal and -shm files.

    Raises:
        Refusal: `path` is one of them.
    """
    files = [each.with_name(each.name + ending) for each in map(Path.resolve, own) for ending in ("", "-wal", "-shm")]
    if path.exists() and any(each.exists() and path.samefile(each) for each in files):
        words = translate("Workbench", "{0} is the file that sessions or their KV are stored in; choose another name")
        raise Refusal(words.format(path))


async def write_export(store: SessionStore, session_id: int, exporter: Exporter, path: Path, progress: OnTransfer) -> None:
    """Writes a session to a file, on a thread; if cancelled, waits until the thread has removed its partial file.

    Raises:
        StoreError: The session cannot be read, or the file cannot be written.
    """
    given: tuple[object, ...] = ()
    if exporter.snapshot:
        from app.workbench.transfer.snapshots import snapshot_of  # the window opens without it

        given = (await snapshot_of(store, session_id),)

    def write(report: Callable[[tuple[int, int]], None]) -> None:
        exporter.write(store.path, session_id, path, lambda done, total: report((done, total)), *given)

    await stoppable(write, lambda far: progress(*far))
