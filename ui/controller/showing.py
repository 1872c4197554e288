"""The session that is shown: opened, kept up to date, and asked about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from PySide6.QtCore import QObject, Signal

from ui.core.events import EventQueue
from ui.core.shown import Shown
from ui.core.tasks import Tasks
from ui.port import Event, SessionView, ShownElsewhere, Workbench

Command = Callable[[int], Coroutine[Any, Any, None]]  # of the session with that id


def in_silence(_words: str) -> None:
    """Drops the words of a refusal: what was refused was not asked for by hand."""


class Showing(QObject):
    """What the parts of the controller have in common.

    Args:
        workbench: The use cases.
        deliver: Takes news, merged per frame.
        parent: Owns it.

    Attributes:
        shown: The session; None before the first is open and once the window closes.
        tasks: Keeps everything that is under way.
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
        self._going_back: asyncio.Task[None] | None = None  # on its way: more of the beginning
        self.closing = False  # the window closes: no other session is shown, whose draft it would take

    # ---- state --------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """An answer is under way in the session shown, or its message is being saved."""
        if self.shown is None:
            return False
        session_id = self.shown.session_id
        return self.shown.running or any(asked(session_id) for asked in self._under_way)

    def watch(self, under_way: Callable[[int], bool]) -> None:
        """Counts as running what `under_way` says of a session."""
        self._under_way.append(under_way)

    def is_shown(self, session_id: int) -> bool:
        return self.shown is not None and self.shown.session_id == session_id

    # ---- asking -------------------------------------------------------------------------------------------------

    def ask(self, command: Command) -> None:
        """Runs a command of the session that is shown, if there is one."""
        if self.shown is not None:
            self.tasks.run(command(self.shown.session_id))

    def ask_latest(self, key: str, command: Command, refused: Callable[[str], None] | None = None) -> None:
        """Likewise; the answer to an earlier one with the same key is not wanted any more."""
        if self.shown is not None:
            self.tasks.latest(key, command(self.shown.session_id), refused)

    def open(self, session_id: int) -> None:
        if self.has_to_open(session_id):
            self.tasks.latest("open", self.open_session(session_id))

    def has_to_open(self, session_id: int) -> bool:
        """Whether another session is shown, or is on its way."""
        return not self.is_shown(session_id) or self.tasks.running("open") is not None

    def new_session(self) -> None:
        self.tasks.latest("open", self.open_new())

    def show_earlier(self) -> None:
        """Asks for more of the beginning of a long path, where there is more."""
        waiting = self._going_back is not None and not self._going_back.done()
        if self.shown is not None and self.shown.view.earlier and not waiting:
            self._going_back = self.tasks.run(self._show_earlier(self.shown.session_id))

    # ---- showing ------------------------------------------------------------------------------------------------

    async def open_session(self, session_id: int) -> None:
        """Reads a session and shows it; one that another window shows comes to the front there."""
        with suppress(ShownElsewhere):
            self.show_answer(await self.workbench.sessions.open(session_id))

    async def open_new(self) -> None:
        self.show_answer(await self.workbench.sessions.new())

    def show_answer(self, view: SessionView) -> None:
        """Shows a view that a command returned: news still queued is older and already part of it."""
        self.events.flush()
        self.show(view)

    def show(self, view: SessionView) -> None:
        """Shows a view that news brought."""
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
