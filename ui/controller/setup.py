"""The settings of the session shown: changes them and reports the settings then in force."""

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
    """Reads and changes the settings of the session shown."""

    changed = Signal(object)  # SessionSetup now in force
    refused = Signal(str)
    format_checked = Signal(object, str)  # the AnswerFormat that was checked, and what is wrong with it
    tools_checked = Signal(str, object, str)  # the source that was checked, names, what is wrong with it

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._controller = controller
        self._workbench = controller.workbench

    def ask(self) -> None:
        view = partial(self.changed_by, lambda setup, session: setup.view(session))
        self._controller.ask_latest("setup", view, self.refused.emit)

    def change(self, change: Change, refused: Callable[[str], None] | None = None, *, session_id: int | None = None) -> None:
        """Carries out a change; emits `changed` or `refused`.

        Args:
            change: The command.
            refused: Called with the text of a refusal, in place of the signal.
            session_id: The session; None: the one shown.
        """
        shown = self._controller.shown
        if session_id is None and shown is not None:
            session_id = shown.session_id
        if session_id is not None:
            self._controller.tasks.run(self.changed_by(change, session_id), refused or self.refused.emit)

    def check_format(self, answer_format: AnswerFormat) -> None:
        """Checks a format; cancels an earlier check."""
        checked = partial(self.format_checked.emit, answer_format)
        check = tell(checked, self._workbench.setup.check_format, answer_format)
        self._controller.tasks.latest("check format", check, self.refused.emit)

    def check_tools(self, source: str) -> None:
        """Checks the definitions of tools; cancels an earlier check."""
        check = tell(lambda found: self.tools_checked.emit(source, *found), self._workbench.setup.check_tools, source)
        self._controller.tasks.latest("check tools", check, self.refused.emit)

    async def changed_by(self, change: Change, session_id: int) -> None:
        """Carries out a change of a session and emits `changed`; raises its refusal."""
        try:
            setup = await change(self._workbench.setup, session_id)
        except Exception:
            if self._controller.is_shown(session_id):  # the fields go back to the settings in force
                self.changed.emit(await self._workbench.setup.view(session_id))
            raise
        if self._controller.is_shown(setup.session_id):
            self.changed.emit(setup)
