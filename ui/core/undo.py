"""Undo and redo: a history for each session, and one for the list of sessions."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct
from PySide6.QtCore import QObject, Signal

from ui.core.tasks import Tasks

MOST_UNDO = 50  # steps of one history

Work = Callable[[], Coroutine[Any, Any, None]]
Scope = int | None  # of a history: a session's id, or None for the list of sessions


class UndoStep(Struct, frozen=True):
    """One change: its name for the menu, and the commands that undo and redo it."""

    label: str
    scope: Scope
    undo: Work
    redo: Work
    restores: int | None = None  # the session that undo takes out of the trash
    sessions: tuple[int, ...] = ()  # sessions of the list that the step changes
    waits: bool = False  # changes the path shown: not possible while an answer is written
    can_redo: Callable[[], bool] = lambda: True  # asked before redo is offered


@dataclass(slots=True)
class UndoHistory:
    """The steps of one scope, the last one at the end of each list."""

    done: list[UndoStep] = field(default_factory=list)
    undone: list[UndoStep] = field(default_factory=list)

    def steps(self, *, back: bool) -> list[UndoStep]:
        """The steps that undo (`back`) or redo takes from."""
        return self.done if back else self.undone


class UndoStack(QObject):
    """The histories of all scopes. Undo and redo take only steps whose effect is in sight.

    Args:
        tasks: Runs the steps.
        answering: Whether an answer is under way in the session shown.
        parent: Owns the stack.

    Attributes:
        in_sight: The scopes whose changes can be seen now, the preferred one first.
        lock: Held by every command that changes a path, so that each starts from the result of the one before.
    """

    changed = Signal()
    was_undone = Signal(object)  # UndoStep, once it has ended
    was_redone = Signal(object)

    def __init__(self, tasks: Tasks, answering: Callable[[], bool], parent: QObject) -> None:
        super().__init__(parent)
        self._tasks = tasks
        self._answering = answering
        self._histories: defaultdict[Scope, UndoHistory] = defaultdict(UndoHistory)
        self.lock = asyncio.Lock()  # steps run one after the other, in the order of the keys
        self.in_sight: Callable[[], tuple[Scope, ...]] = lambda: (None,)

    @property
    def label(self) -> str:
        """The name of the step that the next undo takes; "" if there is none."""
        return _label(self._steps(back=True))

    @property
    def redo_label(self) -> str:
        """The name of the step that the next redo takes; "" if there is none."""
        return _label(self._steps(back=False))

    def remember(self, step: UndoStep) -> None:
        history = self._histories[step.scope]
        history.done = [*history.done, step][-MOST_UNDO:]
        history.undone = []  # their starting point does not exist any more
        self.changed.emit()

    def forget_restoring(self, session_id: int) -> None:
        """Drops the step that would restore a session: it was restored in another way."""
        self._forget(None, lambda step: step.restores == session_id)

    def forget_sessions(self, session_ids: Collection[int]) -> None:
        """Drops all steps of sessions that were deleted for good."""
        self._forget(None, lambda step: not {*step.sessions, step.restores}.isdisjoint(session_ids))

    def can_undo(self, step: UndoStep) -> bool:
        """Whether that step is in sight and is the last one of its history."""
        return bool(self._steps(step, back=True))

    def can_redo(self, step: UndoStep) -> bool:
        """Whether that step is in sight and is the last one of its history that was undone."""
        return bool(self._steps(step, back=False))

    def undo(self, only: UndoStep | None = None) -> None:
        """Undoes the last step in sight; with `only`, that step if it is the last one, and no other."""
        self._take(only, back=True)

    def redo(self, only: UndoStep | None = None) -> None:
        """Redoes the step in sight that was undone last; with `only`, that step if it is that one, and no other."""
        self._take(only, back=False)

    def _steps(self, only: UndoStep | None = None, *, back: bool) -> list[UndoStep]:
        """The steps of the first history in sight that has any; [] if its last one is not `only`, or not possible now."""
        scopes = (scope for scope in self.in_sight() if only is None or scope == only.scope)
        steps: list[UndoStep] = next((held for scope in scopes if (held := self._histories[scope].steps(back=back))), [])
        if not steps or (only is not None and steps[-1] is not only) or (steps[-1].waits and self._answering()):
            return []
        return steps if back or steps[-1].can_redo() else []

    def _take(self, only: UndoStep | None, *, back: bool) -> None:
        """Starts a step. It counts as taken at once, so that keys pressed before it has ended take the next one."""
        steps = self._steps(only, back=back)
        if steps:
            step = steps.pop()
            self._histories[step.scope].steps(back=not back).append(step)
            self.changed.emit()
            self._tasks.run(self._run(step, back=back))

    async def _run(self, step: UndoStep, *, back: bool) -> None:
        """Runs a step; one that is refused is dropped, for its starting point does not hold any more."""
        try:
            async with self.lock:
                await (step.undo if back else step.redo)()
        except BaseException:
            self._forget(step.scope, lambda each: each is step)
            raise
        (self.was_undone if back else self.was_redone).emit(step)

    def _forget(self, scope: Scope, is_dropped: Callable[[UndoStep], bool]) -> None:
        history = self._histories[scope]
        history.done = [step for step in history.done if not is_dropped(step)]
        history.undone = [step for step in history.undone if not is_dropped(step)]
        self.changed.emit()


def _label(steps: list[UndoStep]) -> str:
    return steps[-1].label if steps else ""
