"""The cache of the running model: its view, and the commands to clear it and to pin a path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

if TYPE_CHECKING:
    from ui.controller.controller import Controller


class CacheController(QObject):
    """Part of `Controller`."""

    view_changed = Signal(object)  # CacheView | None
    cleared = Signal(int)  # bytes that were freed
    refused = Signal(str)

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._controller = controller
        self._workbench = controller.workbench

    def refresh(self) -> None:
        shown = self._controller.shown
        self.view_changed.emit(None if shown is None else self._workbench.cache.view(shown.session_id))

    def clear(self) -> None:
        self._controller.ask_latest("cache", self._clear, self.refused.emit)

    def keep(self, keep: bool) -> None:  # a state, not an option
        """Pins the path shown, or unpins it."""
        self._controller.ask_latest("cache", lambda session: self._keep(session, keep=keep), self.refused.emit)

    async def _clear(self, session_id: int) -> None:
        held = self._workbench.cache.view(session_id)
        await self._workbench.cache.clear()
        self.refresh()
        left = self._workbench.cache.view(session_id)
        if held is not None and left is not None:
            self.cleared.emit(max(held.bytes - left.bytes, 0))

    async def _keep(self, session_id: int, *, keep: bool) -> None:
        await self._workbench.cache.keep_path(session_id, keep)
        self.refresh()
