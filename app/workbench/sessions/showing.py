"""Which session a window shows, and how it is looked at (`ui.port.SessionCommands`); members of `AppWorkbench`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from app.workbench.answers.streaming import Answers
from app.workbench.kv.block_pins import BlockPins
from app.workbench.prompt.vocabulary import Vocabulary
from app.workbench.sessions.branches import prune
from app.workbench.sessions.open_sessions import Sessions
from app.workbench.setup.setups import Setups
from app.workbench.tree.session import OpenSession
from app.workbench.windows import Window, Windows
from ui import Event, SessionChanged, SessionSummary, SessionTrashed, SessionView, ShownElsewhere, translate

BREATH_SECONDS = 0.005


async def breath() -> None:
    """The window has its turn between making what a session shows and showing it: each may take as long as a frame."""
    await asyncio.sleep(BREATH_SECONDS)


class SessionMembers(ABC):
    """The list of sessions, and the one that is shown."""

    vocabulary: Vocabulary
    window: Window
    _windows: Windows
    _sessions: Sessions
    _answers: Answers
    _setups: Setups
    _pins: BlockPins

    @abstractmethod
    def stop(self, session_id: int) -> None:
        """Ends an answer that is being written; what it has said stays."""

    @abstractmethod
    def bring_forward(self, session_id: int) -> bool:
        """Whether another window shows it."""

    @abstractmethod
    def _bring_adapters(self, session: OpenSession) -> None:
        """Loads the adapters of a session, in the background."""

    @abstractmethod
    def _refresh_status(self) -> None:
        """Tells the windows how the engine is."""

    @abstractmethod
    def _tell(self, event: Event) -> None:
        """Tells the windows."""

    async def sessions(self, query: str = "") -> Sequence[SessionSummary]:
        """Pinned first, then the latest."""
        return await self._sessions.summaries(query, self.window)

    async def open_session(self, session_id: int) -> SessionView:
        """Reads a session; no model is needed. One that another window shows is shown there."""
        if self.bring_forward(session_id):
            raise ShownElsewhere(translate("Workbench", "that session is open in another window"))
        with self.window.opening(session_id):
            await self.vocabulary.load()
            session = await self._sessions.show(session_id, self.window)
        self._bring_adapters(session)
        self._refresh_status()
        view, told = session.view(), self.window.told
        await breath()
        return view if self.window.told == told else session.view()

    async def new_session(self) -> SessionView:
        """An empty one."""
        session = await self._sessions.create(self.window)
        await self.vocabulary.load()
        self._refresh_status()
        return session.view()

    async def rename_session(self, session_id: int, title: str) -> None:
        """Another title."""
        await self._sessions.rename(session_id, title)

    async def pin_session(self, session_id: int, pinned: bool) -> None:  # a state, not an option
        """To the top of the list, or back to its day."""
        await self._sessions.pin(session_id, pinned)
        self._pins.changed()

    async def trash_session(self, session_id: int) -> bool:
        """Into the trash; an answer that is being written there is stopped and kept: whether there was one."""
        stopped = session_id in self._answers.running
        self.stop(session_id)
        await self._sessions.trash(session_id)
        other = self._windows.holder(session_id, but=self.window)
        if other is not None:
            other.tell(SessionTrashed(session_id))
        self._pins.changed()
        return stopped

    async def restore_session(self, session_id: int) -> None:
        """Back out of the trash."""
        await self._sessions.restore(session_id)
        self._pins.changed()

    async def show_earlier(self, session_id: int) -> SessionView:
        """Some more of the beginning of a long path."""
        session = self._sessions.opened(session_id)
        await self._sessions.show_earlier(session)
        return session.view()

    async def select(self, session_id: int, node_id: int) -> SessionView:
        """Shows the path through a node."""
        session = self._sessions.opened(session_id)
        self._answers.check_idle(session_id)
        await self._sessions.move(session, node_id)
        view = session.view()
        self._tell(SessionChanged(view))
        self._refresh_status()
        return view

    async def prune(self, session_id: int, node_id: int, start: int, pruned: bool) -> None:  # a state, not an option
        """Hides a branch in the outline and among the variants, or shows it again."""
        session = self._sessions.opened(session_id)
        self._answers.check_idle(session_id)
        await prune(self._setups, session, (node_id, start), self._sessions.move, pruned=pruned)
        self._tell(SessionChanged(session.view()))
        self._refresh_status()
