"""Between the workbench and the popover: one change at a time, each answered by what holds now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from PySide6.QtCore import QObject, Signal

from ui.controller import Controller
from ui.port import AnswerFormat, SessionSetup, Workbench
from ui.port.settings import SetupCommands

MODEL, SYSTEM, SAMPLING, FORM, TOOLS = range(5)

Change = Callable[[SetupCommands, int], Awaitable[SessionSetup]]


class SetupController(QObject):
    """What the session shown is set to.

    Args:
        controller: Knows the session that is shown, and keeps the tasks.
        workbench: The use cases.
    """

    changed = Signal(object)  # SessionSetup: what holds now
    refused = Signal(str)
    format_checked = Signal(object, str)  # the AnswerFormat asked about, and what is wrong with it
    tools_checked = Signal(str, object, str)  # the source asked about, names, what is wrong with it

    def __init__(self, controller: Controller, workbench: Workbench) -> None:
        super().__init__(controller)
        self._controller = controller
        self._workbench = workbench

    def ask(self) -> None:
        shown = self._controller.shown
        if shown is not None:
            self._controller.tasks.latest(
                "setup",
                self.changed_by(lambda setup, session: setup.view(session), shown.session_id),
                self.refused.emit,
            )

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
        self._controller.tasks.latest("check format", self._check_format(answer_format), self.refused.emit)

    def check_tools(self, source: str) -> None:
        """Asks what tools are defined, likewise."""
        self._controller.tasks.latest("check tools", self._check_tools(source), self.refused.emit)

    async def changed_by(self, change: Change, session_id: int) -> None:
        """Carries out a change of a session and tells what holds then; raises its refusal."""
        try:
            setup = await change(self._workbench.setup, session_id)
        except Exception:
            shown = self._controller.shown
            if shown is not None and shown.session_id == session_id:  # the fields go back to what holds
                self.changed.emit(await self._workbench.setup.view(session_id))
            raise
        shown = self._controller.shown
        if shown is not None and setup.session_id == shown.session_id:
            self.changed.emit(setup)

    async def _check_format(self, answer_format: AnswerFormat) -> None:
        self.format_checked.emit(answer_format, await self._workbench.setup.check_format(answer_format))

    async def _check_tools(self, source: str) -> None:
        names, problem = await self._workbench.setup.check_tools(source)
        self.tools_checked.emit(source, names, problem)
