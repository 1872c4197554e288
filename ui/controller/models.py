"""The model in use, the shelf of models, and downloads."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from ui.core.tasks import StoppableTasks, ignore_refusal, tell
from ui.port import Bits, DownloadView, LoadChoice, ModelPlan, Refusal, ServerModel

if TYPE_CHECKING:
    from ui.controller.controller import Controller


class ModelsController(QObject):
    """Part of `Controller`."""

    listed = Signal(object)  # Sequence[ModelChoice]
    menu_ready = Signal(object, object)  # Sequence[ModelChoice], Sequence[BackendChoice], on request
    fit_known = Signal(str, bool)  # source; whether it fits: for each model, after `menu_ready`
    none_here = Signal()  # in place of `menu_ready`, if there are no models
    does_not_fit = Signal(str)  # the name of a chosen model; it was not loaded

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._tasks = controller.tasks
        self._workbench = controller.workbench

    def ask(self) -> None:
        self._tasks.run(self._list())

    def ask_menu(self) -> None:
        self._tasks.latest("models", self._list(menu=True))

    def choose_model(self, source: str) -> None:
        """Uses another model from the next request on, unless it does not fit (`does_not_fit`)."""
        self._tasks.run(self._choose(source))

    def choose_backend(self, name: str) -> None:
        """Uses another engine from the next request on."""
        self._tasks.run(self._workbench.models.choose_backend(name))

    def stop_loading(self) -> None:
        """Stops the loading of the model that is under way."""
        self._tasks.run(self._workbench.models.stop_loading())

    async def _list(self, *, menu: bool = False) -> None:
        models = await self._workbench.models.list()
        self.listed.emit(models)
        if menu and models:
            self.menu_ready.emit(models, self._workbench.models.backends())
            for model in models:
                self.fit_known.emit(model.source, await self.fits(model.source))
        elif menu:
            self.none_here.emit()

    async def fits(self, source: str) -> bool:
        """Whether a model fits into memory; True if that is not known."""
        try:
            plan = await self._workbench.models.load_plan(source)
        except Refusal:  # the same refusal is shown when it is chosen
            return True
        return plan.fit is None or plan.fit.fits

    async def _choose(self, source: str) -> None:
        if await self.fits(source):
            await self.open(source)
        else:
            self.does_not_fit.emit(source)

    async def open(self, source: str, choice: LoadChoice | None = None) -> None:
        """Opens a model, with load options of its own if given; raises `Refusal`."""
        await (self._workbench.models.choose(source) if choice is None else self._workbench.models.open(source, choice))
        await self._list()


class ShelfController(QObject):
    """Part of `Controller`. Emits `refused`, unless a refusal concerns one row and has a signal of its own."""

    listed = Signal(object)  # Sequence[ShelfModel]
    offered = Signal(object)  # Sequence[Offer]
    downloads_changed = Signal(object)  # tuple[DownloadView, ...]
    planned = Signal(object)  # ModelPlan
    plan_refused = Signal(str)
    found = Signal(str, object)  # the search words, Sequence[HubFind]
    search_refused = Signal(str)
    fitted = Signal(object, object)  # ModelPlan, FitView or None
    verifying = Signal(str, int, int)  # name, bytes read, bytes in all
    verified = Signal(str, str)  # name, what is wrong with it
    verify_stopped = Signal(str)
    import_planned = Signal(object)  # GgufPlan
    importing = Signal(int, int)  # done, in all
    import_ended = Signal(str)  # the name on the shelf; "" if it was stopped or refused
    folder_added = Signal(str)  # the model's name on the shelf
    load_planned = Signal(str, object)  # name, LoadPlan
    load_replanned = Signal(str, object)  # likewise, for another choice than the stored one
    context_kept = Signal(str, int)  # name, tokens
    quantising = Signal(str, int, int)  # name, done, in all
    quantised = Signal(str, str)  # name, name of the quantised model
    quantise_ended = Signal(str, str)  # name, why no model was made; "" if it was stopped
    token = Signal(object)  # TokenView
    token_refused = Signal(str)
    server_connected = Signal(str)  # what is known of the server
    server_refused = Signal(str)
    removed = Signal(str, int)  # name, bytes freed
    refused = Signal(str)

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._tasks = controller.tasks
        self._workbench, self._shelf = controller.workbench, controller.workbench.shelf
        self._models = controller.models
        self._running = StoppableTasks(controller.tasks)
        self.downloads: tuple[DownloadView, ...] = ()

    # ---- the shelf ----------------------------------------------------------------------------------------------------

    def ask(self, *, quietly: bool = False) -> None:
        """Lists the shelf; with `quietly`, a refusal is not shown."""
        self._tasks.latest("shelf", self._list(), ignore_refusal if quietly else self.refused.emit)

    def take_downloads(self, downloads: tuple[DownloadView, ...]) -> None:
        self.downloads = downloads
        self.downloads_changed.emit(downloads)

    def open(self, name: str) -> None:
        """Uses another model from the next request on, if it fits, and dismisses the download that brought it."""
        self._tasks.run(self._open_fitting(name), self.refused.emit)

    def plan_load(self, name: str, choice: LoadChoice | None = None) -> None:
        """Asks what loading a model takes, with `choice` or the stored one; cancels an earlier call."""
        planned = partial((self.load_planned if choice is None else self.load_replanned).emit, name)
        self._tasks.latest("plan load", tell(planned, self._workbench.models.load_plan, name, choice), self.refused.emit)

    def open_with(self, name: str, choice: LoadChoice) -> None:
        """Opens a model with these load options, and stores them with it."""
        self._tasks.run(self._open(name, choice), self.refused.emit)

    def remember_context(self, name: str, context: int) -> None:
        """Stores the context length of one model."""
        self._tasks.run(self._remember(name, context), self.refused.emit)

    def quantise(self, name: str, bits: int) -> None:
        self._running.begin(
            f"quantise {name}",
            partial(self._quantise, name, 8 if bits == 8 else 4),
            done=partial(self.quantised.emit, name),
            stopped=partial(self.quantise_ended.emit, name, ""),
            refused=partial(self.quantise_ended.emit, name),
        )

    def verify(self, name: str) -> None:
        self._running.begin(
            f"verify {name}",
            partial(self._shelf.verify, name, partial(self.verifying.emit, name)),
            done=lambda _: self.verified.emit(name, ""),
            stopped=partial(self.verify_stopped.emit, name),
            refused=partial(self.verified.emit, name),
        )

    def stop_verifying(self, name: str) -> None:
        self._running.stop(f"verify {name}")

    def stop_quantising(self, name: str) -> None:
        self._running.stop(f"quantise {name}")

    def remove(self, name: str) -> None:
        self._tasks.run(tell(partial(self.removed.emit, name), self._shelf.remove, name), self.refused.emit)

    def add_folder(self, path: Path) -> None:
        """Puts a model folder on the shelf; it stays where it is."""
        self._tasks.run(tell(self.folder_added.emit, self._shelf.add_folder, path), self.refused.emit)

    def connect_server(self, server: ServerModel) -> None:
        """Connects a model on a server; cancels an earlier call."""
        self._tasks.latest("connect", self._connect(server), self.server_refused.emit)

    def drop_connecting(self) -> None:
        self._tasks.drop("connect")

    def plan_import(self, path: Path) -> None:
        """Reads the header of a GGUF file before an import; cancels an earlier call."""
        self._tasks.latest("plan import", tell(self.import_planned.emit, self._shelf.plan_gguf, path), self.refused.emit)

    def import_gguf(self, path: Path, keep_quantised: bool) -> None:  # as the signal brings it
        self._running.begin(
            "import",
            partial(self._import, path, keep_quantised=keep_quantised),
            done=self.import_ended.emit,
            stopped=partial(self.import_ended.emit, ""),
            refused=self._refuse_import,
        )

    def stop_import(self) -> None:
        self._running.stop("import")

    # ---- the hub ------------------------------------------------------------------------------------------------------

    def plan(self, wanted: str) -> None:
        """Asks the hub about a download; cancels an earlier call."""
        self._tasks.latest("plan", tell(self.planned.emit, self._shelf.plan, wanted), self.plan_refused.emit)

    def drop_questions(self) -> None:
        """Cancels `plan` and `search`."""
        for key in ("plan", "search the hub"):
            self._tasks.drop(key)

    def search(self, words: str) -> None:
        """Searches the hub for models; cancels an earlier call."""
        found = partial(self.found.emit, words)
        self._tasks.latest("search the hub", tell(found, self._shelf.search_hub, words), self.search_refused.emit)

    def fit(self, plan: ModelPlan, context: int) -> None:
        self._tasks.latest("fit", tell(partial(self.fitted.emit, plan), self._shelf.fit, plan, context), self.refused.emit)

    def download(self, wanted: str) -> None:
        self._shelf.download(wanted)

    def pause(self, repository: str) -> None:
        self._tasks.run(self._shelf.pause_download(repository), self.refused.emit)

    def cancel(self, repository: str) -> None:
        self._tasks.run(self._shelf.cancel_download(repository), self.refused.emit)

    # ---- the hub's token ----------------------------------------------------------------------------------------------

    def ask_token(self) -> None:
        self._tasks.latest("token", tell(self.token.emit, self._shelf.hub_token), self.token_refused.emit)

    def keep_token(self, token: str) -> None:
        self._tasks.run(tell(self.token.emit, self._shelf.keep_hub_token, token), self.token_refused.emit)

    def forget_token(self) -> None:
        self._tasks.run(tell(self.token.emit, self._shelf.forget_hub_token), self.token_refused.emit)

    # ---- coroutines ---------------------------------------------------------------------------------------------------

    async def _list(self) -> None:
        self.listed.emit(await self._shelf.list())
        self.offered.emit(await self._shelf.offers())

    async def _open(self, name: str, choice: LoadChoice | None = None) -> None:
        await self._models.open(name, choice)
        for view in self.downloads:
            if view.name == name:
                await self._shelf.cancel_download(view.repository)
        await self._list()

    async def _open_fitting(self, name: str) -> None:
        if await self._models.fits(name):
            await self._open(name)
        else:
            self.load_planned.emit(name, await self._workbench.models.load_plan(name, None))

    async def _connect(self, server: ServerModel) -> None:
        self.server_connected.emit(await self._shelf.connect(server))
        await self._list()

    async def _remember(self, name: str, context: int) -> None:
        await self._workbench.models.remember_context(name, context)
        self.context_kept.emit(name, context)

    async def _quantise(self, name: str, bits: Bits) -> str:
        self.quantising.emit(name, 0, 0)
        return await self._shelf.quantise(name, bits, partial(self.quantising.emit, name))

    async def _import(self, path: Path, *, keep_quantised: bool) -> str:
        self.importing.emit(0, 0)
        return await self._shelf.import_gguf(path, self.importing.emit, keep_quantised=keep_quantised)

    def _refuse_import(self, words: str) -> None:
        self.import_ended.emit("")
        self.refused.emit(words)
