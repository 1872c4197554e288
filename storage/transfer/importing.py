"""An import from a file (or another session) to rows: read on its own thread, written by the store's, all or nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from resources.files import open_regular
from storage.copies import SessionSource
from storage.database import Database
from storage.errors import InvalidFileError
from storage.rows import Imported, SessionCopy
from storage.transfer.documents import JsonFile
from storage.transfer.filling import Filled, fill, show, unfinished
from storage.transfer.parts import ModelPart, Part, TokensPart, VocabularyPart
from storage.transfer.portable_reading import MAGIC, PortableFile
from storage.upkeep import drop_slice

T = TypeVar("T")
S = TypeVar("S", bound="_Source")
OnProgress = Callable[[int, int], None]  # done and in all: bytes of a file, rows of a portable one
BATCH_SECONDS: Final = 0.05  # of reading ahead
BATCH_BYTES: Final = 1 << 21
KNOWN_BYTES: Final = 1 << 26  # of models and vocabularies, which wait for the end of the import


class _Source(Protocol):
    """A file as it is read. All members block and belong to the reader's thread, but for the counts."""

    total: int
    notes: tuple[str, ...]

    @property
    def done(self) -> int:
        """How much of `total` was read."""

    def parts(self) -> Iterator[Part]:
        """Everything in it, in order."""

    def close(self) -> None:
        """Closes it."""


@dataclass(slots=True)
class _Run:
    """One import in work."""

    name: str  # of the file
    progress: OnProgress
    stopping: bool = False
    filled: Filled = field(default_factory=Filled)

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
        source, filled = await self._whole(opened, _Run(title, _unheard))
        return SessionCopy(filled.sessions[0], dict(zip(source.nodes, filled.nodes, strict=True)))

    async def drop_unfinished(self) -> int:
        """Deletes what an import that was killed has left behind; returns how many sessions."""
        found = await self._database.read(unfinished)
        growing = {number for run in self._running for number in run.filled.sessions}
        left = [number for number in found if number not in growing]
        await self._drop(left)
        return len(left)

    async def _whole(self, opened: Callable[[], S], run: _Run) -> tuple[S, Filled]:
        work = asyncio.ensure_future(self._take(opened, run))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            run.stopping = True
            await asyncio.wait([work])  # it ends with the slice that is being written, and leaves nothing behind
            if work.cancelled() or work.exception() is not None:
                raise
            return work.result()  # it was whole before it could be stopped

    async def _take(self, opened: Callable[[], S], run: _Run) -> tuple[S, Filled]:
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
        run.check()
        await self._database.write(partial(show, filled=run.filled))

    async def _drop(self, session_ids: Sequence[int]) -> None:
        for session_id in session_ids:
            while not await self._database.write(partial(drop_slice, session_id=session_id)):
                pass  # others get their turn between two slices


def _unheard(_done: int, _total: int) -> None:
    """Nobody listens."""


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


def _batch(parts: Iterator[Part]) -> list[Part]:
    """The next parts, as many as are read in a moment; none at the end."""
    deadline, room, batch = time.perf_counter() + BATCH_SECONDS, BATCH_BYTES, list[Part]()
    for part in parts:
        batch.append(part)
        if isinstance(part, TokensPart):
            room -= len(part.columns) + len(part.summary)
        elif isinstance(part, VocabularyPart):
            room -= len(part.tokens)
        if room < 0 or time.perf_counter() > deadline:
            break
    return batch
