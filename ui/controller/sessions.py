"""The session list: searched and kept in order by titles, pins, tags, folders, the order by hand, the trash."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, ParamSpec

from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal

from ui.controller.showing import Showing, in_silence
from ui.core.undo import Step, UndoStack, Work
from ui.port import FolderView, SessionSummary

P = ParamSpec("P")
_BY_TIME = (False, None)  # the group that has no order by hand


class SessionsController(QObject):
    """Part of `Controller`: each command is carried out, then the list is asked for again. What can be taken back, can be.

    Args:
        showing: The session that is shown.
        undo: Takes the ways back.
    """

    listed = Signal(object, object)  # Sequence[SessionSummary], Sequence[FolderView]
    trash_listed = Signal(object)  # Sequence[TrashedSession]: shown instead of the sessions
    trashed = Signal(int, str, bool)  # session, title; whether an answer was stopped for it
    taken = Signal(int, str)  # the session shown, and its title: another window threw it away
    restored = Signal(int)  # not in the trash any more
    folder_made = Signal(int)

    def __init__(self, showing: Showing, undo: UndoStack) -> None:
        super().__init__(showing)
        self._showing, self._undo = showing, undo
        self._workbench, self._tasks = showing.workbench, showing.tasks
        self._query = ""
        self._in_trash = False
        self.rows: dict[int, SessionSummary] = {}  # all, also those a search leaves out: as last read, and as changed since
        self._folders: dict[int, str] = {}  # their names, likewise
        self._answering: set[int] = set()  # sessions, as last listed
        self._unseen: set[int] = set()  # in which an answer has ended since they were shown
        self._thrown: set[int] = set()  # sessions in the trash; one may be on its way to being shown
        self._was_running = False  # in the session shown
        showing.other_shown.connect(self._take_shown)  # before the next one, which speaks of the session shown then
        showing.activity_changed.connect(self._note_activity)
        self._made_again: dict[int, int] = {}  # folders that were removed and brought back: their numbers now

    # ---- the list -----------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Lists what was last asked for, as it is now."""
        self._tasks.latest("list", self._list())

    def search(self, query: str) -> None:
        self._query, self._in_trash = query, False
        self.ask()

    def show_trash(self, shown: bool) -> None:  # a state, not an option
        """Lists the trash instead of the sessions, or the sessions again."""
        self._in_trash = shown
        self.ask()

    @property
    def row_shown(self) -> SessionSummary | None:
        """The line of the session shown; None while it has none."""
        shown = self._showing.shown
        return self.rows.get(shown.session_id) if shown is not None else None

    async def list_all(self) -> Sequence[SessionSummary]:
        """Lists all sessions, for the window's start."""
        sessions = await self._workbench.sessions.list()
        self._take(sessions, sessions, await self._workbench.sessions.folders())
        return sessions

    async def _list(self) -> None:
        if self._in_trash:
            self.trash_listed.emit(await self._workbench.sessions.trashed())
            return
        query, sessions = self._query, await self._workbench.sessions.list()
        found = await self._workbench.sessions.list(query) if query else sessions
        self._take(sessions, found, await self._workbench.sessions.folders())

    def _take(self, sessions: Sequence[SessionSummary], found: Sequence[SessionSummary], folders: Sequence[FolderView]) -> None:
        self.rows = {row.session_id: row for row in sessions}
        answering = {row.session_id for row in sessions if row.answering}
        seen = {row.session_id for row in sessions if row.elsewhere or self._showing.is_shown(row.session_id)}
        self._unseen |= (self._answering - answering) & self.rows.keys() - seen
        self._answering = answering
        self._folders = {folder.folder_id: folder.name for folder in folders}
        self.listed.emit([replace(row, unseen=row.session_id in self._unseen) for row in found], folders)

    def _note_activity(self) -> None:
        self._was_running = self._showing.running

    def _take_shown(self, session_id: int) -> None:
        """Another session is shown: it is seen; an answer in the one before goes on out of sight."""
        if session_id in self._unseen or self._was_running:
            self._unseen.discard(session_id)
            self.ask()
        if session_id in self._thrown:  # meanwhile
            self._tasks.run(self._leave(session_id))

    # ---- titles, tags and folders -------------------------------------------------------------------------------

    def rename(self, session_id: int, title: str) -> None:
        """Gives a session another title; can be undone."""
        row = self.rows.get(session_id)
        rename, label = self._workbench.sessions.rename, self.tr("Rename")
        step = (
            None
            if row is None
            else self._step(label, partial(rename, session_id, row.title), partial(rename, session_id, title), session_id)
        )
        self._note(session_id, title=title)
        self._run(step, rename, session_id, title)

    def rename_by_model(self, session_id: int) -> None:
        """Asks the model for a title; can be undone."""
        self._tasks.latest("title", self._rename_by_model(session_id))

    def title_new(self, session_id: int) -> None:
        """Likewise, where the settings say so: it was not asked for, so a refusal is not shown."""
        if self._workbench.settings.values.titles == "model":
            self._tasks.run(self._title_new(session_id), in_silence)

    async def _title_new(self, session_id: int) -> None:
        await self._list()  # it may not be listed yet with the title that it has now
        before = self.rows.get(session_id)
        title = await self._workbench.answers.suggest_title(session_id)
        now = self.rows.get(session_id)
        if before is not None and now is not None and now.title == before.title:  # else it has one by hand
            self.rename(session_id, title)

    async def _rename_by_model(self, session_id: int) -> None:
        self.rename(session_id, await self._workbench.answers.suggest_title(session_id))

    def pin(self, session_id: int, pinned: bool) -> None:  # a state, not an option
        """To the top of the list, or back to its day; can be undone."""
        row, sessions = self.rows.get(session_id), self._workbench.sessions
        folder = row.folder_id if row is not None else None
        by_hand = (each for each in self.rows.values() if each.folder_id == folder and (each.pinned or folder is not None))
        order = [each.session_id for each in by_hand]

        async def back() -> None:
            await sessions.pin(session_id, not pinned)
            if session_id in order:
                await sessions.arrange(order)  # where it stood among them

        label = self.tr("Pin") if pinned else self.tr("Unpin")
        step = None if row is None else self._step(label, back, partial(sessions.pin, session_id, pinned), session_id)
        self._note(session_id, pinned=pinned)
        self._run(step, sessions.pin, session_id, pinned)

    def pin_shown(self) -> None:
        if self.row_shown is not None:
            self.pin(self.row_shown.session_id, not self.row_shown.pinned)

    def tag(self, session_id: int, tags: Sequence[str]) -> None:
        """These tags and no others; can be undone."""
        row = self.rows.get(session_id)
        tag, label = self._workbench.sessions.tag, self.tr("Tags")
        step = (
            None
            if row is None
            else self._step(label, partial(tag, session_id, row.tags), partial(tag, session_id, tags), session_id)
        )
        self._note(session_id, tags=tuple(tags))
        self._run(step, tag, session_id, tags)

    def arrange(self, session_ids: Sequence[int]) -> None:
        """A group in another order; those of it that a search leaves out keep their places. Can be undone."""
        arrange = self._workbench.sessions.arrange
        groups = {_group(self.rows[each]) for each in session_ids if each in self.rows} - {_BY_TIME}
        before = [each for each, row in self.rows.items() if _group(row) in groups and not row.is_sample]
        moved = iter([each for each in session_ids if each in before])  # one may just have left its group
        after = [next(moved) if each in session_ids else each for each in before]
        step = self._step(self.tr("Reorder"), partial(arrange, before), partial(arrange, after), *before)
        self._run(step, arrange, after)

    def move(self, session_id: int, folder_id: int | None) -> None:
        """Into a folder, or back to the list; can be undone."""
        row = self.rows.get(session_id)
        move, label = self._move, self.tr("Move to Folder")
        before = None if row is None else row.folder_id
        step = (
            None
            if row is None
            else self._step(label, partial(move, session_id, before), partial(move, session_id, folder_id), session_id)
        )
        self._note(session_id, folder_id=folder_id)
        self._run(step, self._workbench.sessions.move, session_id, folder_id)

    def create_folder(self, name: str, session_id: int | None) -> None:
        """A new folder, for a session where one is named; can be undone."""
        self._run(None, self._create_folder, name, session_id)

    def rename_folder(self, folder_id: int, name: str) -> None:
        """Another name; can be undone."""
        before = self._folders.get(folder_id)
        rename, label = self._rename_folder, self.tr("Rename Folder")
        step = (
            None if before is None else self._step(label, partial(rename, folder_id, before), partial(rename, folder_id, name))
        )
        self._folders[folder_id] = name
        self._run(step, self._workbench.sessions.rename_folder, folder_id, name)

    def remove_folder(self, folder_id: int) -> None:
        """Its sessions stay; can be undone."""
        self._run(None, self._remove_folder, folder_id)

    async def _create_folder(self, name: str, session_id: int | None) -> None:
        before = self.rows[session_id].folder_id if session_id in self.rows else None
        folder = await self._workbench.sessions.create_folder(name)
        if session_id is not None:
            await self._workbench.sessions.move(session_id, folder)

        async def back() -> None:
            if session_id is not None:
                await self._move(session_id, before)
            await self._workbench.sessions.remove_folder(self._now(folder) or folder)

        async def again() -> None:
            self._made_again[self._now(folder) or folder] = made = await self._workbench.sessions.create_folder(name)
            if session_id is not None:
                await self._workbench.sessions.move(session_id, made)

        self._undo.remember(self._step(self.tr("New Folder"), back, again, *([] if session_id is None else [session_id])))
        self.folder_made.emit(folder)

    async def _remove_folder(self, folder_id: int) -> None:
        everything = await self._workbench.sessions.list()  # a search may have left some of them out of the list
        held = [row.session_id for row in everything if row.folder_id == folder_id]
        name = self._folders.get(folder_id, self.tr("New folder"))
        await self._workbench.sessions.remove_folder(folder_id)

        async def back() -> None:
            self._made_again[self._now(folder_id) or folder_id] = made = await self._workbench.sessions.create_folder(name)
            for session_id in held:
                await self._workbench.sessions.move(session_id, made)

        async def again() -> None:
            await self._workbench.sessions.remove_folder(self._now(folder_id) or folder_id)

        self._undo.remember(self._step(self.tr("Remove Folder"), back, again, *held))

    async def _move(self, session_id: int, folder_id: int | None) -> None:
        await self._workbench.sessions.move(session_id, self._now(folder_id))

    async def _rename_folder(self, folder_id: int, name: str) -> None:
        await self._workbench.sessions.rename_folder(self._now(folder_id) or folder_id, name)

    def _now(self, folder_id: int | None) -> int | None:
        """The folder that once had that number."""
        while folder_id in self._made_again:
            folder_id = self._made_again[folder_id]
        return folder_id

    def _note(self, session_id: int, **changes: Any) -> None:
        """Applies a change to the row before it is listed again, so that the next undo step starts from it."""
        if session_id in self.rows:
            self.rows[session_id] = replace(self.rows[session_id], **changes)

    def _step(self, label: str, undo: Work, redo: Work, *sessions: int) -> Step:
        return Step(label, None, self._listing(undo), self._listing(redo), sessions=sessions)

    def _listing(self, work: Work) -> Work:
        """The same, then lists what came of it."""

        async def run() -> None:
            try:
                await work()
            finally:  # what was refused is shown as it still is
                await self._list()

        return run

    def _run(
        self, step: Step | None, command: Callable[P, Coroutine[Any, Any, object]], *arguments: P.args, **named: P.kwargs
    ) -> None:
        async def work() -> None:
            await command(*arguments, **named)
            if step is not None:
                self._undo.remember(step)

        self._tasks.run(self._listing(work)())

    # ---- the trash ----------------------------------------------------------------------------------------------

    def trash(self, session_id: int) -> None:
        """A listed session goes into the trash. Can be undone."""
        row = self.rows.get(session_id)
        if row is not None:
            self._tasks.run(self._trash(session_id, row.title))

    def trash_shown(self) -> None:
        """The session shown, likewise."""
        if self._showing.shown is not None:
            self.trash(self._showing.shown.session_id)

    def restore(self, session_id: int) -> None:
        """Takes a session out of the trash again, whatever has been done since."""
        self._undo.forget_restoring(session_id)
        self._tasks.run(self._restore(session_id))

    def forget_trashed(self, session_id: int) -> None:
        """Another window took it out of the trash: that is not offered any more."""
        self._undo.forget_restoring(session_id)
        self._thrown.discard(session_id)
        self.restored.emit(session_id)

    def empty(self, session_ids: Sequence[int]) -> None:
        """Deletes sessions of the trash for good; the window has asked before."""
        self.forget(session_ids)
        self._run(None, self._workbench.sessions.empty_trash, session_ids)

    def forget(self, session_ids: Sequence[int]) -> None:
        """They are deleted for good, here or in another window: nothing that was done to them can be undone."""
        self._undo.forget_sessions(session_ids)
        for session_id in session_ids:
            self.restored.emit(session_id)

    async def _trash(self, session_id: int, title: str) -> None:
        await self._throw(session_id, title)
        back, again = partial(self._restore, session_id), partial(self._throw, session_id, title)
        self._undo.remember(Step(self.tr("Move to Trash"), None, back, again, restores=session_id))

    async def _throw(self, session_id: int, title: str) -> None:
        stopped = await self._workbench.sessions.trash(session_id)
        self._thrown.add(session_id)
        self.trashed.emit(session_id, title, stopped)
        await self._list()
        await self._leave(session_id)

    def leave(self, session_id: int) -> None:
        """Another window threw that session away."""
        self._thrown.add(session_id)
        shown = self._showing.shown
        if shown is not None and shown.session_id == session_id:
            self.taken.emit(session_id, shown.view.title)
        self._tasks.run(self._leave(session_id))

    async def _leave(self, session_id: int) -> None:
        """Shows the next session, unless another one was opened already."""
        rest = [row for row in await self._workbench.sessions.list() if not row.elsewhere]
        if self._showing.is_shown(session_id) and self._tasks.running("open") is None:
            if rest:
                self._showing.open(rest[0].session_id)
            else:
                self._showing.new_session()

    async def _restore(self, session_id: int) -> None:
        await self._workbench.sessions.restore(session_id)
        self._thrown.discard(session_id)
        self.restored.emit(session_id)
        await self._list()
        self._showing.open(session_id)


def _group(row: SessionSummary) -> tuple[bool, int | None]:
    """Where it stands: among the pinned ones, in a folder, or by its time."""
    return row.pinned, None if row.pinned else row.folder_id
