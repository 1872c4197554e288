"""Sessions on disk: one SQLite file, one thread, one writer.

`SessionStore` holds sessions, the tree of runs, and their tokens as columns; `DataFolderLock` says who may write.
The SQL views for other tools are described in `storage.views`, errors in `storage.errors`.
"""

from storage.errors import (
    InvalidRowError,
    StoreBusyError,
    StoreClosedError,
    StoreDamagedError,
    StoreDiskError,
    StoreError,
    StoreFullError,
    StoreMissingError,
    StoreNewerError,
    StoreReadOnlyError,
    UnknownRowError,
)
from storage.lock import DataFolderLock, request_focus
from storage.rows import (
    DamageRow,
    NewChunk,
    NewNode,
    NodeRow,
    SessionRow,
    SessionTree,
    StoredChunk,
)
from storage.store import SessionStore

__all__ = [
    "DamageRow",
    "DataFolderLock",
    "InvalidRowError",
    "NewChunk",
    "NewNode",
    "NodeRow",
    "SessionRow",
    "SessionStore",
    "SessionTree",
    "StoreBusyError",
    "StoreClosedError",
    "StoreDamagedError",
    "StoreDiskError",
    "StoreError",
    "StoreFullError",
    "StoreMissingError",
    "StoreNewerError",
    "StoreReadOnlyError",
    "StoredChunk",
    "UnknownRowError",
    "request_focus",
]
