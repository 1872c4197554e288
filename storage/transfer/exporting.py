"""A session as JSON: see `storage.transfer` for the format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from storage.text import from_json
from storage.transfer.drafts import written
from storage.transfer.folders import travelling, without_folders
from storage.transfer.numbers import to_json
from storage.transfer.parts import FORMAT, NODE_MORE, SESSION_MORE, VERSION
from storage.transfer.reading import Row, StoredSession, stored_session

OnProgress = Callable[[int, int], None]  # nodes done and in all; raising in it cancels


def export_json(store: Path, session_id: int, path: Path, progress: OnProgress) -> None:
    """Writes a whole session; blocking, any thread.

    Args:
        store: The sessions file.
        session_id: Which.
        path: Where to; replaced when the export is whole, untouched before.
        progress: Hears of nodes, each of which is written twice: itself, and its tokens.

    Raises:
        UnknownRowError: There is no such session.
        StoreDamagedError: Part of it is damaged.
        StoreFullError, StoreReadOnlyError: `path` cannot be written.
    """
    with stored_session(store, session_id) as session:
        session.require_whole()
        with written(path) as file:
            total = 2 * session.node_count
            file.write(f'{{"format": "{FORMAT}", "version": {VERSION},\n"session": '.encode())
            setup = travelling(session.setup())
            file.write(msgspec.json.encode(session_record(session.row) | ({"setup": setup} if setup else {})))
            _list(file, "models", (model_record(row) for row in session.models()))
            _list(file, "nodes", _counted((node_record(row) for row in session.nodes()), 0, total, progress))
            _list(file, "tokens", _tokens(session, session.node_count, total, progress))
            file.write(b"}\n")


def session_record(row: Row) -> dict[str, Any]:
    """A row of the store as the format has it."""
    return {
        "title": row["title"],
        "created": row["created"],
        "updated": row["updated"],
        "pinned": bool(row["pinned"]),
        "current": row["current_node"],
        "more": {name: row[name] for name in sorted(SESSION_MORE)},
    }


def model_record(row: Row) -> dict[str, Any]:
    """A row of the store as the format has it."""
    return {"kv_fingerprint": row["kv_fingerprint"], "info": from_json(row["info"])}


def node_record(row: Row) -> dict[str, Any]:
    """A row of the store as the format has it."""
    return {
        "id": row["id"],
        "parent": row["parent_id"],
        "at_token": row["at_token"],
        "at_byte": row["at_byte"],
        "role": row["role"],
        "turn_start": bool(row["turn_start"]),
        "text": row["text"],
        "status": row["status"],
        "finish_reason": row["finish_reason"],
        "token_count": row["token_count"],
        "kv_fingerprint": row["kv_fingerprint"] if row["token_count"] else None,
        "stats": without_folders(from_json(row["stats"])),
        "created": row["created"],
        "more": {name: row[name] for name in sorted(NODE_MORE)},
    }


def _tokens(session: StoredSession, before: int, total: int, progress: OnProgress) -> Iterator[dict[str, Any]]:
    for done, row in enumerate(session.nodes(), before):
        for fingerprint, first, count, columns in session.ranges(row["id"]):
            head = {"node": row["id"], "kv_fingerprint": fingerprint, "first": first, "count": count}
            yield {**head, "columns": to_json(columns)}
        progress(done + 1, total)


def _counted(records: Iterable[Any], before: int, total: int, progress: OnProgress) -> Iterator[Any]:
    for done, record in enumerate(records, before):
        yield record
        progress(done + 1, total)


def _list(file: BinaryIO, name: str, records: Iterable[Any]) -> None:
    """A member that is a list, an element a line."""
    file.write(f',\n"{name}": ['.encode())
    for number, record in enumerate(records):
        file.write(b",\n" if number else b"\n")
        file.write(msgspec.json.encode(record))
    file.write(b"]")
