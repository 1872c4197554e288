"""The session list: searched and kept in order by titles, pins, tags, folders, the order by hand, the trash."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ParamSpec

from PySide6.QtCore import QObject, Signal

from ui.desk.showing import Showing
from ui.desk.undo import Undo, UndoStack
from ui.port import SessionSummary

P = ParamSpec("P")


class SessionsDesk(QObject):
    """Part of `Desk`: each command is carried out, then the list is asked for again.

    Args:
        showing: The session that is shown.
        undo: Takes the ways back.
    """

    listed = Signal(object, object)  # Sequence[SessionSummary], Sequence[FolderView]
    trash_listed = Signal(object)  # Sequence[TrashedSession]: shown instead of the sessions
    trashed = Signal(int, str, bool)  # session, title; whether an answer was stopped for it
    restored = Signal(int)  # out of the trash again
    folder_made = Signal(int)

    def __init__(self, showing: Showing, undo: UndoStack) -> None:
        super().__init__(showing)
        self._showing, self._undo = showing, undo
        self._workbench, self._tasks = showing.workbench, showing.tasks
        self._query = ""
        self._in_trash = False

    # ---- the list -----------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Lists what was last asked for, as it is now."""
        self._tasks.latest("list", self._list())

    def search(self, query: str) -> None:
        """Lists the sessions that match."""
        self._query, self._in_trash = query, False
        self.ask()

    def show_trash(self, shown: bool) -> None:  # a state, not an option
        """Lists the trash instead of the sessions, or the sessions again."""
        self._in_trash = shown
        self.ask()

    async def list_all(self) -> Sequence[SessionSummary]:
        """Lists all sessions, for the window's start."""
        sessions = await self._workbench.sessions()
        self.listed.emit(sessions, await self._workbench.folders())
        return sessions

    async def _list(self) -> None:
        if self._in_trash:
            self.trash_listed.emit(await self._workbench.trashed_sessions())
        else:
            self.listed.emit(await self._workbench.sessions(self._query), await self._workbench.folders())

    # ---- titles, tags and folders -------------------------------------------------------------------------------

    def rename(self, session_id: int, title: str) -> None:
        """Gives a session another title."""
        self._run(self._workbench.rename_session, session_id, title)

    def pin(self, session_id: int, pinned: bool) -> None:  # a state, not an option
        """To the top of the list, or back to its day."""
        self._run(self._workbench.pin_session, session_id, pinned)

    def tag(self, session_id: int, tags: Sequence[str]) -> None:
        """These tags and no others."""
        self._run(self._workbench.tag_session, session_id, tags)

    def arrange(self, session_ids: Sequence[int]) -> None:
        """A group in this order."""
        self._run(self._workbench.arrange_sessions, session_ids)

    def move(self, session_id: int, folder_id: int | None) -> None:
        """Into a folder, or back to the list."""
        self._run(self._workbench.move_session, session_id, folder_id)

    def create_folder(self, name: str, session_id: int | None) -> None:
        """A new folder, for a session where one is named."""
        self._run(self._create_folder, name, session_id)

    def rename_folder(self, folder_id: int, name: str) -> None:
        """Another name."""
        self._run(self._workbench.rename_folder, folder_id, name)

    def remove_folder(self, folder_id: int) -> None:
        """Its sessions stay."""
        self._run(self._workbench.remove_folder, folder_id)

    async def _create_folder(self, name: str, session_id: int | None) -> None:
        folder = await self._workbench.create_folder(name)
        if session_id is not None:
            await self._workbench.move_session(session_id, folder)
        self.folder_made.emit(folder)

    def _run(self, command: Callable[P, Coroutine[Any, Any, object]], *arguments: P.args, **named: P.kwargs) -> None:
        async def run() -> None:
            try:
                await command(*arguments, **named)
            finally:  # what was refused is shown as it still is
                await self._list()

        self._tasks.run(run())

    # ---- the trash ----------------------------------------------------------------------------------------------

    def trash(self, session_id: int, title: str) -> None:
        """Into the trash; can be undone."""
        self._tasks.run(self._trash(session_id, title))

    def restore(self, session_id: int) -> None:
        """Takes a session out of the trash again, whatever has been done since."""
        self._undo.forget_restoring(session_id)
        self._tasks.run(self._restore(session_id))

    def empty(self, session_ids: Sequence[int]) -> None:
        """Deletes sessions of the trash for good; the window has asked before."""
        self._run(self._workbench.empty_trash, session_ids)

    async def _trash(self, session_id: int, title: str) -> None:
        stopped = await self._workbench.trash_session(session_id)
        self._undo.remember(Undo(self.tr("Move to Trash"), lambda: self._restore(session_id), session_id))
        self.trashed.emit(session_id, title, stopped)
        await self._list()
        if self._showing.is_shown(session_id):
            rest = await self._workbench.sessions()
            await (self._showing.open_session(rest[0].session_id) if rest else self._showing.open_new())

    async def _restore(self, session_id: int) -> None:
        await self._workbench.restore_session(session_id)
        self.restored.emit(session_id)
        await self._list()
        await self._showing.open_session(session_id)
