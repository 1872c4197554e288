"""Which model answers, on which engine."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from ui.controller.showing import Showing
from ui.port import LoadChoice, Refusal


class ModelsController(QObject):
    """Part of `Controller`.

    Args:
        showing: Has the tasks.
    """

    listed = Signal(object)  # Sequence[ModelChoice]
    menu_ready = Signal(object, object)  # Sequence[ModelChoice], Sequence[BackendChoice], on request
    none_here = Signal()  # in place of a menu without models
    does_not_fit = Signal(str)  # the name of one that was chosen; nothing was done

    def __init__(self, showing: Showing) -> None:
        super().__init__(showing)
        self._tasks = showing.tasks
        self._workbench = showing.workbench

    def ask(self) -> None:
        self._tasks.run(self._list())

    def ask_menu(self) -> None:
        self._tasks.latest("models", self._list(menu=True))

    def choose_model(self, source: str) -> None:
        """Another model from the next request on; one that does not fit waits for a second word."""
        self._tasks.run(self._choose(source))

    def choose_backend(self, name: str) -> None:
        """Another engine from the next request on."""
        self._tasks.run(self._workbench.choose_backend(name))

    async def _list(self, *, menu: bool = False) -> None:
        models = await self._workbench.models()
        self.listed.emit(models)
        if menu and models:
            self.menu_ready.emit(models, self._workbench.backends())
        elif menu:
            self.none_here.emit()

    async def fits(self, source: str) -> bool:
        """Whether it fits into memory, as far as is known."""
        try:
            plan = await self._workbench.load_plan(source)
        except Refusal:  # choosing it says why
            return True
        return plan.fit is None or plan.fit.fits

    async def _choose(self, source: str) -> None:
        if await self.fits(source):
            await self.open(source)
        else:
            self.does_not_fit.emit(source)

    async def open(self, source: str, choice: LoadChoice | None = None) -> None:
        """Opens a model, with its own load options if given; raises `Refusal`."""
        await (self._workbench.choose_model(source) if choice is None else self._workbench.open_model(source, choice))
        await self._list()
