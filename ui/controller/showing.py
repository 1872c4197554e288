"""The session that is shown: opens it, keeps it up to date, and runs commands for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from PySide6.QtCore import QObject, Signal

from ui.core.events import EventQueue
from ui.core.shown import Shown
from ui.core.tasks import Tasks
from ui.port import Event, SessionView, ShownInOtherWindow, Workbench

Command = Callable[[int], Coroutine[Any, Any, None]]  # gets the id of the session shown
T = TypeVar("T")


def ignore_refusal(_words: str) -> None:
    """Drops a refusal, for commands that no key or click asked for."""


class Showing(QObject):
    """The state that the parts of the controller share.

    Args:
        workbench: The use cases.
        deliver: Called with each event, after merging per frame.
        parent: Owns it.

    Attributes:
        shown: The session shown; None before the first is open and once the window closes.
        tasks: Runs all commands.
    """

    session_shown = Signal(object)  # SessionView: another path, or the same one with other turns
    other_shown = Signal(int)  # right after `session_shown`, where it is another session than before
    activity_changed = Signal()  # an answer began or ended
    refused = Signal(str)

    def __init__(self, workbench: Workbench, deliver: Callable[[Event], None], parent: QObject) -> None:
        super().__init__(parent)
        self.workbench = workbench
        self.tasks = Tasks(self.refused.emit)
        self.events = EventQueue(deliver, self)
        self.shown: Shown | None = None
        self._under_way: list[Callable[[int], bool]] = []
        self._reading_earlier: asyncio.Task[None] | None = None
        self.closing = False  # then no other session is shown, for the draft would go to it

    # ---- state --------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether an answer is under way in the session shown, or its message is being saved."""
        shown = self.shown
        return shown is not None and (shown.running or any(runs(shown.session_id) for runs in self._under_way))

    def watch(self, under_way: Callable[[int], bool]) -> None:
        """Registers a predicate: a session for which it holds counts as running."""
        self._under_way.append(under_way)

    def is_shown(self, session_id: int) -> bool:
        return self.shown is not None and self.shown.session_id == session_id

    # ---- asking -------------------------------------------------------------------------------------------------

    def ask(self, command: Command) -> None:
        """Runs a command for the session shown, if there is one."""
        if self.shown is not None:
            self.tasks.run(command(self.shown.session_id))

    def ask_latest(self, key: str, command: Command, refused: Callable[[str], None] | None = None) -> None:
        """Runs a command for the session shown, and cancels an earlier one with the same key."""
        if self.shown is not None:
            self.tasks.latest(key, command(self.shown.session_id), refused)

    def ask_shown(
        self,
        key: str,
        command: Callable[[int], Awaitable[T]],
        listener: Callable[[T], object],
        refused: Callable[[str], None] | None = None,
    ) -> None:
        """Like `ask_latest`; `listener` gets the result, unless another session is shown by then."""

        async def work(session_id: int) -> None:
            result = await command(session_id)
            if self.is_shown(session_id):
                listener(result)

        self.ask_latest(key, work, refused)

    def open(self, session_id: int) -> None:
        if self.has_to_open(session_id):
            self.tasks.latest("open", self.open_session(session_id))

    def has_to_open(self, session_id: int) -> bool:
        """Whether another session is shown or is about to be."""
        return not self.is_shown(session_id) or self.tasks.running("open") is not None

    def new_session(self) -> None:
        self.tasks.latest("open", self.open_new())

    def show_earlier(self) -> None:
        """Reads more of the beginning of a long path, if there is more."""
        waiting = self._reading_earlier is not None and not self._reading_earlier.done()
        if self.shown is not None and self.shown.view.earlier and not waiting:
            self._reading_earlier = self.tasks.run(self._show_earlier(self.shown.session_id))

    # ---- showing ------------------------------------------------------------------------------------------------

    async def open_session(self, session_id: int) -> None:
        """Reads a session and shows it; if another window shows it, that window comes to the front instead."""
        with suppress(ShownInOtherWindow):
            self.show_answer(await self.workbench.sessions.open(session_id))

    async def open_new(self) -> None:
        self.show_answer(await self.workbench.sessions.new())

    def show_answer(self, view: SessionView) -> None:
        """Shows a view that a command returned, after the queued events, which are older."""
        self.events.flush()
        self.show(view)

    def show(self, view: SessionView) -> None:
        if self.closing:
            return
        other = not self.is_shown(view.session_id)
        self.shown = Shown(view)
        self.session_shown.emit(view)
        if other:
            self.other_shown.emit(view.session_id)
        self.activity_changed.emit()

    async def _show_earlier(self, session_id: int) -> None:
        view = await self.workbench.sessions.show_earlier(session_id)
        if self.is_shown(session_id):
            self.show_answer(view)
