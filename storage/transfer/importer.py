"""Imports and copies, read on a thread of their own and written on the store's in short transactions; hidden until complete."""

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
from msgspec.structs import asdict

from resources.files import open_regular
from storage.database import SQLITE_MAGIC, Database, fetch, require, scalar
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
from storage.transfer.portable import PortableFile
from storage.transfer.session_reader import SessionSource

T = TypeVar("T")
S = TypeVar("S", bound="_Source")
OnProgress = Callable[[int, int], None]  # done and in all: bytes of a JSON file, or rows of a portable file
BATCH_SECONDS: Final = 0.05  # of reading per batch of parts
BATCH_BYTES: Final = 1 << 21
KNOWN_BYTES: Final = 1 << 26  # of models and vocabularies, which stay in memory until the end of the import
MOST_KNOWN: Final = 4_096  # distinct models and vocabularies; each is compared with all earlier ones
SLICE_SECONDS: Final = 0.015  # of work per transaction, without the commit


@dataclass(frozen=True, slots=True)
class ImportState:
    """The progress of an import. Each slice makes a new state, so that a repeated transaction starts from the same state."""

    sessions: tuple[int, ...] = ()  # ids of the sessions; the last one may be incomplete
    # ids of the last session's nodes, in the order of the file; all states share the array, and each uses the first `count`
    nodes: array[int] = field(default_factory=lambda: array("q"))
    count: int = 0
    created: float = 0.0  # of the last session
    known: tuple[ModelPart | VocabularyPart, ...] = ()  # written when the sessions are complete

    def add_node(self, number: int) -> ImportState:
        del self.nodes[self.count :]  # removes those of a slice that was rolled back
        self.nodes.append(number)
        return replace(self, count=self.count + 1)


def fill(db: sqlite_utils.Database, state: ImportState, parts: Sequence[ImportPart]) -> tuple[ImportState, int]:
    """Writes at least one part, and more until the time of a slice is over; returns the new state and the number written."""
    deadline = time.perf_counter() + SLICE_SECONDS
    done = 0
    for part in parts:
        state = _write(db, state, part)
        done += 1
        if time.perf_counter() > deadline:
            break
    return state, done


def publish(db: sqlite_utils.Database, state: ImportState) -> None:
    """Shows the imported sessions, the first one on top of the list, and saves their models and vocabularies."""
    for part in state.known:
        _put_new(db, "models" if isinstance(part, ModelPart) else "vocabularies", asdict(part))
    for session_id in reversed(state.sessions):
        row = require(db, "sessions", session_id)
        checksums.update(db, "sessions", row, {"importing": 0, "touched": sessions.next_touch(db)})


def unfinished(db: sqlite_utils.Database) -> list[int]:
    """Sessions of imports that are running, or were running when the app ended."""
    rows = fetch(db, "SELECT * FROM sessions WHERE importing")
    return [row["id"] for row in rows if sessions.is_unfinished(row)]


def _write(db: sqlite_utils.Database, state: ImportState, part: ImportPart) -> ImportState:
    match part:
        case SessionPart():
            return _begin(db, state, part)
        case NodePart():
            return state.add_node(_node(db, state, part))
        case TokensPart():
            values = {"node_id": state.nodes[part.node], "kv_fingerprint": part.kv_fingerprint, "first": part.first}
            values |= {"count": part.count, "columns": part.columns, "summary": part.summary}
            checksums.insert(db, "token_chunks", values)
        case ModelPart() | VocabularyPart():
            return state if part in state.known else replace(state, known=(*state.known, part))
        case SetupPart():
            checksums.put(db, "settings", {"key": key_value.session_key(state.sessions[-1]), "value": part.value})
        case PlacePart():
            held = scalar(db, "SELECT id FROM folders WHERE id = ?", [part.folder_id])  # may have been deleted meanwhile
            places.change(db, state.sessions[-1], folder_id=held, tags=part.tags)
        case EndPart():
            current = None if part.current is None else state.nodes[part.current]
            changes = {"current_node": current, "branches": part.branches, "node_count": state.count}
            checksums.update(db, "sessions", require(db, "sessions", state.sessions[-1]), changes)
    return state


def _begin(db: sqlite_utils.Database, state: ImportState, part: SessionPart) -> ImportState:
    session_id = sessions.create(db, part.title, is_sample=False)
    row = require(db, "sessions", session_id)
    created = row["created"] if part.created is None else part.created
    updated = row["updated"] if part.updated is None else part.updated
    changes = {**part.more, "created": created, "updated": updated, "pinned": int(part.pinned), "importing": 1}
    checksums.update(db, "sessions", row, changes)
    return ImportState((*state.sessions, session_id), created=created, known=state.known)


def _node(db: sqlite_utils.Database, state: ImportState, part: NodePart) -> int:
    session_id = state.sessions[-1]
    values: dict[str, Any] = {
        **part.more,
        **{name: getattr(part, name) for name in NODE_FIELDS},
        "session_id": session_id,
        "parent_id": None if part.parent is None else state.nodes[part.parent],
        "at_end": int(part.at_end),
        "turn_start": int(part.turn_start),
        "seq": state.count + 1,
        "created": state.created if part.created is None else part.created,
    }
    node_id = checksums.insert(db, "nodes", values)
    if part.text:
        search.index_fresh(db, session_id, node_id, part.text)
    return node_id


def _put_new(db: sqlite_utils.Database, table: str, values: dict[str, Any]) -> None:
    """Adds a row with a new key; a known key keeps its value."""
    key = checksums.COVERED[table][0]
    if not fetch(db, f"SELECT 1 FROM {table} WHERE {key} = ?", [values[key]]):  # noqa: S608  # our own names
        checksums.put(db, table, values)


class _Source(Protocol):
    """A source of parts. All members except the counts block, and belong to the reader's thread."""

    total: int
    notes: tuple[str, ...]

    @property
    def done(self) -> int:
        """The amount of `total` that was read."""

    def parts(self) -> Iterator[ImportPart]:
        """All parts, in order."""

    def close(self) -> None:
        """Closes the file."""


@dataclass(slots=True)
class _Run:
    """A running import."""

    name: str  # name of the file
    progress: OnProgress
    stopping: bool = False
    state: ImportState = field(default_factory=ImportState)

    def check(self) -> None:
        if self.stopping:
            raise asyncio.CancelledError


class Importer:
    """Imports files into one store. Members may be called on any event loop; several imports may run at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._running: list[_Run] = []

    async def import_file(self, path: Path, progress: OnProgress) -> Imported:
        """Imports a file: our JSON, lists of messages, or a portable session file.

        After an error or cancellation nothing of the import remains.

        Args:
            path: The file.
            progress: Called now and then with the amount read and the total; raising in it cancels.

        Raises:
            InvalidFileError: The file is invalid; the message has the place.
            StoreNewerError: The file is of a newer version.
        """
        source, state = await self._run_to_end(partial(_opened, path), _Run(path.name, progress))
        return Imported(state.sessions, source.notes)

    async def copy(self, session_id: int, title: str) -> SessionCopy:
        """Copies a session of the store in its present state, completely or not at all.

        Raises:
            UnknownRowError: There is no such session.
            StoreDamagedError: Part of the session is damaged.
        """
        opened = partial(SessionSource, self._database.path, session_id, title)
        source, state = await self._run_to_end(opened, _Run(title, lambda _done, _total: None))
        return SessionCopy(state.sessions[0], dict(zip(source.nodes, state.nodes, strict=True)))

    async def drop_unfinished(self) -> int:
        """Deletes the remains of interrupted imports; returns the number of sessions."""
        found = await self._database.read(unfinished)
        growing = {number for run in self._running for number in run.state.sessions}
        left = [number for number in found if number not in growing]
        await self._drop(left)
        return len(left)

    async def _run_to_end(self, opened: Callable[[], S], run: _Run) -> tuple[S, ImportState]:
        work = asyncio.ensure_future(self._import(opened, run))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            run.stopping = True
            await asyncio.wait([work])  # the import ends after the present slice, and deletes the written rows
            if work.cancelled() or work.exception() is not None:
                raise
            return work.result()  # the import was complete before it could be stopped

    async def _import(self, opened: Callable[[], S], run: _Run) -> tuple[S, ImportState]:
        reader = ThreadPoolExecutor(1, thread_name_prefix="elsewise-import")
        self._running.append(run)
        try:
            source = await _on(reader, opened)
            try:
                await self._fill(reader, source, run)
            finally:
                await _on(reader, source.close)
        except BaseException:
            await self._drop(run.state.sessions)
            raise
        finally:
            self._running.remove(run)
            reader.shutdown()  # it has no jobs left
        return source, run.state

    async def _fill(self, reader: ThreadPoolExecutor, source: _Source, run: _Run) -> None:
        parts = source.parts()
        while batch := await _on(reader, partial(_batch, parts)):
            while batch:
                run.check()
                run.state, done = await self._database.write(partial(fill, state=run.state, parts=batch))
                del batch[:done]
            run.progress(source.done, source.total)
            if sum(map(_size, run.state.known)) > KNOWN_BYTES:
                raise InvalidFileError(run.name, f"what it says of models is larger than {KNOWN_BYTES >> 20} MiB")
            if len(run.state.known) > MOST_KNOWN:
                raise InvalidFileError(run.name, f"it speaks of more than {MOST_KNOWN:,} models and vocabularies")
        run.check()
        await self._database.write(partial(publish, state=run.state))

    async def _drop(self, session_ids: Sequence[int]) -> None:
        for session_id in session_ids:
            while not await self._database.write(partial(drop_slice, session_id=session_id)):
                pass  # other jobs run between two slices


async def _on(reader: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.wrap_future(reader.submit(work))


def _opened(path: Path) -> _Source:
    try:
        with open_regular(path) as file:
            portable = file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
        return PortableFile(path) if portable else JsonFile(path)
    except OSError as fault:
        raise InvalidFileError(path.name, f"it cannot be read ({fault.strerror})") from fault


def _size(part: ImportPart) -> int:
    """Bytes, or characters of text, of the large fields of a part."""
    match part:
        case TokensPart():
            return len(part.columns) + len(part.summary)
        case NodePart():
            return len(part.text) + len(part.stats)
        case ModelPart():
            return len(part.info)
        case VocabularyPart():
            return len(part.tokens)
        case _:
            return 0


def _batch(parts: Iterator[ImportPart]) -> list[ImportPart]:
    """The next parts, as many as fit into a batch; empty at the end."""
    deadline, room, batch = time.perf_counter() + BATCH_SECONDS, BATCH_BYTES, list[ImportPart]()
    for part in parts:
        batch.append(part)
        room -= _size(part)
        if room < 0 or time.perf_counter() > deadline:
            break
    return batch
