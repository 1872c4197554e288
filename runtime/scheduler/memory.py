"""What a workspace asks of whoever keeps the budget."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from runtime.scheduler.workspace import Workspace


class Memory(Protocol):
    """Whom a workspace asks before it takes memory; `runtime.scheduler.room.Room`."""

    def grow(self, workspace: Workspace, count: int, *, states: int, standing: Iterable[int]) -> None:
        """Room for `count` more slots and `states` more recurrent states, or `MemoryBudgetError`.

        Slots that nobody needs may go: all but the paths to `standing` and to where live jobs stand.
        """

    def lend(self, size: int) -> int:
        """Up to `size` bytes for the moment of a copy: what nobody uses gives way; fewer where that is not enough."""

    def give_way(self) -> None:
        """The device itself is full: what nobody uses goes."""
