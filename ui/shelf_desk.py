"""What the session list asks of the workbench about folders, tags, the order by hand and the trash."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from PySide6.QtCore import QObject, Signal

from ui.port import Workbench
from ui.tasks import Tasks


class ShelfDesk(QObject):
    """Part of `Desk`: each command is carried out, then the list is asked for again.

    Args:
        workbench: The use cases.
        tasks: Runs them.
        list_again: Shows the list as it is then.
        parent: Owns it.
    """

    folder_made = Signal(int)

    def __init__(
        self, workbench: Workbench, tasks: Tasks, list_again: Callable[[], Coroutine[Any, Any, None]], parent: QObject
    ) -> None:
        super().__init__(parent)
        self._workbench, self._tasks, self._list_again = workbench, tasks, list_again

    def tag(self, session_id: int, tags: Sequence[str]) -> None:
        """These tags and no others."""
        self._run(self._workbench.tag_session(session_id, tags))

    def arrange(self, session_ids: Sequence[int]) -> None:
        """A group in this order."""
        self._run(self._workbench.arrange_sessions(session_ids))

    def move(self, session_id: int, folder_id: int | None) -> None:
        """Into a folder, or back to the list."""
        self._run(self._workbench.move_session(session_id, folder_id))

    def create_folder(self, name: str, session_id: int | None) -> None:
        """A new folder, for a session where one is named."""
        self._run(self._create(name, session_id))

    def rename_folder(self, folder_id: int, name: str) -> None:
        """Another name."""
        self._run(self._workbench.rename_folder(folder_id, name))

    def remove_folder(self, folder_id: int) -> None:
        """Its sessions stay."""
        self._run(self._workbench.remove_folder(folder_id))

    def empty(self, session_ids: Sequence[int]) -> None:
        """Deletes sessions of the trash for good; the window has asked before."""
        self._run(self._empty(session_ids))

    async def _create(self, name: str, session_id: int | None) -> None:
        folder = await self._workbench.create_folder(name)
        if session_id is not None:
            await self._workbench.move_session(session_id, folder)
        self.folder_made.emit(folder)

    async def _empty(self, session_ids: Sequence[int]) -> None:
        await self._workbench.empty_trash(session_ids)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.run(self._then_list(work))

    async def _then_list(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:  # what was refused is shown as it still is
            await self._list_again()
