"""Sessions on disk: one SQLite file, one thread, one writer.

`SessionStore` holds sessions, their trees of runs, and tokens as columns; `DataFolderLock` admits one writing process.
`open_blocks` opens a second file, a cache of KV, in the engine process. `storage.tables.views` describes the SQL views for
other tools, `storage.errors` the errors. The store and its library are loaded on first use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from storage.errors import (
    InvalidFileError,
    InvalidRowError,
    StoreBusyError,
    StoreClosedError,
    StoreDamagedError,
    StoreDiskError,
    StoreError,
    StoreForkedError,
    StoreFullError,
    StoreMissingError,
    StoreNewerError,
    StoreReadOnlyError,
    UnknownRowError,
)

if TYPE_CHECKING:
    from storage.blocks.file import BlockFile, open_blocks
    from storage.lock import DataFolderLock, read_focus, request_focus
    from storage.repair.row_repair import salvage
    from storage.rows import DamageRow, Imported, NewChunk, NewNode, NodeRow, Salvage, SessionRow, SessionTree, StoredChunk
    from storage.store import SessionStore
    from storage.tables.key_value import vocabulary_digest
    from storage.tables.node_columns import NodeColumns, SessionShape
    from storage.transfer.json_format import export_json
    from storage.transfer.portable import PortableFile, export_portable
    from storage.transfer.text_export import export_text

_NAMES = {
    "storage.blocks.file": ("BlockFile", "open_blocks"),
    "storage.tables.key_value": ("vocabulary_digest",),
    "storage.lock": ("DataFolderLock", "read_focus", "request_focus"),
    "storage.rows": (
        "DamageRow",
        "Imported",
        "NewChunk",
        "NewNode",
        "NodeRow",
        "Salvage",
        "SessionRow",
        "SessionTree",
        "StoredChunk",
    ),
    "storage.repair.row_repair": ("salvage",),
    "storage.tables.node_columns": ("NodeColumns", "SessionShape"),
    "storage.store": ("SessionStore",),
    "storage.transfer.json_format": ("export_json",),
    "storage.transfer.portable": ("PortableFile", "export_portable"),
    "storage.transfer.text_export": ("export_text",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = [*(name for name in globals() if name.endswith("Error")), *_HOMES]


if not TYPE_CHECKING:  # hidden from the type checker, which would otherwise accept any name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'storage' has no attribute {name!r}")
        _import_library()
        found = getattr(import_module(_HOMES[name]), name)
        globals()[name] = found  # later accesses do not call this function
        return found


def _import_library() -> None:
    """Imports sqlite-utils without pandas, which it loads if installed, and which would delay the window by half a second."""
    if "sqlite_utils" in sys.modules or "pandas" in sys.modules:
        return
    sys.modules["pandas"] = None  # type: ignore[assignment]  # makes its import fail
    try:
        import_module("sqlite_utils")
    finally:
        del sys.modules["pandas"]


def __dir__() -> list[str]:
    return sorted(__all__)
