"""Imports and copies: read on a thread of their own, written by the store's in short transactions, hidden until complete."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import sqlite_utils

from resources.files import open_regular
from storage.database import Database, fetch, scalar
from storage.errors import InvalidFileError
from storage.rows import Imported, SessionCopy
from storage.tables import checksums, key_value, places, search, sessions
from storage.tables.trash import drop_slice
from storage.transfer.json_format import JsonFile
from storage.transfer.parts import (
    NODE_FIELDS,
    EndPart,
    ImportPart,
    ModelPart,
    NodePart,
    PlacePart,
    SessionPart,
    SetupPart,
    TokensPart,
    VocabularyPart,
)
from storage.transfer.portable import MAGIC, PortableFile
from storage.transfer.session_reader import SessionSource

T = TypeVar("T")
S = TypeVar("S", bound="_Source")
OnProgress = Callable[[int, int], None]  # done and in all: bytes of a file, rows of a portable one
BATCH_SECONDS: Final = 0.05  # of reading ahead
BATCH_BYTES: Final = 1 << 21
KNOWN_BYTES: Final = 1 << 26  # of models and vocabularies, which wait for the end of the import
MOST_KNOWN: Final = 4_096  # of them that differ; each is compared with those before it
SLICE_SECONDS: Final = 0.015  # that one transaction works before it is committed, which takes some more


@dataclass(frozen=True, slots=True)
class ImportState:
    """How far an import is. A slice makes a new one, so that a transaction that is tried again begins where it should."""

    sessions: tuple[int, ...] = ()  # numbers of the sessions, the last one perhaps still growing
    # numbers of the growing session's nodes, in the order of the file; shared by slices, each of which knows how many are its
    # own
    nodes: array[int] = field(default_factory=lambda: array("q"))
    count: int = 0  # how many of them
    created: float = 0.0  # when the growing session was made
    # its models and vocabularies, which are written when the sessions are complete
    known: tuple[ModelPart | VocabularyPart, ...] = ()

    def take(self, number: int) -> ImportState:
        """One node more."""
        del self.nodes[self.count :]  # of a slice that was rolled back
        self.nodes.append(number)
        return replace(self, count=self.count + 1)


def fill(db: sqlite_utils.Database, filled: ImportState, parts: Sequence[ImportPart]) -> tuple[ImportState, int]:
    """Writes parts until a slice's time is over, one at the least; what is there then, and how many were written."""
    deadline = time.perf_counter() + SLICE_SECONDS
    done = 0
    for part in parts:
        filled = _write(db, filled, part)
        done += 1
        if time.perf_counter() > deadline:
            break
    return filled, done


def show(db: sqlite_utils.Database, filled: ImportState) -> None:
    """The imported sessions are there from now on, the first one on top of the list, with what is known of their models."""
    for part in filled.known:
        if isinstance(part, ModelPart):
            _put_new(db, "models", {"kv_fingerprint": part.kv_fingerprint, "info": part.info})
        else:
            _put_new(db, "vocabularies", {"digest": part.digest, "tokens": part.tokens})
    for session_id in reversed(filled.sessions):
        row = sessions.require(db, session_id)
        checksums.update(db, "sessions", row, {"importing": 0, "touched": sessions.next_touch(db)})


def unfinished(db: sqlite_utils.Database) -> list[int]:
    """Sessions that are being imported, or were when the app ended."""
    rows = fetch(db, "SELECT * FROM sessions WHERE importing")
    return [row["id"] for row in rows if sessions.is_unfinished(row)]


def _write(db: sqlite_utils.Database, filled: ImportState, part: ImportPart) -> ImportState:
    match part:
        case SessionPart():
            return _begin(db, filled, part)
        case NodePart():
            return filled.take(_node(db, filled, part))
        case TokensPart():
            values = {"node_id": filled.nodes[part.node], "kv_fingerprint": part.kv_fingerprint, "first": part.first}
            values |= {"count": part.count, "columns": part.columns, "summary": part.summary}
            checksums.insert(db, "token_chunks", values)
        case ModelPart() | VocabularyPart():
            return filled if part in filled.known else replace(filled, known=(*filled.known, part))
        case SetupPart():
            checksums.put(db, "settings", {"key": key_value.session_key(filled.sessions[-1]), "value": part.value})
        case PlacePart():
            held = scalar(db, "SELECT id FROM folders WHERE id = ?", [part.folder_id])  # it may be gone by now
            places.change(db, filled.sessions[-1], folder_id=held, tags=part.tags)
        case EndPart():
            current = None if part.current is None else filled.nodes[part.current]
            changes = {"current_node": current, "branches": part.branches, "node_count": filled.count}
            checksums.update(db, "sessions", sessions.require(db, filled.sessions[-1]), changes)
    return filled


def _begin(db: sqlite_utils.Database, filled: ImportState, part: SessionPart) -> ImportState:
    session_id = sessions.create(db, part.title, is_sample=False)
    row = sessions.require(db, session_id)
    created = row["created"] if part.created is None else part.created
    updated = row["updated"] if part.updated is None else part.updated
    changes = {**part.more, "created": created, "updated": updated, "pinned": int(part.pinned), "importing": 1}
    checksums.update(db, "sessions", row, changes)
    return ImportState((*filled.sessions, session_id), created=created, known=filled.known)


def _node(db: sqlite_utils.Database, filled: ImportState, part: NodePart) -> int:
    session_id = filled.sessions[-1]
    values: dict[str, Any] = {
        **part.more,
        **{name: getattr(part, name) for name in NODE_FIELDS},
        "session_id": session_id,
        "parent_id": None if part.parent is None else filled.nodes[part.parent],
        "at_end": int(part.at_end),
        "turn_start": int(part.turn_start),
        "seq": filled.count + 1,
        "created": filled.created if part.created is None else part.created,
    }
    node_id = checksums.insert(db, "nodes", values)
    if part.text:
        search.index_fresh(db, session_id, node_id, part.text)
    return node_id


def _put_new(db: sqlite_utils.Database, table: str, values: dict[str, Any]) -> None:
    """Adds an unknown key; a known one keeps its value, whatever the file says."""
    key = checksums.COVERED[table][0]
    if not fetch(db, f"SELECT 1 FROM {table} WHERE {key} = ?", [values[key]]):  # noqa: S608  # our own names
        checksums.put(db, table, values)


class _Source(Protocol):
    """A file as it is read. All members block and belong to the reader's thread, but for the counts."""

    total: int
    notes: tuple[str, ...]

    @property
    def done(self) -> int:
        """How much of `total` was read."""

    def parts(self) -> Iterator[ImportPart]:
        """Everything in it, in order."""

    def close(self) -> None:
        """Closes it."""


@dataclass(slots=True)
class _Run:
    """One import in work."""

    name: str  # of the file
    progress: OnProgress
    stopping: bool = False
    filled: ImportState = field(default_factory=ImportState)

    def check(self) -> None:
        if self.stopping:
            raise asyncio.CancelledError


class Importer:
    """Imports files into one store; members belong to any event loop, several imports may run at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._running: list[_Run] = []

    async def take(self, path: Path, progress: OnProgress) -> Imported:
        """Imports a file: our JSON, lists of messages, or a portable session file.

        Where it is cancelled, or anything is wrong, nothing of it stays.

        Args:
            path: The file.
            progress: Called now and then with what was read and how much there is; raising in it cancels.

        Raises:
            InvalidFileError: The file is not what it should be; the place is named.
            StoreNewerError: A newer version wrote it.
        """
        source, filled = await self._whole(partial(_opened, path), _Run(path.name, progress))
        return Imported(filled.sessions, source.notes)

    async def copy(self, session_id: int, title: str) -> SessionCopy:
        """Copies a session of the store, as it stands now; all of it, or nothing.

        Raises:
            UnknownRowError: There is no such session.
            StoreDamagedError: Part of it is damaged.
        """
        opened = partial(SessionSource, self._database.path, session_id, title)
        source, filled = await self._whole(opened, _Run(title, lambda _done, _total: None))
        return SessionCopy(filled.sessions[0], dict(zip(source.nodes, filled.nodes, strict=True)))

    async def drop_unfinished(self) -> int:
        """Deletes what an import that was killed has left behind; returns how many sessions."""
        found = await self._database.read(unfinished)
        growing = {number for run in self._running for number in run.filled.sessions}
        left = [number for number in found if number not in growing]
        await self._drop(left)
        return len(left)

    async def _whole(self, opened: Callable[[], S], run: _Run) -> tuple[S, ImportState]:
        work = asyncio.ensure_future(self._take(opened, run))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            run.stopping = True
            await asyncio.wait([work])  # it ends with the slice that is being written, and leaves nothing behind
            if work.cancelled() or work.exception() is not None:
                raise
            return work.result()  # it was whole before it could be stopped

    async def _take(self, opened: Callable[[], S], run: _Run) -> tuple[S, ImportState]:
        reader = ThreadPoolExecutor(1, thread_name_prefix="elsewise-import")
        self._running.append(run)
        try:
            source = await _on(reader, opened)
            try:
                await self._fill(reader, source, run)
            finally:
                await _on(reader, source.close)
        except BaseException:
            await self._drop(run.filled.sessions)
            raise
        finally:
            self._running.remove(run)
            reader.shutdown()  # it has nothing left to do
        return source, run.filled

    async def _fill(self, reader: ThreadPoolExecutor, source: _Source, run: _Run) -> None:
        parts = source.parts()
        while batch := await _on(reader, partial(_batch, parts)):
            while batch:
                run.check()
                run.filled, done = await self._database.write(partial(fill, filled=run.filled, parts=batch))
                del batch[:done]
            run.progress(source.done, source.total)
            if sum(map(_size, run.filled.known)) > KNOWN_BYTES:
                raise InvalidFileError(run.name, f"what it says of models is larger than {KNOWN_BYTES >> 20} MiB")
            if len(run.filled.known) > MOST_KNOWN:
                raise InvalidFileError(run.name, f"it speaks of more than {MOST_KNOWN:,} models and vocabularies")
        run.check()
        await self._database.write(partial(show, filled=run.filled))

    async def _drop(self, session_ids: Sequence[int]) -> None:
        for session_id in session_ids:
            while not await self._database.write(partial(drop_slice, session_id=session_id)):
                pass  # others get their turn between two slices


async def _on(reader: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.wrap_future(reader.submit(work))


def _opened(path: Path) -> _Source:
    try:
        with open_regular(path) as file:
            portable = file.read(len(MAGIC)) == MAGIC
        return PortableFile(path) if portable else JsonFile(path)
    except OSError as fault:
        raise InvalidFileError(path.name, f"it cannot be read ({fault.strerror})") from fault


def _size(part: ModelPart | VocabularyPart) -> int:
    return len(part.info) if isinstance(part, ModelPart) else len(part.tokens)


def _batch(parts: Iterator[ImportPart]) -> list[ImportPart]:
    """The next parts, as many as are read in a moment; none at the end."""
    deadline, room, batch = time.perf_counter() + BATCH_SECONDS, BATCH_BYTES, list[ImportPart]()
    for part in parts:
        batch.append(part)
        if isinstance(part, TokensPart):
            room -= len(part.columns) + len(part.summary)
        elif isinstance(part, VocabularyPart):
            room -= len(part.tokens)
        if room < 0 or time.perf_counter() > deadline:
            break
    return batch
