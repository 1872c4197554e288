"""Between the workbench and the popover: one change at a time, each answered by what holds now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from PySide6.QtCore import QObject, Signal

from ui.controller import Controller
from ui.core.tasks import tell
from ui.port import AnswerFormat, SessionSetup
from ui.port.settings import SetupCommands

MODEL, SYSTEM, SAMPLING, FORM, TOOLS = range(5)

Change = Callable[[SetupCommands, int], Awaitable[SessionSetup]]


class SetupController(QObject):
    """What the session shown is set to.

    Args:
        controller: Knows the session that is shown, and keeps the tasks.
    """

    changed = Signal(object)  # SessionSetup: what holds now
    refused = Signal(str)
    format_checked = Signal(object, str)  # the AnswerFormat asked about, and what is wrong with it
    tools_checked = Signal(str, object, str)  # the source asked about, names, what is wrong with it

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._controller = controller
        self._workbench = controller.workbench

    def ask(self) -> None:
        view = partial(self.changed_by, lambda setup, session: setup.view(session))
        self._controller.ask_latest("setup", view, self.refused.emit)

    def change(self, change: Change, refused: Callable[[str], None] | None = None, *, session_id: int | None = None) -> None:
        """Carries out a change; what holds then, or why it was refused, is told.

        Args:
            change: What is wanted.
            refused: Hears why not, in place of everybody.
            session_id: Whose; None: of the session shown.
        """
        shown = self._controller.shown
        if session_id is None and shown is not None:
            session_id = shown.session_id
        if session_id is not None:
            self._controller.tasks.run(self.changed_by(change, session_id), refused or self.refused.emit)

    def check_format(self, answer_format: AnswerFormat) -> None:
        """Asks what is wrong with a form; the answer to an older question is not told."""
        checked = partial(self.format_checked.emit, answer_format)
        check = tell(checked, self._workbench.setup.check_format, answer_format)
        self._controller.tasks.latest("check format", check, self.refused.emit)

    def check_tools(self, source: str) -> None:
        """Asks what tools are defined, likewise."""
        check = tell(lambda found: self.tools_checked.emit(source, *found), self._workbench.setup.check_tools, source)
        self._controller.tasks.latest("check tools", check, self.refused.emit)

    async def changed_by(self, change: Change, session_id: int) -> None:
        """Carries out a change of a session and tells what holds then; raises its refusal."""
        try:
            setup = await change(self._workbench.setup, session_id)
        except Exception:
            if self._controller.is_shown(session_id):  # the fields go back to what holds
                self.changed.emit(await self._workbench.setup.view(session_id))
            raise
        if self._controller.is_shown(setup.session_id):
            self.changed.emit(setup)
