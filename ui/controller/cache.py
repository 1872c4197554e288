"""The cache of the running model: its view, and the commands to clear, pin and check it."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from ui.controller.showing import Showing


class CacheController(QObject):
    """Part of `Controller`.

    Args:
        showing: The session that is shown.
    """

    view_changed = Signal(object)  # CacheView | None
    cleared = Signal(int)  # bytes that were freed
    checked = Signal(object)  # CacheCheck of the path shown
    refused = Signal(str)

    def __init__(self, showing: Showing) -> None:
        super().__init__(showing)
        self._showing = showing
        self._workbench = showing.workbench

    def refresh(self) -> None:
        shown = self._showing.shown
        self.view_changed.emit(None if shown is None else self._workbench.cache.view(shown.session_id))

    def clear(self) -> None:
        self._showing.ask_latest("cache", self._clear, self.refused.emit)

    def keep(self, keep: bool) -> None:  # a state, not an option
        """Pins the path shown, or unpins it."""
        self._showing.ask_latest("cache", lambda session: self._keep(session, keep=keep), self.refused.emit)

    def check(self) -> None:
        check = self._workbench.cache.check_uncached
        self._showing.ask_shown("cache check", check, self.checked.emit, self.refused.emit)

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
