"""The list of sessions as one window sees it: opening, naming, pins, folders, trash (`ui.port.SessionCommands`)."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.workbench.answers.answer import RunningAnswers
from app.workbench.kv.block_pins import BlockPins
from app.workbench.prompt.vocabulary import Vocabulary
from app.workbench.refusals import stored
from app.workbench.sessions.open_sessions import OpenSessions
from app.workbench.tree.session import UNTITLED, shown_title
from app.workbench.windows import OpenWindow, Windows
from runtime import clean_text
from storage import SessionStore
from ui import (
    FolderView,
    Hit,
    SessionRestored,
    SessionsChanged,
    SessionsDeleted,
    SessionSummary,
    SessionTrashed,
    SessionView,
    ShownInOtherWindow,
    TrashedSession,
    WindowWanted,
    translate,
)

TRASH_DAYS: Final = 30
DAY: Final = 86_400  # seconds
PAINT_SECONDS = 0.005


async def let_window_paint() -> None:
    """Waits between building a session's view and showing it: each may take as long as a frame."""
    await asyncio.sleep(PAINT_SECONDS)


@dataclass(eq=False, repr=False)
class SessionList:
    """The list of sessions as one window sees it (`ui.port.SessionCommands`)."""

    _store: SessionStore
    _sessions: OpenSessions
    _running: RunningAnswers  # moving a session into the trash stops its answer
    _vocabulary: Vocabulary  # loaded before a session is shown
    _pins: BlockPins  # updated when a pin changes
    _windows: Windows
    _window: OpenWindow  # the window of this list

    async def list(self, query: str = "") -> Sequence[SessionSummary]:
        """Sessions, pinned ones first, then the latest; empty ones only if shown, named, tagged, or in a folder."""
        rows = await stored(self._store.sessions(query))
        hits = await stored(self._store.search_hits(query)) if query.strip() else {}
        shown = {session.id for session in self._windows.shown()}
        return [
            SessionSummary(
                row.id,
                shown_title(row.title),
                row.updated,
                row.branches,
                row.pinned,
                row.is_sample,
                row.folder_id,
                row.tags,
                in_other_window=self._windows.holder(row.id, but=self._window) is not None,
                answering=row.id in self._running,
                hit=Hit(hit.node_id, hit.before, hit.words, hit.behind) if (hit := hits.get(row.id)) is not None else None,
            )
            for row in rows
            if row.branches or row.id in shown or row.title != UNTITLED or row.folder_id is not None or row.tags
        ]

    async def open(self, session_id: int) -> SessionView:
        """Opens a session; needs no model. If another window shows it, that window comes to the front."""
        if self.bring_forward(session_id):
            raise ShownInOtherWindow(translate("Workbench", "that session is open in another window"))
        with self._window.opening(session_id):
            await self._vocabulary.load()
            session = await self._sessions.show(session_id, self._window)
        self._sessions.bring_adapters(session)
        self._windows.refresh_status()
        view, sent = session.view(), self._window.sent
        await let_window_paint()
        return view if self._window.sent == sent else session.view()

    def bring_forward(self, session_id: int) -> bool:
        """Asks the other window that shows a session to come to the front; returns whether there is one."""
        other = self._windows.holder(session_id, but=self._window)
        if other is not None:
            other.tell(WindowWanted(session_id))
        return other is not None

    async def new(self) -> SessionView:
        session = await self._sessions.create(self._window)
        await self._vocabulary.load()
        self._windows.refresh_status()
        return session.view()

    async def show_earlier(self, session_id: int) -> SessionView:
        session = self._sessions.opened(session_id)
        await self._sessions.show_earlier(session)
        return session.view()

    async def rename(self, session_id: int, title: str) -> None:
        await self._sessions.rename(session_id, title)

    async def pin(self, session_id: int, pinned: bool) -> None:  # a state, not an option
        await self._change(self._store.pin_session(session_id, pinned))
        self._pins.changed()

    async def move(self, session_id: int, folder_id: int | None) -> None:
        await self._change(self._store.places.move(session_id, folder_id))

    async def tag(self, session_id: int, tags: Sequence[str]) -> None:
        await self._change(self._store.places.set_tags(session_id, [clean_text(tag) for tag in tags]))

    async def arrange(self, session_ids: Sequence[int]) -> None:
        await self._change(self._store.places.arrange(session_ids))

    # ---- folders --------------------------------------------------------------------------------------------------------

    async def folders(self) -> Sequence[FolderView]:
        return [FolderView(row.id, row.name) for row in await stored(self._store.places.folders())]

    async def create_folder(self, name: str) -> int:
        made = await stored(self._store.places.create_folder(clean_text(name)))
        self._windows.tell(SessionsChanged())
        return made

    async def rename_folder(self, folder_id: int, name: str) -> None:
        await self._change(self._store.places.rename_folder(folder_id, clean_text(name)))

    async def remove_folder(self, folder_id: int) -> None:
        await self._change(self._store.places.remove_folder(folder_id))

    # ---- the trash ------------------------------------------------------------------------------------------------------

    async def trash(self, session_id: int) -> bool:
        """Moves a session into the trash and stops its answer, which is kept; returns whether one was running."""
        stopped = session_id in self._running
        self._running.stop(session_id)
        await self._sessions.trash(session_id)
        other = self._windows.holder(session_id, but=self._window)
        if other is not None:
            other.tell(SessionTrashed(session_id))
        self._pins.changed()
        return stopped

    async def restore(self, session_id: int) -> None:
        await self._sessions.restore(session_id)
        self._windows.tell(SessionRestored(session_id), but=self._window)
        self._pins.changed()

    async def trashed(self) -> Sequence[TrashedSession]:
        """Sessions in the trash, the latest first, each with the days left."""
        rows = await stored(self._store.trashed_sessions())
        now = time.time()
        return [TrashedSession(row.id, shown_title(row.title), _days_left(row.trashed_at or now, now)) for row in rows]

    async def empty_trash(self, session_ids: Sequence[int]) -> int:
        deleted = await stored(self._store.empty_trash(session_ids))
        self._windows.tell(SessionsDeleted(session_ids), but=self._window)
        self._windows.tell(SessionsChanged())
        return deleted

    async def _change(self, change: Coroutine[Any, Any, None]) -> None:
        await stored(change)
        self._windows.tell(SessionsChanged())


def _days_left(since: float, now: float) -> int:
    """The days left in the trash: 0 to `TRASH_DAYS`, even if the clock was set back."""
    return min(max(math.ceil(TRASH_DAYS - (now - since) / DAY), 0), TRASH_DAYS)
