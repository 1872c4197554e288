"""Reads one session at one moment, row by row, over a connection of its own.

It does not use the store's thread, and does not see later writes (it is a read transaction of SQLite's WAL).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import sqlite_utils

from storage.database import fetch, require, scalar
from storage.errors import StoreDamagedError, UnknownRowError, typed_errors
from storage.rows import Columns, NodeRow
from storage.schema import open_sessions
from storage.tables import checksums, columns, key_value, nodes, token_chunks
from storage.tables.text import clean
from storage.transfer.parts import (
    NODE_FIELDS,
    NODE_MORE,
    SESSION_MORE,
    EndPart,
    ImportPart,
    NodePart,
    PlacePart,
    SessionPart,
    TokensPart,
)

Row = dict[str, Any]
OnProgress = Callable[[int, int], None]  # nodes done and in all; raising in it cancels
PIECE = 1024  # most tokens of one range


class StoredSession:
    """A session to export; used by one thread."""

    def __init__(self, db: sqlite_utils.Database, session_id: int) -> None:
        self._db = db
        self.row = require(db, "sessions", session_id)
        if self.row["importing"]:
            raise UnknownRowError(f"there is no session {session_id}")
        self.id = session_id
        self.node_count = int(scalar(db, "SELECT count(*) FROM nodes WHERE session_id = ?", [session_id]))

    def require_whole(self) -> None:
        """Refuses a session with a damaged row or lost nodes.

        Raises:
            StoreDamagedError: A row is damaged, or nodes are lost.
        """
        if not checksums.intact("sessions", self.row) or self.node_count != self.row["node_count"]:
            raise StoreDamagedError(_damaged(f"the session {self.row['title']!r:.60}"))

    def nodes(self) -> Iterator[Row]:
        """Every node, parents before their children.

        Raises:
            StoreDamagedError: A node fails its checksum.
        """
        last = -1
        sql = "SELECT * FROM nodes WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT 256"
        while rows := fetch(self._db, sql, [self.id, last]):
            for row in rows:
                if not checksums.intact("nodes", row):
                    raise StoreDamagedError(_damaged(f"node {row['id']}"))
                yield self._ended(row) if row["status"] == "open" else row
            last = rows[-1]["seq"]

    def counted_nodes(self, progress: OnProgress, before: int = 0) -> Iterator[Row]:
        """As `nodes`; reports the nodes done, after `before` earlier ones: each counts twice, for itself and its tokens."""
        for done, row in enumerate(self.nodes(), before + 1):
            yield row
            progress(done, 2 * self.node_count)

    def ranges(self, node_id: int) -> Iterator[tuple[str, int, int, Columns]]:
        """All stored tokens of a node, the newest last: model, first token, count, columns.

        Raises:
            StoreDamagedError: Some of it fails its checksum.
        """
        for chunk in self.chunks(node_id):
            found = token_chunks.read_chunk(chunk)
            if found is None:  # its columns do not fit, although the checksum does
                raise StoreDamagedError(_damaged(f"the tokens of node {node_id} from {chunk['first']}"))
            for start in range(0, chunk["count"], PIECE):
                stop = min(start + PIECE, chunk["count"])
                yield chunk["kv_fingerprint"], chunk["first"] + start, stop - start, columns.cut(found, start, stop)

    def chunks(self, node_id: int) -> Iterator[Row]:
        """All stored token chunks of a node, the newest last, as rows.

        Raises:
            StoreDamagedError: Some of it fails its checksum.
        """
        for row in self._db.execute("SELECT id FROM token_chunks WHERE node_id = ? ORDER BY id", [node_id]).fetchall():
            [chunk] = fetch(self._db, "SELECT * FROM token_chunks WHERE id = ?", [row[0]])
            if not checksums.intact("token_chunks", chunk):
                raise StoreDamagedError(_damaged(f"the tokens of node {node_id} from {chunk['first']}"))
            yield chunk

    def models(self) -> list[Row]:
        """The saved models of the session's tokens."""
        where = """kv_fingerprint IN (
                     SELECT c.kv_fingerprint FROM token_chunks c JOIN nodes n ON n.id = c.node_id WHERE n.session_id = ?)
                   ORDER BY kv_fingerprint"""
        return self._intact("models", where, self.id)

    def vocabularies(self) -> Iterator[Row]:
        """The saved vocabularies of the session's models."""
        digests = [msgspec.json.decode(row["info"]).get("vocabulary") for row in self.models()]
        for digest in dict.fromkeys(each for each in digests if isinstance(each, str)):
            yield from self._intact("vocabularies", "digest = ?", digest)

    def setup(self) -> object:
        """The setup of the session; None without one, or if it fails its checksum."""
        rows = self._intact("settings", "key = ?", key_value.session_key(self.id))
        return msgspec.json.decode(rows[0]["value"]) if rows else None

    def place(self) -> list[Row]:
        """The row of the session's place; empty if it is missing or damaged."""
        return self._intact("places", "id = ?", self.id)

    def path(self, tip: int | None) -> list[tuple[NodeRow, int | None, int | None]]:
        """The path from the root to the end of a node: its nodes, with the number of tokens and bytes on the path (None: all).

        Raises:
            UnknownRowError: The session does not have that node.
        """
        found: list[tuple[NodeRow, int | None, int | None]] = []
        stop: int | None = None
        byte: int | None = None
        above = tip
        while above is not None and len(found) <= self.node_count:  # a cycle in a damaged tree ends here
            node = nodes.one(self._db, self.id, above)
            found.append((node, stop, byte))
            stop, byte, above = node.at_token, node.at_byte, node.parent_id
        return found[::-1]

    def tokens(self, node_id: int) -> Iterator[tuple[int, str, Columns, bool]]:
        """The tokens of a node under its own model: first token, model, columns, and whether they are damaged."""
        for tile in token_chunks.load(self._db, [node_id], None).get(node_id, []):
            yield tile.first, tile.kv_fingerprint, tile.columns, tile.damaged

    def _intact(self, table: str, where: str, value: int | str) -> list[Row]:
        rows = fetch(self._db, f"SELECT * FROM {table} WHERE {where}", [value])  # noqa: S608  # our own names
        return [row for row in rows if checksums.intact(table, row)]

    def _ended(self, row: Row) -> Row:
        """The row of an open run as if the run ended now."""
        text, count = token_chunks.text_so_far(self._db, row)
        return {**row, "status": "partial", "finish_reason": "app_ended", "text": text, "token_count": count}


@contextmanager
def stored_session(store: Path, session_id: int) -> Iterator[StoredSession]:
    """The session at the present moment, on a connection of the calling thread."""
    with typed_errors(store), open_sessions(store, read_only=True) as db:
        db.execute("BEGIN")
        yield StoredSession(db, session_id)


def _damaged(what: str) -> str:
    return f"{what} is damaged, nothing was written; `elsewise sessions verify` says what is, Markdown and CSV take the rest"


class SessionSource:
    """A session of the store as parts of an import, with the title of the copy; used by one thread.

    The copy gets new checksums, which would make damage valid, so damage is refused.

    Raises:
        UnknownRowError: There is no such session.
        StoreDamagedError: Part of the session is damaged.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, store: Path, session_id: int, title: str) -> None:
        self._title = clean(title)
        self._reading = stored_session(store, session_id)
        self._session = self._reading.__enter__()
        try:
            self._session.require_whole()
        except BaseException:
            self.close()
            raise
        self.total, self.done = 2 * self._session.node_count, 0  # each node counts twice, for itself and its tokens
        self.nodes: list[int] = []  # ids in the original, in the order of the copy

    def close(self) -> None:
        """Ends the read transaction."""
        self._reading.__exit__(None, None, None)

    def parts(self) -> Iterator[ImportPart]:
        """All parts, in the order in which they are to be written."""
        session = self._session
        yield SessionPart(self._title, more={name: session.row[name] for name in SESSION_MORE})
        for place in session.place():
            yield PlacePart(place["folder_id"], place["tags"])
        numbers: dict[int | None, int | None] = {None: None}
        for row in session.nodes():
            numbers[row["id"]] = len(self.nodes)
            self.nodes.append(row["id"])
            own = {name: row[name] for name in NODE_FIELDS}
            own |= {"text": clean(row["text"]), "turn_start": bool(row["turn_start"]), "at_end": bool(row["at_end"])}
            yield NodePart(parent=numbers[row["parent_id"]], **own, more={name: row[name] for name in NODE_MORE})
            self.done += 1
        for number, node_id in enumerate(self.nodes):
            for row in session.chunks(node_id):
                yield TokensPart(number, row["kv_fingerprint"], row["first"], row["count"], row["columns"], row["summary"])
            self.done += 1
        yield EndPart(numbers.get(session.row["current_node"]), session.row["branches"])
