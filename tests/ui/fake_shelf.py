"""The part of the fake workbench that is about the list of sessions: folders, tags, order, trash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.ui.fake_base import FakeBase
from ui import FolderView, SessionSummary, SessionView, TrashedSession, TurnStatus


class FakeShelf(FakeBase):
    """Keeps the list in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.trash: set[int] = set()
        self.shelf: dict[int, FolderView] = {}

    async def sessions(self, query: str = "") -> Sequence[SessionSummary]:
        self._note("sessions", query)
        held = [s for s in self.summaries.values() if s.session_id not in self.trash and query.lower() in s.title.lower()]
        return sorted(held, key=lambda s: (not s.pinned, -s.updated))

    async def new_session(self) -> SessionView:
        self._note("new_session")
        view = SessionView(self.new_id(), "", (), ())
        self.views[view.session_id] = view
        return view

    async def rename_session(self, session_id: int, title: str) -> None:
        self._note("rename_session", session_id, title)
        self.summaries[session_id] = replace(self.summaries[session_id], title=title)

    async def pin_session(self, session_id: int, pinned: bool) -> None:
        self._note("pin_session", session_id, pinned)
        self.summaries[session_id] = replace(self.summaries[session_id], pinned=pinned)

    async def trash_session(self, session_id: int) -> bool:
        self._note("trash_session", session_id)
        self.trash.add(session_id)
        turns = self.views[session_id].turns
        return bool(turns) and turns[-1].status is TurnStatus.STREAMING

    async def restore_session(self, session_id: int) -> None:
        self._note("restore_session", session_id)
        self.trash.discard(session_id)

    async def folders(self) -> Sequence[FolderView]:
        return list(self.shelf.values())

    async def create_folder(self, name: str) -> int:
        self._note("create_folder", name)
        folder = FolderView(self.new_id(), name)
        self.shelf[folder.folder_id] = folder
        return folder.folder_id

    async def rename_folder(self, folder_id: int, name: str) -> None:
        self._note("rename_folder", folder_id, name)
        self.shelf[folder_id] = FolderView(folder_id, name)

    async def remove_folder(self, folder_id: int) -> None:
        self._note("remove_folder", folder_id)
        del self.shelf[folder_id]

    async def move_session(self, session_id: int, folder_id: int | None) -> None:
        self._note("move_session", session_id, folder_id)
        self.summaries[session_id] = replace(self.summaries[session_id], folder_id=folder_id)

    async def tag_session(self, session_id: int, tags: Sequence[str]) -> None:
        self._note("tag_session", session_id, *tags)
        self.summaries[session_id] = replace(self.summaries[session_id], tags=tuple(tags))

    async def arrange_sessions(self, session_ids: Sequence[int]) -> None:
        self._note("arrange_sessions", *session_ids)

    async def trashed_sessions(self) -> Sequence[TrashedSession]:
        return [TrashedSession(each, self.summaries[each].title, 30) for each in sorted(self.trash)]

    async def empty_trash(self, session_ids: Sequence[int]) -> int:
        self._note("empty_trash", *session_ids)
        for each in session_ids:
            self.trash.discard(each)
            del self.summaries[each]
        return len(session_ids)
