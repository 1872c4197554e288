"""`SessionStore`: the sessions file behind coroutines. What each does in SQL stands in the module it calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from storage.database import Database, transaction
from storage.errors import StoreDamagedError
from storage.repair import integrity, quarantine, recovery
from storage.repair.backup import back_up_daily, back_up_now
from storage.rows import DamageRow, Imported, SessionCopy, SessionRow
from storage.schema import open_sessions
from storage.store_kept import KeptMembers
from storage.store_runs import RunMembers
from storage.tables import places, sessions, trash
from storage.tables.places import Places

if TYPE_CHECKING:
    from storage.transfer.importer import Importer


def _unheard(_done: int, _total: int) -> None:
    """Nobody listens."""


class SessionStore(RunMembers, KeptMembers):
    """Sessions on disk.

    All SQL runs on one thread that owns the one connection; the coroutines may be awaited on any event loop, also on
    several at once or one after the other. A write is one transaction and durable when it returns; it is carried out
    even when the awaiting task is cancelled. Every member may raise the errors of `storage.errors`: `StoreFullError`,
    `StoreDiskError`, `StoreDamagedError`, `StoreReadOnlyError`, `StoreBusyError`, `StoreClosedError`; those that take a
    number, `UnknownRowError`. A read error is never taken for "empty".

    Lone surrogates and NUL in text become U+FFFD on the way in.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.places = Places(database)  # folders, tags, the order by hand
        self._imports: Importer | None = None

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Self:
        """Opens the file at `path`, made (0600, its folder 0700) or migrated (after a verified backup) when needed; blocking.

        Args:
            path: The sessions file.
            read_only: For a process that does not hold the data folder's lock: nothing is made, migrated or recovered.

        Raises:
            StoreNewerError: Written by a newer version; the file was not touched.
            StoreDamagedError: Not a database, not one of ours, or broken; the file was not touched.
            StoreReadOnlyError, StoreFullError: It cannot be written.
            StoreMissingError: `read_only`, and there is no file.
        """
        database = Database(path)
        database.open(lambda: open_sessions(path, read_only=read_only))
        store = cls(database)
        if not read_only:
            try:
                with suppress(StoreDamagedError):  # `verify` names it; the rest of the store opens
                    database.submit(lambda db: transaction(db, recovery.close_open_runs)).result()
            except BaseException:
                database.close()
                raise
        return store

    @property
    def path(self) -> Path:
        """The sessions file."""
        return self._database.path

    # ---- sessions

    async def create_session(self, title: str, *, is_sample: bool = False) -> int:
        """Adds an empty session; returns its id."""
        return await self._database.write(lambda db: sessions.create(db, title, is_sample=is_sample))

    async def sessions(self, query: str = "") -> list[SessionRow]:
        """The list: pinned first, then the last changed by sequence; without the trash and unfinished imports.

        With a query: those where every word is found in the title or in any branch (see `storage.tables.search`).
        """
        return await self._database.read(lambda db: sessions.listing(db, query))

    async def trashed_sessions(self) -> list[SessionRow]:
        """The trash, the last changed first."""
        return await self._database.read(sessions.trash)

    async def rename_session(self, session_id: int, title: str) -> None:
        """Gives it another title."""
        await self._database.write(lambda db: sessions.rename(db, session_id, title))

    async def pin_session(self, session_id: int, pinned: bool = True) -> None:
        """Pins it to the top of the list, or unpins it; either way it stands first there."""
        await self._database.write(lambda db: places.pin(db, session_id, pinned))

    async def trash_session(self, session_id: int) -> None:
        """Into the trash; nothing is deleted."""
        await self._database.write(lambda db: sessions.change(db, session_id, trashed=trash.latest(db)))

    async def restore_session(self, session_id: int) -> None:
        """Back out of the trash."""
        await self._database.write(lambda db: sessions.change(db, session_id, trashed=None))

    async def purge_trash(self, days: float = 30) -> int:
        """Deletes for good what has been in the trash for longer than `days`, in short transactions; returns how many."""
        await self._database.write(trash.note_latest)
        doomed = await self._database.read(lambda db: trash.expired(db, days))
        return await self._purge(doomed)

    async def empty_trash(self, session_ids: Collection[int]) -> int:
        """Deletes those of these sessions that are in the trash for good, now; returns how many. A damaged one stays."""
        thrown = await self._database.read(lambda db: trash.expired(db, None))
        return await self._purge([each for each in thrown if each in session_ids])

    async def _purge(self, doomed: Sequence[int]) -> int:
        for session_id in doomed:
            while not await self._database.write(partial(trash.purge_slice, session_id=session_id)):
                pass  # others get their turn between two slices
        more = bool(doomed)
        while more:
            more = await self._database.read(trash.vacuum_slice)
        return len(doomed)

    async def drop_empty_sessions(self, title: str, keep: Collection[int] = ()) -> int:
        """Deletes sessions still called `title` in which nothing was ever said, but those in `keep`; returns how many.

        Those that something was set for, pinned ones, the sample and damaged ones stay.
        """
        return await self._database.write(lambda db: trash.drop_empty(db, title, keep))

    async def copy_session(self, session_id: int, title: str) -> SessionCopy:
        """A session of its own with the same tree, tokens and shown path; neither pinned nor a sample.

        It is read as it stands at one moment, and written in short transactions; an answer that is being written ends there.

        Raises:
            StoreDamagedError: Part of it is damaged; nothing was copied.
        """
        return await self._importer().copy(session_id, title)

    # ---- in and out of files

    async def import_file(self, path: Path, progress: Callable[[int, int], None] = _unheard) -> Imported:
        """Imports sessions from a file: our JSON, messages as OpenAI's API takes them, or a portable session file.

        Others use the store meanwhile. Where anything is wrong, or the task is cancelled, nothing of it stays.

        Args:
            path: The file; it is not changed.
            progress: Called now and then with what was read and how much there is.

        Raises:
            InvalidFileError: The file is not what it should be; the line and the node or message are named.
            StoreNewerError: A newer version wrote it.
        """
        return await self._importer().take(path, progress)

    async def drop_unfinished_imports(self) -> int:
        """Deletes what was left of an import, copy or deletion that was killed, in slices; returns how many sessions."""
        return await self._importer().drop_unfinished()

    def _importer(self) -> Importer:
        if self._imports is None:
            from storage.transfer.importer import Importer  # the window opens without it

            self._imports = Importer(self._database)
        return self._imports

    # ---- care

    async def verify(self) -> list[DamageRow]:
        """Everything that is damaged, each with its session and turn; empty when all is sound.

        Goes session by session, so that others can use the store meanwhile.
        """
        damage = await self._database.read(integrity.check_file)
        for session_id in await self._database.read(integrity.session_ids):
            damage += await self._database.read(partial(integrity.check_session, session_id=session_id))
        return damage

    async def set_aside_damage(self) -> list[DamageRow]:
        """Moves what `verify` finds damaged into quarantine, so that everything else is whole; what that was.

        Only for the one writer of the data folder. Runs keep their text and the tokens before the first that is lost, and are
        marked (`NodeRow.damaged`) for good. Goes session by session, so that others can use the store meanwhile.

        Raises:
            StoreDamagedError: Pages of the file itself are broken: it has to be recovered (`salvage`). Nothing was changed.
        """
        damage = await self._database.read(integrity.check_pages)
        if damage and all("index" in row.detail for row in damage):
            await self._database.write(quarantine.mend_indexes)
            damage = await self._database.read(integrity.check_pages)
        if damage:
            raise StoreDamagedError(
                f"{self.path}: {damage[0].detail}; nothing was set aside, `elsewise sessions recover` helps"
            )
        await self._database.write(quarantine.mend_search)
        found = await self._database.write(quarantine.set_aside_strays)
        for session_id in await self._database.read(integrity.session_ids):
            if await self._database.read(partial(integrity.check_session, session_id=session_id)):
                found += await self._database.write(partial(quarantine.set_aside, session_id=session_id))
        return found + await self._database.write(quarantine.set_aside_shared)

    async def quarantined(self) -> list[DamageRow]:
        """What was set aside so far, each with its session and turn."""
        return await self._database.read(quarantine.listed)

    async def back_up_daily(self) -> Path | None:
        """Makes today's backup where there is none yet, and keeps the last seven; returns where it is.

        It has a thread and a connection of its own, so that nobody waits for it; cancelling stops it. A backup that is not
        sound is no reason to give up an older one.

        Raises:
            StoreDamagedError: The file is damaged; the backups that are there stay.
        """
        stop = threading.Event()
        try:
            return await asyncio.to_thread(back_up_daily, self.path, stop)
        finally:
            stop.set()

    async def back_up_now(self) -> Path:
        """Makes a backup that stays until somebody deletes it, reads every row of it again, and returns where it is.

        As `back_up_daily`, it has a thread and a connection of its own; cancelling stops it.

        Raises:
            StoreDamagedError: The file is damaged; the backups that are there stay.
        """
        stop = threading.Event()
        try:
            made = await asyncio.to_thread(back_up_now, self.path, stop)
        finally:
            stop.set()
        assert made is not None  # it is only stopped with whoever waits here
        return made

    async def close(self) -> None:
        """Carries out what was submitted, then closes the file and ends the thread. May be repeated."""
        await self._database.close_async()

    def close_sync(self) -> None:
        """The same, blocking."""
        self._database.close()
