"""How sessions are kept in order: folders, tags, an order by hand, the trash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class FolderView:
    """A folder of the session list."""

    folder_id: int
    name: str


@dataclass(frozen=True, slots=True)
class TrashedSession:
    """One line of the trash."""

    session_id: int
    title: str
    days_left: int  # until it is deleted for good


class ShelfCommands(Protocol):
    """The use cases. Each may raise `Refusal`; what changes the list says `SessionsChanged`."""

    async def folders(self) -> Sequence[FolderView]:
        """All folders, in their order."""

    async def create_folder(self, name: str) -> int:
        """Adds an empty folder; returns its id."""

    async def rename_folder(self, folder_id: int, name: str) -> None:
        """Gives a folder another name."""

    async def remove_folder(self, folder_id: int) -> None:
        """Takes a folder away; its sessions go back to the list."""

    async def move_session(self, session_id: int, folder_id: int | None) -> None:
        """Into a folder, or (None) back to the list."""

    async def tag_session(self, session_id: int, tags: Sequence[str]) -> None:
        """These tags and no others; `#tag` in a search finds them."""

    async def arrange_sessions(self, session_ids: Sequence[int]) -> None:
        """The pinned sessions, or those of a folder, in this order."""

    async def trashed_sessions(self) -> Sequence[TrashedSession]:
        """The trash, the last thrown away first."""

    async def empty_trash(self, session_ids: Sequence[int]) -> int:
        """Deletes these for good, as far as they are in the trash; how many."""
