"""How sessions are kept in order: folders, tags, an order by hand, the trash. Part of `AppWorkbench`."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from app.workbench.refusals import stored
from app.workbench.tree.session import shown_title
from runtime import clean_text
from storage import SessionStore
from ui import Event, FolderView, SessionsChanged, TrashedSession

TRASH_DAYS: Final = 30
DAY: Final = 86_400  # seconds


class ShelfMembers(ABC):
    """What `ui.ShelfCommands` promises, over the store; members of `AppWorkbench`."""

    _store: SessionStore

    @abstractmethod
    def _tell(self, event: Event) -> None:
        """Tells the window."""

    async def folders(self) -> Sequence[FolderView]:
        """In their order."""
        return [FolderView(row.id, row.name) for row in await stored(self._store.places.folders())]

    async def create_folder(self, name: str) -> int:
        """An empty one."""
        made = await stored(self._store.places.create_folder(clean_text(name)))
        self._tell(SessionsChanged())
        return made

    async def rename_folder(self, folder_id: int, name: str) -> None:
        """Another name."""
        await self._kept(self._store.places.rename_folder(folder_id, clean_text(name)))

    async def remove_folder(self, folder_id: int) -> None:
        """Its sessions go back to the list."""
        await self._kept(self._store.places.remove_folder(folder_id))

    async def move_session(self, session_id: int, folder_id: int | None) -> None:
        """Into a folder, or back to the list."""
        await self._kept(self._store.places.move(session_id, folder_id))

    async def tag_session(self, session_id: int, tags: Sequence[str]) -> None:
        """These tags and no others."""
        await self._kept(self._store.places.set_tags(session_id, [clean_text(tag) for tag in tags]))

    async def arrange_sessions(self, session_ids: Sequence[int]) -> None:
        """In this order."""
        await self._kept(self._store.places.arrange(session_ids))

    async def trashed_sessions(self) -> Sequence[TrashedSession]:
        """The last thrown away first; each with the days that it stays."""
        rows = await stored(self._store.trashed_sessions())
        now = time.time()
        return [TrashedSession(row.id, shown_title(row.title), _days_left(row.trashed_at or now, now)) for row in rows]

    async def empty_trash(self, session_ids: Sequence[int]) -> int:
        """For good."""
        deleted = await stored(self._store.empty_trash(session_ids))
        self._tell(SessionsChanged())
        return deleted

    async def _kept(self, change: Coroutine[Any, Any, None]) -> None:
        await stored(change)
        self._tell(SessionsChanged())


def _days_left(since: float, now: float) -> int:
    """A clock that was set back since then takes nothing away, and adds nothing."""
    return min(max(math.ceil(TRASH_DAYS - (now - since) / DAY), 0), TRASH_DAYS)
