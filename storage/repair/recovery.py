"""What a crash left behind: runs that were still open keep their tokens and become partial answers."""

from __future__ import annotations

from typing import Any

import sqlite_utils

from storage.database import fetch
from storage.rows import Columns
from storage.tables import checksums, columns, search, token_chunks
from storage.tables.text import clean

_TEMPLATE = 0  # value of the column `origin` for tokens that are not part of the text


def close_open_runs(db: sqlite_utils.Database) -> int:
    """Marks every open run as partial, with the text of the tokens that were saved; returns how many there were.

    Only for the one writer of the data folder, before it adds anything: an open run is then nobody's.
    """
    rows = fetch(db, "SELECT * FROM nodes WHERE status = 'open'")
    for row in rows:
        _close(db, row)
    return len(rows)


def _close(db: sqlite_utils.Database, row: dict[str, Any]) -> None:
    sql = "SELECT * FROM token_chunks WHERE node_id = ? AND kv_fingerprint = ? ORDER BY id"
    tiles = token_chunks.tiled(row["id"], fetch(db, sql, [row["id"], row["kv_fingerprint"]]), length=None)
    text = row["text"] or clean("".join(text_of(tile.columns) for tile in tiles))
    changes = {
        "status": "partial",
        "finish_reason": "app_ended",
        "text": text,
        "token_count": sum(tile.count for tile in tiles),
    }
    checksums.update(db, "nodes", row, changes)
    search.index_node(db, row["session_id"], row["id"], text)


def text_of(found: Columns) -> str:
    """What tokens say, without those of the template."""
    texts = columns.pieces(found, "text") or []
    origins = found.get("origin")
    kept = [t for i, t in enumerate(texts) if origins is None or origins[i] != _TEMPLATE]
    return b"".join(kept).decode("utf-8", "replace")
