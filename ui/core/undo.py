"""What can be taken back, the last first."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QObject, Signal

from ui.core.tasks import Tasks

MOST_UNDO = 50


@dataclass(frozen=True, slots=True)
class Undo:
    """One step back: its name for the menu, and what does it."""

    label: str
    work: Callable[[], Coroutine[Any, Any, None]]
    restores: int | None = None  # the session it brings back out of the trash


class UndoStack(QObject):
    """Changes of the tree and of the list. Each has its own way back; nothing is kept of the way itself.

    Args:
        tasks: Runs the steps.
        parent: Owns it.
    """

    changed = Signal()

    def __init__(self, tasks: Tasks, parent: QObject) -> None:
        super().__init__(parent)
        self._tasks = tasks
        self._steps: list[Undo] = []

    @property
    def label(self) -> str:
        """What the next undo takes back; "" when there is nothing."""
        return self._steps[-1].label if self._steps else ""

    def remember(self, step: Undo) -> None:
        self._steps = [*self._steps, step][-MOST_UNDO:]
        self.changed.emit()

    def forget_restoring(self, session_id: int) -> None:
        """That session was brought back in another way."""
        self._steps = [step for step in self._steps if step.restores != session_id]
        self.changed.emit()

    def undo(self) -> None:
        if self._steps:
            step = self._steps.pop()
            self.changed.emit()
            self._tasks.run(step.work())
