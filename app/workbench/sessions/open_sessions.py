"""The open sessions, kept in step with the store: opening, adding nodes, choosing a path, the end of the app."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from msgspec.structs import asdict

from app.supervisor import Supervisor
from app.workbench.answers.answer import RunningAnswers
from app.workbench.answers.completion import write_unsaved
from app.workbench.answers.provenance import next_branch
from app.workbench.background import BackgroundTasks
from app.workbench.refusals import GONE, stored
from app.workbench.setup.session_adapters import Adapters, lacks_adapters, stack_of_session
from app.workbench.setup.setups import Setups
from app.workbench.tree.reading import every_node, read, read_names, read_whole
from app.workbench.tree.session import UNTITLED, OpenSession, WholeSession, shown_title
from app.workbench.windows import OpenWindow, Windows
from runtime import EngineDiedError, RuntimeFault, clean_text
from storage import NewChunk, NewNode, NodeRow, SessionStore, StoreError
from ui import Refusal, SessionChanged, SessionsChanged, translate

log = logging.getLogger(__name__)
TIERS_SECONDS = 1.0  # longest wait for how much of a session is in memory and on the disk


@dataclass(eq=False, repr=False)
class OpenSessions:
    """The sessions that are open in any window."""

    _store: SessionStore
    _supervisor: Supervisor
    _setups: Setups  # read the settings of a session
    _adapters: Adapters  # loads a session's adapters
    _running: RunningAnswers
    _tasks: BackgroundTasks
    _windows: Windows
    _open: dict[int, OpenSession] = field(default_factory=dict, init=False)
    _trashed: set[int] = field(default_factory=set, init=False)  # open sessions in the trash
    # protects a session that is being created from deletion as an unused one
    _creating: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    # a sentence for each answer that could not be saved before the end
    unsaved: list[str] = field(default_factory=list, init=False)
    closing: bool = field(default=False, init=False)  # the engine gets no more requests

    # ---- one session --------------------------------------------------------------------------------------------------

    def find(self, session_id: int) -> OpenSession | None:
        """A session, if it is open."""
        return self._open.get(session_id)

    def opened(self, session_id: int) -> OpenSession:
        """An open session.

        Raises:
            Refusal: It is not open.
        """
        session = self._open.get(session_id)
        if session is None:
            raise Refusal(translate("Workbench", "that session is not open"))
        return session

    async def show(self, session_id: int, window: OpenWindow | None = None) -> OpenSession:
        """Opens a session and reads the shown part of its path, for `window` to show; needs no model."""
        session = self._open.get(session_id)
        if session is None:
            session = WholeSession(await stored(self._store.load_shape(session_id)))
            session = self._open.setdefault(session_id, session)  # another call may have opened it meanwhile
        await read(self._store, session, session.missing())
        await read_names(self._store, session)
        await self._setups.load(session)
        if window is not None:
            window.shown = session
        if session.is_read:  # if not read yet, the shown part goes first and a command reads the rest
            await self.find_warm(session)
        return session

    async def show_earlier(self, session: OpenSession) -> None:
        """Shows and reads more of the beginning of a long path."""
        session.step_back()
        await read(self._store, session, session.missing())

    async def whole(self, session_id: int, node_id: int | None = None) -> WholeSession:
        """An open session, with all tokens of the path shown and of the path to `node_id` read.

        Raises:
            Refusal: It is not open, or the store cannot read it.
        """
        session = self.opened(session_id)
        await read_names(self._store, session)
        return await read_whole(self._store, session, session.tip, node_id)

    async def create(self, window: OpenWindow) -> OpenSession:
        """An empty session for a window: an unused open one, else a new one."""
        async with self._creating:
            empty = next((each.id for each in self._open.values() if self._is_free(each, window)), None)
            session_id = await stored(self._store.create_session(UNTITLED)) if empty is None else empty
            with window.opening(session_id):
                session = await self.show(session_id, window)
        self._windows.tell(SessionsChanged())
        return session

    def _is_free(self, session: OpenSession, window: OpenWindow) -> bool:
        """Whether a session is unused, and neither in the trash nor in another window."""
        taken = session.id in self._trashed or self._windows.holder(session.id, but=window) is not None
        return session.is_unused and not taken

    async def tidy(self) -> None:
        """Deletes sessions after 30 days in the trash, those of killed imports, and empty ones that are not open."""
        async with self._creating:
            await self._store.drop_empty_sessions(UNTITLED, keep=list(self._open))
        await self._store.purge_trash()
        await self._store.drop_unfinished_imports()

    async def drop_empty(self) -> None:
        """Deletes sessions without a message, at the end of the app."""
        try:
            await self._store.drop_empty_sessions(UNTITLED)
        except StoreError as fault:  # the next start tries again
            log.warning("empty sessions could not be cleared away: %s", fault)

    async def move(self, session: OpenSession, node_id: int, *, as_before: bool = False) -> None:
        """Shows the path through a node, down to the leaf shown last below it (see `Tree.leaf`)."""
        node_id = session.in_place_of(node_id)
        if node_id not in session.tree.nodes:
            raise Refusal(translate("Workbench", GONE))
        before = session.tip
        shown = [segment.node.id for segment in session.tree.path(before)]
        session.tip = session.tree.leaf(node_id, shown, as_before=as_before)
        try:
            await stored(self._store.set_current(session.id, session.tip))
        except Refusal:
            session.tip = before  # as in the store
            raise
        if before != session.tip and not session.overflowed(before):  # an overflowed answer stays: it explains its question
            await self.drop_failed(session, before)
        await read(self._store, session, session.missing())
        await self.find_warm(session)

    async def add(self, session: OpenSession, node: NewNode, chunk: NewChunk | None = None, *, current: bool = True) -> NodeRow:
        """Adds a node on the disk and in the open tree, and with `current` makes it the tip.

        Raises:
            Refusal: The path before it is damaged, or the store cannot write it.
        """
        session.check_sound(session.tree.path(node.parent_id))
        node_id = await stored(self._store.add_node(node, chunk, current=current))
        row = NodeRow(
            id=node_id,
            token_count=0 if chunk is None else chunk.count,
            seq=len(session.tree.nodes) + 1,
            kv_fingerprint=None if chunk is None else chunk.kv_fingerprint,
            **asdict(node),
        )
        session.tree.put(row)
        if current:
            session.tip = node_id
        return row

    async def drop_failed(self, session: OpenSession, node_id: int | None) -> None:
        """Removes an answer that failed before its first token, since another one replaces it."""
        if node_id is not None and session.failed_to_begin(node_id):
            await self.take_back(session, node_id)

    async def take_back(self, session: OpenSession, node_id: int) -> None:
        """Removes an empty answer."""
        try:
            await self._store.discard_node(node_id)
        except StoreError as fault:  # leaves the empty node
            log.info("a failed answer stays: %s", fault)
        else:
            session.forget(node_id)

    async def refresh(self, session: OpenSession) -> None:
        """Reads again the parts of a session that an answer has changed on the disk and in the engine."""
        held = [node.id for node in session.tree.held()]
        try:
            rows = await self._store.load_nodes(session.id, held, after=max(session.tree.nodes, default=0))
        except StoreError as fault:  # keeps the view; the next command reports the store's fault
            log.warning("session %d could not be read again: %s", session.id, fault)
        else:
            for row in rows:
                session.tree.put(row)
        await read_names(self._store, session)
        await self.find_warm(session)

    async def next_branch(self, session: OpenSession, seed: int | None) -> int:
        """The lowest branch number under a seed that no stored answer of a session has."""
        first = 0
        async for node in every_node(self._store, session):
            first = max(first, next_branch([node], seed))
        return first

    def allow_retries(self) -> None:
        """Allows retries of answers that failed for good, after another model or engine was chosen."""
        for session in self._open.values():
            session.model_changed = True
        for session in self._windows.shown():
            self._windows.tell(SessionChanged(session.view()))

    async def find_warm(self, session: OpenSession) -> None:
        """Finds out how much of the path is in the engine's memory and in the block file."""
        model, session.warm, session.stored = (None if self.closing else self._supervisor.running), 0, 0
        session.on_server = model is not None and not model.has("kv")
        if model is None or session.on_server or session.path_length() > model.info.context_length:
            return
        try:
            whole = await read_whole(self._store, session, session.tip)
            tip, ids = session.tip, whole.path_ids(session.tree.path(session.tip))
        except Refusal as refusal:  # unreadable or damaged: the next answer reports it
            log.info("no warm prefix: %s", refusal)
            return
        if not ids:
            return
        try:
            adapters = stack_of_session(session)
            match = await asyncio.wait_for(model.prefix_match_async(ids, adapters=adapters), TIERS_SECONDS)
            if session.tip == tip:  # otherwise another path is shown by now, with its own request
                session.warm, session.stored = match.tokens if match.warm is None else match.warm, match.tokens
        except EngineDiedError:
            await self._supervisor.died(model)
        except (RuntimeFault, TimeoutError) as fault:
            log.info("no warm prefix: %s", str(fault) or "the engine takes its time")

    async def settle(self, write: Callable[[OpenSession], Awaitable[None]]) -> None:
        """Retries failed writes before the end of the app; writes texts that fail again into another file (`unsaved`)."""
        for session in self._open.values():
            try:
                await write(session)
            except Refusal as refusal:
                self.unsaved.append(_rescued(session, refusal))

    async def rename(self, session_id: int, title: str) -> None:
        title = clean_text(title).strip()
        if not title:
            raise Refusal(translate("Workbench", "a title needs at least one character"))
        title = UNTITLED if title == shown_title(UNTITLED) else title
        await stored(self._store.rename_session(session_id, title))
        session = self._open.get(session_id)
        if session is not None:
            session.title = title
            self._windows.tell(SessionChanged(session.view()))
        self._windows.tell(SessionsChanged())

    async def trash(self, session_id: int) -> None:
        await stored(self._store.trash_session(session_id))
        self._trashed.add(session_id)
        self._windows.tell(SessionsChanged())

    async def restore(self, session_id: int) -> None:
        await stored(self._store.restore_session(session_id))
        self._trashed.discard(session_id)
        self._windows.tell(SessionsChanged())

    # ---- adapters and tiers ---------------------------------------------------------------------------------------------

    def bring_adapters(self, session: OpenSession) -> None:
        """Loads the adapters of a shown session, in the background."""
        model = self._supervisor.running
        if model is not None and lacks_adapters(session, model):
            self._tasks.start(self.find_tiers(), "bring adapters")

    async def find_tiers(self) -> None:
        """Finds out how much of each shown path the running engine has in memory and in the block file."""
        for session in self._windows.shown():
            if session.id in self._running:
                continue
            before = session.warm, session.stored
            model = self._supervisor.running
            if model is not None and lacks_adapters(session, model):
                try:  # the fingerprint of KV needs loaded adapters; also saves the next answer the wait
                    await self._adapters.adapted(session, model)
                except EngineDiedError:
                    await self._supervisor.died(model)
                except RuntimeFault as fault:  # the next message reports it
                    log.info("the adapters of session %d are not in place: %s", session.id, fault)
            await self.find_warm(session)
            if (session.warm, session.stored) != before:
                self._windows.tell(SessionChanged(session.view()))
                self._windows.refresh_status()


def _rescued(session: OpenSession, refusal: Refusal) -> str:
    """Writes a session's unsaved answer into another file; returns a sentence on where it is.

    If no folder takes it, the text itself follows after an empty line.
    """
    assert session.unsaved is not None  # the write that failed is kept there
    fault, texts = refusal.__cause__ or refusal, session.unsaved.texts
    asked = [turn for turn in session.tree.turns(session.tip) if turn.role == "user"]
    file = write_unsaved(session.title, asked[-1].tip.text if asked else "", texts)
    count = sum(map(len, texts))
    if file is None:
        return translate(
            "Workbench",
            "{0}. The session {1} has only the beginning of the last answer; its {2:,} characters could not be "
            "written elsewhere either: copy them from the details",
        ).format(fault, repr(session.title), count) + "".join(f"\n\n{text}" for text in texts)
    return translate(
        "Workbench",
        "{0}. The session {1} has only the beginning of the last answer; all of its text ({2:,} characters) is in {3}",
    ).format(fault, repr(session.title), count, file)
