"""`SessionStore`: the sessions file behind coroutines; the SQL is in `storage.tables`, `repair` and `transfer`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from storage.database import Database, require, transaction
from storage.errors import StoreDamagedError
from storage.repair import integrity, row_repair
from storage.repair.backup import back_up_daily, back_up_now
from storage.rows import (
    DamageRow,
    Imported,
    NewChunk,
    NewNode,
    NodeRow,
    SearchHit,
    SessionCopy,
    SessionRow,
    SessionTree,
    StoredChunk,
)
from storage.schema import open_sessions
from storage.tables import key_value, nodes, places, search, sessions, token_chunks, trash
from storage.tables.node_columns import SessionShape
from storage.tables.places import Places

if TYPE_CHECKING:
    from storage.transfer.importer import Importer


class SessionStore:
    """Sessions on disk.

    All SQL runs on the thread that owns the only connection; the coroutines may be awaited on any event loop, also on
    several loops at once. A write is one transaction, durable when it returns; it completes even if the awaiting task is
    cancelled. Every member may raise `StoreFullError`, `StoreDiskError`, `StoreDamagedError`, `StoreReadOnlyError`,
    `StoreBusyError` and `StoreClosedError` of `storage.errors`; members that take an id also `UnknownRowError`. A read error
    is never taken for "empty".

    Lone surrogates and NUL in text become U+FFFD when saved.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.places = Places(database)  # folders, tags, manual order
        self._imports: Importer | None = None

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Self:
        """Opens the file at `path`. Blocking.

        A missing file is made (0600, its folder 0700); one of an older version is migrated, after a verified backup.

        Args:
            path: The sessions file.
            read_only: For a process without the data folder's lock: nothing is made, migrated or recovered.

        Raises:
            StoreNewerError: The file is of a newer version; it was not touched.
            StoreDamagedError: The file is not a database, not a store, or broken; it was not touched.
            StoreReadOnlyError, StoreFullError: The file cannot be written.
            StoreMissingError: `path` is a broken link, or (`read_only`) does not exist.
        """
        database = Database(path)
        database.open(lambda: open_sessions(path, read_only=read_only))
        store = cls(database)
        if not read_only:
            try:
                with suppress(StoreDamagedError):  # `verify` reports the damage; the rest of the store opens
                    database.submit(lambda db: transaction(db, nodes.close_open_runs)).result()
            except BaseException:
                database.close()
                raise
        return store

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def path(self) -> Path:
        """The sessions file."""
        return self._database.path

    # ---- sessions

    async def create_session(self, title: str, *, is_sample: bool = False) -> int:
        """Adds an empty session; returns its id."""
        return await self._database.write(lambda db: sessions.create(db, title, is_sample=is_sample))

    async def sessions(self, query: str = "") -> list[SessionRow]:
        """The session list: pinned first, then the last changed by sequence; without the trash and unfinished imports.

        With a query: sessions with all its words in the title or in any branch (see `storage.tables.search`).
        """
        return await self._database.read(lambda db: sessions.listing(db, query))

    async def search_hits(self, query: str) -> dict[int, SearchHit]:
        """One place of the query's words in the text, by session; sessions with the words only in the title have none."""
        return await self._database.read(lambda db: search.hits(db, query))

    async def trashed_sessions(self) -> list[SessionRow]:
        """The sessions in the trash, the last trashed first."""
        return await self._database.read(sessions.trash)

    async def rename_session(self, session_id: int, title: str) -> None:
        """Changes the title."""
        await self._database.write(lambda db: sessions.rename(db, session_id, title))

    async def pin_session(self, session_id: int, pinned: bool = True) -> None:
        """Pins or unpins a session and drops its manual order: sorted by its last change, it precedes manually ordered ones."""
        await self._database.write(lambda db: places.pin(db, session_id, pinned))

    async def trash_session(self, session_id: int) -> None:
        """Moves a session to the trash; deletes nothing."""
        await self._database.write(lambda db: sessions.change(db, session_id, trashed=trash.latest(db)))

    async def restore_session(self, session_id: int) -> None:
        """Moves a session back out of the trash."""
        await self._database.write(lambda db: sessions.change(db, session_id, trashed=None))

    async def purge_trash(self, days: float = 30) -> int:
        """Deletes sessions that were in the trash for longer than `days`, in short transactions; returns their number."""
        await self._database.write(trash.note_latest)
        expired = await self._database.read(lambda db: trash.expired(db, days))
        return await self._purge(expired)

    async def empty_trash(self, session_ids: Collection[int]) -> int:
        """Deletes the given sessions if they are in the trash and not damaged; returns their number."""
        trashed = await self._database.read(lambda db: trash.expired(db, None))
        return await self._purge([each for each in trashed if each in session_ids])

    async def _purge(self, session_ids: Sequence[int]) -> int:
        for session_id in session_ids:
            while not await self._database.write(partial(trash.purge_slice, session_id=session_id)):
                pass  # other jobs run between two slices
        more = bool(session_ids)
        while more:
            more = await self._database.read(trash.vacuum_slice)
        return len(session_ids)

    async def drop_empty_sessions(self, title: str, keep: Collection[int] = ()) -> int:
        """Deletes sessions called `title` without any text, except those in `keep`; returns their number.

        Sessions with a setup, a folder or tags stay, as do pinned and damaged sessions and the sample.
        """
        return await self._database.write(lambda db: trash.drop_empty(db, title, keep))

    async def copy_session(self, session_id: int, title: str) -> SessionCopy:
        """Copies a session with its tree, tokens and shown path; the copy is neither pinned nor a sample.

        The copy has the state of one moment, and is written in short transactions; an open run ends with its saved tokens.

        Raises:
            StoreDamagedError: Part of the session is damaged; nothing was copied.
        """
        return await self._importer().copy(session_id, title)

    # ---- runs and their tokens

    async def set_current(self, session_id: int, node_id: int | None) -> None:
        """Makes `node_id` the tip of the path that is shown."""
        await self._database.write(lambda db: nodes.set_current(db, session_id, node_id))

    async def load_session(self, session_id: int) -> SessionTree:
        """The session and its runs in the order of creation, without tokens. Damaged rows are marked, not left out."""
        return await self._database.read(lambda db: nodes.tree(db, session_id))

    async def load_shape(self, session_id: int) -> SessionShape:
        """The session and the tree of its runs without texts, for long sessions. Damaged rows are marked."""
        return await self._database.read(lambda db: nodes.shape(db, session_id))

    async def load_nodes(self, session_id: int, node_ids: Sequence[int], *, after: int | None = None) -> list[NodeRow]:
        """Some runs of a session in the order of creation, without tokens; ids of other sessions are left out.

        Args:
            session_id: The session of the runs.
            node_ids: The runs.
            after: Adds all runs with ids above this one.
        """
        ids = list(node_ids)
        return await self._database.read(lambda db: nodes.some(db, session_id, ids, after))

    async def add_node(self, node: NewNode, chunk: NewChunk | None = None, *, current: bool = False) -> int:
        """Adds a run with its first tokens, and (`current`) makes it the tip that is shown, in one transaction.

        Returns:
            The new node's id.

        Raises:
            InvalidRowError: A parent in another session, an `at_token` beyond the parent, or columns that do not fit.
        """
        return await self._database.write(lambda db: nodes.add(db, node, chunk, current=current))

    async def append_chunk(self, node_id: int, chunk: NewChunk) -> None:
        """Saves the next tokens of an open run, or all tokens of a finished run that has none yet.

        A chunk that begins at the first token and covers all saved tokens of an open run replaces them; it has the same ids,
        and may have scores of another model.

        Raises:
            InvalidRowError: The chunk does not follow the saved tokens, has other ids, or the run is finished.
        """
        await self._database.write(lambda db: token_chunks.append(db, require(db, "nodes", node_id), chunk))

    async def rescore(self, node_id: int, chunk: NewChunk) -> None:
        """Saves another set of columns for tokens of a run, or for its bytes as another model tokenizes them.

        Readers get the newest columns per fingerprint and range; older columns are kept.

        Raises:
            InvalidRowError: The ids differ from those of the run, or the range is beyond its tokens (or those of that model).
        """
        await self._database.write(lambda db: token_chunks.rescore(db, require(db, "nodes", node_id), chunk))

    async def finish_node(
        self, node_id: int, *, finish_reason: str | None, incomplete: bool = False, stats: Mapping[str, Any], text: str
    ) -> None:
        """Ends an open run and adds its text to the search index.

        Its status becomes "complete" for the reasons None, eos, stop and grammar, else "partial".

        Args:
            node_id: The run.
            finish_reason: Why the run ended.
            incomplete: Makes the run "partial" whatever the reason (for a stop text inside a structured answer).
            stats: How the run was made.
            text: The content.

        Raises:
            InvalidRowError: The run is already finished.
        """
        await self._database.write(
            lambda db: nodes.finish(db, node_id, finish_reason=finish_reason, incomplete=incomplete, stats=stats, text=text)
        )

    async def discard_node(self, node_id: int) -> None:
        """Deletes an answer that ended without text, so that another one can take its place.

        Raises:
            InvalidRowError: The run has text, is open, or another run continues it.
        """
        await self._database.write(lambda db: trash.discard(db, node_id))

    async def load_tokens(self, node_ids: Sequence[int], kv_fingerprint: str | None = None) -> dict[int, list[StoredChunk]]:
        """The tokens of several runs, in order, checksums verified; unknown ids are left out.

        Args:
            node_ids: The runs.
            kv_fingerprint: The model whose scores are read if it has scored the run; otherwise, and for None, the run's own
                model. Each chunk names its model.

        Returns:
            For each run its ranges in order, without overlap. Damaged ranges are marked, never left out.
        """
        ids = list(node_ids)
        return await self._database.read(lambda db: token_chunks.load(db, ids, kv_fingerprint))

    # ---- vocabularies, models, settings

    async def save_vocabulary(self, digest: str, tokens: Sequence[bytes]) -> None:
        """Saves the bytes of all tokens of a tokenizer, so that alternatives can be shown without an engine."""
        await self._database.write(lambda db: key_value.save_vocabulary(db, digest, tokens))

    async def vocabulary(self, digest: str) -> list[bytes] | None:
        """The bytes of all tokens; None if that tokenizer was never saved."""
        return await self._database.read(lambda db: key_value.vocabulary(db, digest))

    async def save_model(self, kv_fingerprint: str, info: Mapping[str, Any]) -> None:
        """Saves the model of a fingerprint: name, vocabulary digest, any JSON values."""
        await self._database.write(lambda db: key_value.save_model(db, kv_fingerprint, info))

    async def model(self, kv_fingerprint: str) -> dict[str, Any] | None:
        """The model of a fingerprint; None if it was never saved."""
        return await self._database.read(lambda db: key_value.model(db, kv_fingerprint))

    async def set_setting(self, key: str, value: Any) -> None:
        """Saves a setting, any JSON value."""
        await self._database.write(lambda db: key_value.set_setting(db, key, value))

    async def setting(self, key: str) -> Any:
        """The value of a setting; None if it was never set."""
        return await self._database.read(lambda db: key_value.setting(db, key))

    async def set_session_setup(self, session_id: int, value: Any) -> None:
        """Saves the setup of a session, any JSON value; deleted with the session.

        Raises:
            UnknownRowError: There is no such session.
        """
        await self._database.write(lambda db: key_value.set_session_setup(db, session_id, value))

    async def session_setup(self, session_id: int) -> Any:
        """The setup of a session; None if it was never saved."""
        return await self._database.read(lambda db: key_value.setting(db, key_value.session_key(session_id)))

    async def set_saved_ends(self, session_id: int, ends: Mapping[int, int]) -> None:
        """Saves the lengths of a session's paths whose KV was saved: tokens by last node.

        Raises:
            UnknownRowError: There is no such session.
        """
        await self._database.write(lambda db: key_value.set_saved_ends(db, session_id, ends))

    async def saved_ends(self, session_id: int) -> dict[int, int]:
        """The lengths saved by `set_saved_ends`; empty without any."""
        return await self._database.read(lambda db: key_value.saved_ends(db, session_id))

    # ---- in and out of files

    async def import_file(self, path: Path, progress: Callable[[int, int], None] = lambda _done, _total: None) -> Imported:
        """Imports sessions from a file: our JSON, messages as OpenAI's API takes them, or a portable session file.

        Other jobs of the store run meanwhile. After an error or cancellation nothing of the import remains.

        Args:
            path: The file; it is not changed.
            progress: Called now and then with the amount read and the total.

        Raises:
            InvalidFileError: The file is invalid; the message has the line and the node or message.
            StoreNewerError: The file is of a newer version.
        """
        return await self._importer().import_file(path, progress)

    async def drop_unfinished_imports(self) -> int:
        """Deletes the remains of interrupted imports, copies and deletions, in slices; returns the number of sessions."""
        return await self._importer().drop_unfinished()

    def _importer(self) -> Importer:
        if self._imports is None:
            from storage.transfer.importer import Importer  # imported late: the window opens without it

            self._imports = Importer(self._database)
        return self._imports

    # ---- verification, repair, backups

    async def verify(self) -> list[DamageRow]:
        """All damage, each with its session and turn; empty without damage.

        Works session by session, so that other jobs of the store can run in between.
        """
        damage = await self._database.read(integrity.check_file)
        for session_id in await self._database.read(integrity.session_ids):
            damage += await self._database.read(partial(integrity.check_session, session_id=session_id))
        return damage

    async def set_aside_damage(self) -> list[DamageRow]:
        """Moves the rows that `verify` finds damaged into quarantine, so that all others are intact; returns them.

        Only for the writer of the data folder. Runs keep their text and the tokens before the first lost one, and stay marked
        (`NodeRow.damaged`). Works session by session, so that other jobs of the store can run in between.

        Raises:
            StoreDamagedError: Pages of the file are broken, which needs `salvage`. Nothing was changed.
        """
        damage = await self._database.read(integrity.check_pages)
        if damage and all("index" in row.detail for row in damage):
            await self._database.write(row_repair.rebuild_indexes)
            damage = await self._database.read(integrity.check_pages)
        if damage:
            raise StoreDamagedError(
                f"{self.path}: {damage[0].detail}; nothing was set aside, `elsewise sessions recover` helps"
            )
        await self._database.write(row_repair.rebuild_search)
        found = await self._database.write(row_repair.set_aside_strays)
        for session_id in await self._database.read(integrity.session_ids):
            if await self._database.read(partial(integrity.check_session, session_id=session_id)):
                found += await self._database.write(partial(row_repair.set_aside, session_id=session_id))
        return found + await self._database.write(row_repair.set_aside_shared)

    async def quarantined(self) -> list[DamageRow]:
        """All damage in quarantine, each with its session and turn."""
        return await self._database.read(row_repair.quarantined)

    async def back_up_daily(self) -> Path | None:
        """Makes today's backup if there is none yet, and keeps the last seven; returns its path.

        It runs on a thread and connection of its own, so that the store stays free; cancelling stops it. A damaged backup
        replaces no earlier one.

        Raises:
            StoreDamagedError: The file is damaged; existing backups stay.
            StoreFullError: The disk has too little room for it.
        """
        return await self._back_up(back_up_daily)

    async def back_up_now(self) -> Path:
        """Makes a backup that is never deleted automatically, and verifies every row of it; returns its path.

        It runs on a thread and connection of its own, as `back_up_daily` does; cancelling stops it.

        Raises:
            StoreDamagedError: The file is damaged; existing backups stay.
            StoreFullError: The disk has too little room for it.
        """
        made = await self._back_up(back_up_now)
        assert made is not None  # `stop` is set only together with this task's cancellation
        return made

    async def _back_up(self, make: Callable[[Path, threading.Event], Path | None]) -> Path | None:
        stop = threading.Event()
        try:
            return await asyncio.to_thread(make, self.path, stop)
        finally:
            stop.set()

    async def close(self) -> None:
        """Completes submitted jobs, closes the file and ends the thread. Idempotent."""
        await self._database.close_async()

    def close_sync(self) -> None:
        """`close`, blocking."""
        self._database.close()
