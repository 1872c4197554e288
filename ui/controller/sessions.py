"""The session list: search, titles, pins, tags, folders, the manual order and the trash."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec

from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal

from ui.core.tasks import ignore_refusal
from ui.core.undo import UndoStep, Work
from ui.port import FolderView, SessionSummary

if TYPE_CHECKING:
    from ui.controller.controller import Controller

P = ParamSpec("P")
_BY_TIME = (False, None)  # the group that has no manual order


class SessionsController(QObject):
    """Part of `Controller`: each command is carried out, then the list is read again."""

    listed = Signal(object, object)  # Sequence[SessionSummary], Sequence[FolderView]
    trash_listed = Signal(object)  # Sequence[TrashedSession]: shown instead of the sessions
    trashed = Signal(int, str, bool)  # session, title; whether its answer was stopped
    trashed_in_other_window = Signal(int, str)  # the session shown and its title: another window moved it to the trash
    restored = Signal(int)  # not in the trash any more
    folder_made = Signal(int)

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._controller, self._undo = controller, controller.undo_stack
        self._workbench, self._tasks = controller.workbench, controller.tasks
        self._query = ""
        self._lists_trash = False
        self.rows: dict[int, SessionSummary] = {}  # all sessions whatever the search: as last read, with later changes applied
        self._folders: dict[int, str] = {}  # names by id, likewise
        self._answering: set[int] = set()  # sessions, as last listed
        self._unseen: set[int] = set()  # sessions in which an answer has ended since they were shown
        self._trashed_ids: set[int] = set()  # one of them may be about to be shown
        self._was_running = False  # the session shown, as of the last activity
        controller.other_shown.connect(self._take_other)  # first: `_was_running` is still that of the previous session
        controller.activity_changed.connect(self._note_activity)
        self._recreated: dict[int, int] = {}  # the new id of a folder that was removed and restored, by its former id

    # ---- the list -----------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Reads the list again, with the same search or of the trash."""
        self._tasks.latest("list", self._list())

    def search(self, query: str) -> None:
        self._query, self._lists_trash = query, False
        self.ask()

    def show_trash(self, shown: bool) -> None:  # a state, not an option
        """Lists the trash instead of the sessions, or the sessions again."""
        self._lists_trash = shown
        self.ask()

    @property
    def row_shown(self) -> SessionSummary | None:
        """The list entry of the session shown; None while it is not listed."""
        shown = self._controller.shown
        return self.rows.get(shown.session_id) if shown is not None else None

    async def list_all(self) -> Sequence[SessionSummary]:
        """Lists all sessions, for the window's start."""
        sessions = await self._workbench.sessions.list()
        self._show_list(sessions, sessions, await self._workbench.sessions.folders())
        return sessions

    async def _list(self) -> None:
        if self._lists_trash:
            self.trash_listed.emit(await self._workbench.sessions.trashed())
            return
        query, sessions = self._query, await self._workbench.sessions.list()
        found = await self._workbench.sessions.list(query) if query else sessions
        self._show_list(sessions, found, await self._workbench.sessions.folders())

    def _show_list(
        self, sessions: Sequence[SessionSummary], found: Sequence[SessionSummary], folders: Sequence[FolderView]
    ) -> None:
        self.rows = {row.session_id: row for row in sessions}
        answering = {row.session_id for row in sessions if row.answering}
        seen = {row.session_id for row in sessions if row.in_other_window or self._controller.is_shown(row.session_id)}
        self._unseen |= (self._answering - answering) & self.rows.keys() - seen
        self._answering = answering
        self._folders = {folder.folder_id: folder.name for folder in folders}
        self.listed.emit([replace(row, unseen=row.session_id in self._unseen) for row in found], folders)

    def _note_activity(self) -> None:
        self._was_running = self._controller.running

    def _take_other(self, session_id: int) -> None:
        """Lists again if the session was unseen or an answer goes on in the previous one; leaves it if it is in the trash."""
        if session_id in self._unseen or self._was_running:
            self._unseen.discard(session_id)
            self.ask()
        if session_id in self._trashed_ids:  # since it was asked for
            self._tasks.run(self._leave(session_id))

    # ---- titles, tags and folders -------------------------------------------------------------------------------

    def rename(self, session_id: int, title: str) -> None:
        """Gives a session another title; can be undone."""
        self._set(session_id, "title", title, self._workbench.sessions.rename, self.tr("Rename"))

    def rename_by_model(self, session_id: int) -> None:
        """Asks the model for a title; can be undone."""
        self._tasks.latest("title", self._rename_by_model(session_id))

    def title_new(self, session_id: int) -> None:
        """Asks the model for a title, if the settings say so. Refusals are not shown, for no key was pressed for it."""
        if self._workbench.settings.values.titles == "model":
            self._tasks.run(self._title_new(session_id), ignore_refusal)

    async def _title_new(self, session_id: int) -> None:
        await self._list()  # its current title may not be listed yet
        before = self.rows.get(session_id)
        title = await self._workbench.answers.suggest_title(session_id)
        now = self.rows.get(session_id)
        if before is not None and now is not None and now.title == before.title:  # else it was renamed by hand
            self.rename(session_id, title)

    async def _rename_by_model(self, session_id: int) -> None:
        self.rename(session_id, await self._workbench.answers.suggest_title(session_id))

    def pin(self, session_id: int, pinned: bool) -> None:  # a state, not an option
        """Pins a session at the top of the list, or moves it back to its day; can be undone."""
        row, sessions = self.rows.get(session_id), self._workbench.sessions
        folder = row.folder_id if row is not None else None
        by_hand = (each for each in self.rows.values() if each.folder_id == folder and (each.pinned or folder is not None))
        order = [each.session_id for each in by_hand]

        async def back() -> None:
            await sessions.pin(session_id, not pinned)
            if session_id in order:
                await sessions.arrange(order)  # its former place among them

        label = self.tr("Pin") if pinned else self.tr("Unpin")
        step = None if row is None else self._step(label, back, partial(sessions.pin, session_id, pinned), session_id)
        self._apply(session_id, pinned=pinned)
        self._run(step, sessions.pin, session_id, pinned)

    def pin_shown(self) -> None:
        if self.row_shown is not None:
            self.pin(self.row_shown.session_id, not self.row_shown.pinned)

    def tag(self, session_id: int, tags: Sequence[str]) -> None:
        """Replaces the tags of a session; can be undone."""
        self._set(session_id, "tags", tuple(tags), self._workbench.sessions.tag, self.tr("Tags"))

    def arrange(self, session_ids: Sequence[int]) -> None:
        """Reorders a group; sessions of it that a search leaves out keep their places. Can be undone."""
        arrange = self._workbench.sessions.arrange
        groups = {_group(self.rows[each]) for each in session_ids if each in self.rows} - {_BY_TIME}
        before = [each for each, row in self.rows.items() if _group(row) in groups and not row.is_sample]
        moved = iter([each for each in session_ids if each in before])  # another one may just have left its group
        after = [next(moved) if each in session_ids else each for each in before]
        step = self._step(self.tr("Reorder"), partial(arrange, before), partial(arrange, after), *before)
        self._run(step, arrange, after)

    def move(self, session_id: int, folder_id: int | None) -> None:
        """Moves a session into a folder, or (None) back to the list; can be undone."""
        move = self._workbench.sessions.move
        self._set(session_id, "folder_id", folder_id, move, self.tr("Move to Folder"), repeat=self._move)

    def create_folder(self, name: str, session_id: int | None) -> None:
        """Creates a folder, and moves a session into it if one is given; can be undone."""
        self._run(None, self._create_folder, name, session_id)

    def rename_folder(self, folder_id: int, name: str) -> None:
        """Renames a folder; can be undone."""
        before = self._folders.get(folder_id)
        rename, label = self._rename_folder, self.tr("Rename Folder")
        step = (
            None if before is None else self._step(label, partial(rename, folder_id, before), partial(rename, folder_id, name))
        )
        self._folders[folder_id] = name
        self._run(step, self._workbench.sessions.rename_folder, folder_id, name)

    def remove_folder(self, folder_id: int) -> None:
        """Removes a folder; its sessions go back to the list. Can be undone."""
        self._run(None, self._remove_folder, folder_id)

    async def _create_folder(self, name: str, session_id: int | None) -> None:
        before = self.rows[session_id].folder_id if session_id in self.rows else None
        folder = await self._workbench.sessions.create_folder(name)
        if session_id is not None:
            await self._workbench.sessions.move(session_id, folder)

        async def back() -> None:
            if session_id is not None:
                await self._move(session_id, before)
            await self._workbench.sessions.remove_folder(self._current_folder(folder))

        async def again() -> None:
            self._recreated[self._current_folder(folder)] = made = await self._workbench.sessions.create_folder(name)
            if session_id is not None:
                await self._workbench.sessions.move(session_id, made)

        self._undo.remember(self._step(self.tr("New Folder"), back, again, *([] if session_id is None else [session_id])))
        self.folder_made.emit(folder)

    async def _remove_folder(self, folder_id: int) -> None:
        everything = await self._workbench.sessions.list()  # also those that a search leaves out
        held = [row.session_id for row in everything if row.folder_id == folder_id]
        name = self._folders.get(folder_id, self.tr("New folder"))
        await self._workbench.sessions.remove_folder(folder_id)

        async def back() -> None:
            self._recreated[self._current_folder(folder_id)] = made = await self._workbench.sessions.create_folder(name)
            for session_id in held:
                await self._workbench.sessions.move(session_id, made)

        async def again() -> None:
            await self._workbench.sessions.remove_folder(self._current_folder(folder_id))

        self._undo.remember(self._step(self.tr("Remove Folder"), back, again, *held))

    async def _move(self, session_id: int, folder_id: int | None) -> None:
        folder_id = None if folder_id is None else self._current_folder(folder_id)
        await self._workbench.sessions.move(session_id, folder_id)

    async def _rename_folder(self, folder_id: int, name: str) -> None:
        await self._workbench.sessions.rename_folder(self._current_folder(folder_id), name)

    def _current_folder(self, folder_id: int) -> int:
        """The present id of a folder that may have been removed and restored since."""
        while folder_id in self._recreated:
            folder_id = self._recreated[folder_id]
        return folder_id

    def _set(
        self,
        session_id: int,
        name: str,
        value: object,
        command: Callable[[int, Any], Coroutine[Any, Any, None]],
        label: str,
        *,
        repeat: Callable[[int, Any], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """Changes the field `name` of a session by `command`; undo and redo call `repeat`, or else `command`."""
        step, repeat, row = None, repeat or command, self.rows.get(session_id)
        if row is not None:
            undo, redo = (partial(repeat, session_id, each) for each in (getattr(row, name), value))
            step = self._step(label, undo, redo, session_id)
        self._apply(session_id, **{name: value})
        self._run(step, command, session_id, value)

    def _apply(self, session_id: int, **changes: Any) -> None:
        """Applies a change to the row before it is read again, so that the next undo step starts from it."""
        if session_id in self.rows:
            self.rows[session_id] = replace(self.rows[session_id], **changes)

    def _step(self, label: str, undo: Work, redo: Work, *sessions: int) -> UndoStep:
        return UndoStep(label, None, self._then_list(undo), self._then_list(redo), sessions=sessions)

    def _then_list(self, work: Work) -> Work:
        """A command that does `work`, then reads the list again."""

        async def run() -> None:
            try:
                await work()
            finally:  # also after a refusal: fields go back to the stored values
                await self._list()

        return run

    def _run(
        self, step: UndoStep | None, command: Callable[P, Coroutine[Any, Any, object]], *arguments: P.args, **named: P.kwargs
    ) -> None:
        async def work() -> None:
            await command(*arguments, **named)
            if step is not None:
                self._undo.remember(step)

        self._tasks.run(self._then_list(work)())

    # ---- the trash ----------------------------------------------------------------------------------------------

    def trash(self, session_id: int) -> None:
        """Moves a listed session to the trash; can be undone."""
        row = self.rows.get(session_id)
        if row is not None:
            self._tasks.run(self._trash(session_id, row.title))

    def trash_shown(self) -> None:
        if self._controller.shown is not None:
            self.trash(self._controller.shown.session_id)

    def restore(self, session_id: int) -> None:
        """Takes a session out of the trash, whatever was done since."""
        self._undo.forget_restoring(session_id)
        self._tasks.run(self._restore(session_id))

    def forget_trashed(self, session_id: int) -> None:
        """Another window took the session out of the trash: withdraws the offer to do so."""
        self._undo.forget_restoring(session_id)
        self._trashed_ids.discard(session_id)
        self.restored.emit(session_id)

    def empty(self, session_ids: Sequence[int]) -> None:
        """Deletes sessions of the trash for good; the caller has asked for confirmation."""
        self.forget(session_ids)
        self._run(None, self._workbench.sessions.empty_trash, session_ids)

    def forget(self, session_ids: Sequence[int]) -> None:
        """Drops the undo steps of sessions that are deleted for good, here or in another window."""
        self._undo.forget_sessions(session_ids)
        for session_id in session_ids:
            self.restored.emit(session_id)

    async def _trash(self, session_id: int, title: str) -> None:
        await self._move_to_trash(session_id, title)
        back, again = partial(self._restore, session_id), partial(self._move_to_trash, session_id, title)
        self._undo.remember(UndoStep(self.tr("Move to Trash"), None, back, again, restores=session_id))

    async def _move_to_trash(self, session_id: int, title: str) -> None:
        stopped = await self._workbench.sessions.trash(session_id)
        self._trashed_ids.add(session_id)
        self.trashed.emit(session_id, title, stopped)
        await self._list()
        await self._leave(session_id)

    def leave(self, session_id: int) -> None:
        """Another window moved the session to the trash."""
        self._trashed_ids.add(session_id)
        shown = self._controller.shown
        if shown is not None and shown.session_id == session_id:
            self.trashed_in_other_window.emit(session_id, shown.view.title)
        self._tasks.run(self._leave(session_id))

    async def _leave(self, session_id: int) -> None:
        """Shows the next session of the list, unless another one was opened already."""
        rest = [row for row in await self._workbench.sessions.list() if not row.in_other_window]
        if self._controller.is_shown(session_id) and self._tasks.running("open") is None:
            if rest:
                self._controller.open(rest[0].session_id)
            else:
                self._controller.new_session()

    async def _restore(self, session_id: int) -> None:
        await self._workbench.sessions.restore(session_id)
        self._trashed_ids.discard(session_id)
        self.restored.emit(session_id)
        await self._list()
        self._controller.open(session_id)


def _group(row: SessionSummary) -> tuple[bool, int | None]:
    """The group of the list that a session belongs to: (pinned, folder)."""
    return row.pinned, None if row.pinned else row.folder_id
