"""Sessions on disk: one SQLite file, one thread, one writer.

`SessionStore` holds sessions, the tree of runs, and their tokens as columns; `DataFolderLock` says who may write.
`open_blocks` opens a second file for KV, which is only a cache, from another process.
The SQL views for other tools are described in `storage.views`, errors in `storage.errors`. The store and its library are
loaded when they are first asked for.
"""

from __future__ import annotations

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
    from storage.blocks.file import BlockFile, BlockFileStats, open_blocks
    from storage.keep import vocabulary_digest
    from storage.lock import DataFolderLock, request_focus
    from storage.places import Places
    from storage.rows import (
        DamageRow,
        FolderRow,
        Imported,
        NewChunk,
        NewNode,
        NodeRow,
        Salvage,
        SessionCopy,
        SessionRow,
        SessionTree,
        StoredChunk,
    )
    from storage.salvaging import salvage
    from storage.shape import NodeColumns, SessionShape
    from storage.store import SessionStore
    from storage.transfer.exporting import export_json
    from storage.transfer.portable import export_portable
    from storage.transfer.portable_reading import PortableFile
    from storage.transfer.telling import export_markdown, export_tokens

__all__ = [
    "BlockFile",
    "BlockFileStats",
    "DamageRow",
    "DataFolderLock",
    "FolderRow",
    "Imported",
    "InvalidFileError",
    "InvalidRowError",
    "NewChunk",
    "NewNode",
    "NodeColumns",
    "NodeRow",
    "Places",
    "PortableFile",
    "Salvage",
    "SessionCopy",
    "SessionRow",
    "SessionShape",
    "SessionStore",
    "SessionTree",
    "StoreBusyError",
    "StoreClosedError",
    "StoreDamagedError",
    "StoreDiskError",
    "StoreError",
    "StoreForkedError",
    "StoreFullError",
    "StoreMissingError",
    "StoreNewerError",
    "StoreReadOnlyError",
    "StoredChunk",
    "UnknownRowError",
    "export_json",
    "export_markdown",
    "export_portable",
    "export_tokens",
    "open_blocks",
    "request_focus",
    "salvage",
    "vocabulary_digest",
]

_NAMES = {
    "storage.blocks.file": ("BlockFile", "BlockFileStats", "open_blocks"),
    "storage.keep": ("vocabulary_digest",),
    "storage.lock": ("DataFolderLock", "request_focus"),
    "storage.places": ("Places",),
    "storage.rows": (
        "DamageRow",
        "FolderRow",
        "Imported",
        "NewChunk",
        "NewNode",
        "NodeRow",
        "Salvage",
        "SessionCopy",
        "SessionRow",
        "SessionTree",
        "StoredChunk",
    ),
    "storage.salvaging": ("salvage",),
    "storage.shape": ("NodeColumns", "SessionShape"),
    "storage.store": ("SessionStore",),
    "storage.transfer.exporting": ("export_json",),
    "storage.transfer.portable": ("export_portable",),
    "storage.transfer.portable_reading": ("PortableFile",),
    "storage.transfer.telling": ("export_markdown", "export_tokens"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


if not TYPE_CHECKING:  # or a name that is not there would pass the type checker

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'storage' has no attribute {name!r}")
        found = getattr(import_module(_HOMES[name]), name)
        globals()[name] = found  # from now on it is found without asking
        return found


def __dir__() -> list[str]:
    return sorted(__all__)
