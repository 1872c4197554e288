"""The workbench's members about a second model (`ui.SecondCommands`)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.supervisor import Supervisor
from app.workbench.second.engine import SecondEngine
from app.workbench.sessions import Sessions
from app.workbench.setup.setups import Setups, values_of
from ui import BackendChoice, OnCompared, PathComparison, SecondChoice

if TYPE_CHECKING:
    from runtime import ShelfEntry


class SecondMembers(ABC):
    """See `ui.SecondCommands`."""

    supervisor: Supervisor
    _sessions: Sessions
    _setups: Setups
    _second: SecondEngine
    _comparing: asyncio.Lock

    @abstractmethod
    def backends(self) -> Sequence[BackendChoice]:
        """The engines that are known."""

    async def second_choices(self, session_id: int) -> Sequence[SecondChoice]:
        """The same model otherwise, and what else is on the shelf."""
        from app.workbench.second.choices import second_choices  # the window opens without it

        entries = await asyncio.to_thread(_on_the_shelf)
        session = self._sessions.opened(session_id)
        model = self.supervisor.running
        dtype = "" if model is None else model.info.dtype
        return second_choices(self.supervisor.source, self.backends(), entries, values_of(session).adapters, dtype=dtype)

    async def compare_with(
        self, session_id: int, choice: SecondChoice, progress: OnCompared, *, anyway: bool = False
    ) -> PathComparison:
        """One at a time, whichever window asks; another one that is under way, or being stopped, is waited for."""
        from app.workbench.second.comparing import Comparing  # the window opens without it

        session = self._sessions.opened(session_id)
        if self._comparing.locked():
            progress("waiting for another comparison to end", 0, 0)
        async with self._comparing:
            await self._sessions.read_whole(session_id)
            compare = Comparing(self.supervisor, self._second, self._setups).compare
            return await compare(session, choice, progress, anyway=anyway)

    @property
    def keeps_second(self) -> bool:
        """Whether it stays loaded."""
        return self._second.keeps

    async def keep_second(self, keep: bool) -> None:  # a state, not an option
        """From now on, or not any more; a comparison that is under way goes on."""
        self._second.keeps = keep
        if not keep and not self._comparing.locked():
            await self._second.close()


def _on_the_shelf() -> list[ShelfEntry]:
    from runtime import list_models  # knows every format: loaded here, on the thread

    return list_models()
