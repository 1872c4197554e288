"""The path that is shown beside what a second model says of it."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QObject, Signal

from ui.controller.showing import Showing
from ui.port import NoRoomRefusal, SecondChoice

_KEY = "second"


class SecondController(QObject):
    """Part of `Controller`. One comparison at a time; the next one ends it.

    Args:
        showing: The session that is shown.
    """

    menu_ready = Signal(object)  # Sequence[SecondChoice]
    began = Signal(str)  # the second model's label
    progressed = Signal(str, int, int)  # what is done, how much of how much
    compared = Signal(object, bool)  # PathComparison of the session that is shown; whether the second model is kept
    failed = Signal(str, bool)  # why; whether only memory was short

    def __init__(self, showing: Showing) -> None:
        super().__init__(showing)
        self._showing = showing
        self._workbench = showing.workbench
        self._last: SecondChoice | None = None
        self._kl_of_all = False

    def ask_menu(self) -> None:
        self._showing.ask_latest("second menu", self._list)

    def compare(self, choice: SecondChoice, *, anyway: bool = False, kl_of_all: bool = False) -> None:
        self._last, self._kl_of_all = choice, kl_of_all
        self.began.emit(choice.label)
        ask = partial(self._compare, choice=choice, anyway=anyway, kl_of_all=kl_of_all)
        self._showing.ask_latest(_KEY, ask, self._fail)

    def compare_again(self, anyway: bool) -> None:  # as the signal brings it
        if self._last is not None:
            self.compare(self._last, anyway=anyway, kl_of_all=self._kl_of_all)

    def compare_all(self) -> None:
        """The last one once more, with the KL of every token."""
        if self._last is not None:
            self.compare(self._last, anyway=True, kl_of_all=True)  # it was loaded before

    def stop(self) -> None:
        self._showing.tasks.drop(_KEY)

    def keep(self, keep: bool) -> None:  # a state, as the signal brings it
        """Whether the second model stays loaded."""
        self._showing.tasks.run(self._workbench.keep_second(keep))

    async def _list(self, session_id: int) -> None:
        choices = await self._workbench.second_choices(session_id)
        if self._showing.is_shown(session_id):
            self.menu_ready.emit(choices)

    async def _compare(self, session_id: int, *, choice: SecondChoice, anyway: bool, kl_of_all: bool) -> None:
        compare = self._workbench.compare_with
        try:
            found = await compare(session_id, choice, self.progressed.emit, anyway=anyway, kl_of_all=kl_of_all)
        except NoRoomRefusal as refusal:
            self.failed.emit(str(refusal), True)
            return
        if self._showing.is_shown(session_id):
            self.compared.emit(found, self._workbench.keeps_second)

    def _fail(self, words: str) -> None:
        self.failed.emit(words, False)
