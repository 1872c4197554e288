"""The kinds of file that a session is exported as: a row of `EXPORTS` each, for the window's menu and the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import storage
from ui import QT_TRANSLATE_NOOP, ExportFormat


@dataclass(frozen=True, slots=True)
class Exporter:
    """A format and what writes it.

    Attributes:
        format: What people see of it.
        write: Takes the sessions file, the session's number, the file to write and a listener for progress; with `snapshot` the
            snapshot of the engine as well. Blocking, any thread.
        snapshot: Whether the file says how to resume the session.
        with_kv: Whether KV blocks are put into the file when it is written.
    """

    format: ExportFormat
    write: Callable[..., None]  # looked up in `storage` when it is called: the window opens without it
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
