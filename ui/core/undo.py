"""What can be taken back and done again, the last first: a history for each session, and one for the list of sessions."""

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
Scope = int | None  # whose history: a session's, or (None) the list's


class Step(Struct, frozen=True):
    """One change: its name for the menu, and how it is taken back and done again."""

    label: str
    scope: Scope
    undo: Work
    redo: Work
    restores: int | None = None  # the session that undo brings back out of the trash
    sessions: tuple[int, ...] = ()  # those of the list that it changes
    waits: bool = False  # changes what is shown: not under an answer
    can_redo: Callable[[], bool] = lambda: True  # asked before it is offered


@dataclass(slots=True)
class History:
    """The steps of one scope, the last one at the end of each list."""

    done: list[Step] = field(default_factory=list)
    undone: list[Step] = field(default_factory=list)


class UndoStack(QObject):
    """Changes of the trees and of the list. Only what is in sight is taken back.

    Args:
        tasks: Runs the steps.
        answering: Whether an answer is in work in the session that is shown.
        parent: Owns it.

    Attributes:
        in_sight: The histories whose changes can be seen now, the one to begin with first.
        turn: Held by what changes a path, so that each such change begins from what the one before it left.
    """

    changed = Signal()
    was_undone = Signal(object)  # Step, when that is over
    was_redone = Signal(object)

    def __init__(self, tasks: Tasks, answering: Callable[[], bool], parent: QObject) -> None:
        super().__init__(parent)
        self._tasks = tasks
        self._answering = answering
        self._histories: defaultdict[Scope, History] = defaultdict(History)
        self.turn = asyncio.Lock()  # steps run one after the other, in the order of the keys
        self.in_sight: Callable[[], tuple[Scope, ...]] = lambda: (None,)

    @property
    def label(self) -> str:
        """What the next undo takes back; "" when there is nothing."""
        return _label(self._offered(_done))

    @property
    def redo_label(self) -> str:
        """What the next redo does again; "" when there is nothing."""
        return _label(self._redone())

    def remember(self, step: Step) -> None:
        history = self._histories[step.scope]
        history.done = [*history.done, step][-MOST_UNDO:]
        history.undone = []  # they began from what is not there any more
        self.changed.emit()

    def forget_restoring(self, session_id: int) -> None:
        """That session was brought back in another way."""
        self._forget(None, lambda step: step.restores == session_id)

    def forget_sessions(self, session_ids: Collection[int]) -> None:
        """They are gone for good, and so is what was done to them."""
        self._forget(None, lambda step: not {*step.sessions, step.restores}.isdisjoint(session_ids))

    def can_undo(self, step: Step) -> bool:
        """Whether that step is in sight and is the last one of its history."""
        return bool(self._offered(_done, step))

    def can_redo(self, step: Step) -> bool:
        """Whether that step is in sight and was taken back last in its history."""
        return bool(self._redone(step))

    def undo(self, only: Step | None = None) -> None:
        """Takes back the last step of what is in sight; given `only`, that one while it can be, and no other."""
        steps = self._offered(_done, only)
        if steps:
            self._begin(steps.pop(), back=True)

    def redo(self, only: Step | None = None) -> None:
        """Does again what was taken back last; given `only`, that step while it can be, and no other."""
        steps = self._redone(only)
        if steps:
            self._begin(steps.pop(), back=False)

    def _offered(self, way: Callable[[History], list[Step]], only: Step | None = None) -> list[Step]:
        """The steps that way of the first history in sight that has any; none while the last one waits for an answer."""
        scopes = (scope for scope in self.in_sight() if only is None or scope == only.scope)
        steps: list[Step] = next((held for scope in scopes if (held := way(self._histories[scope]))), [])
        if steps and only is not None and steps[-1] is not only:
            return []
        return [] if steps and steps[-1].waits and self._answering() else steps

    def _redone(self, only: Step | None = None) -> list[Step]:
        steps = self._offered(_undone, only)
        return steps if steps and steps[-1].can_redo() else []

    def _begin(self, step: Step, *, back: bool) -> None:
        """A step counts as taken before it is over, so that keys pressed meanwhile go on from there."""
        (_undone if back else _done)(self._histories[step.scope]).append(step)
        self.changed.emit()
        self._tasks.run(self._run(step, back=back))

    async def _run(self, step: Step, *, back: bool) -> None:
        """A step that was refused is in neither direction any more: what it began from does not hold."""
        try:
            async with self.turn:
                await (step.undo if back else step.redo)()
        except BaseException:
            self._forget(step.scope, lambda each: each is step)
            raise
        (self.was_undone if back else self.was_redone).emit(step)

    def _forget(self, scope: Scope, gone: Callable[[Step], bool]) -> None:
        history = self._histories[scope]
        history.done, history.undone = ([step for step in way if not gone(step)] for way in (history.done, history.undone))
        self.changed.emit()


def _done(history: History) -> list[Step]:
    return history.done


def _undone(history: History) -> list[Step]:
    return history.undone


def _label(steps: list[Step]) -> str:
    return steps[-1].label if steps else ""
