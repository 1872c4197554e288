"""The model that answers, the shelf of models, and what is fetched for it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from ui.controller.showing import Showing, ignore_refusal
from ui.core.tasks import StoppableTasks, tell
from ui.port import Bits, Download, LoadChoice, ModelPlan, Refusal, Server


class ModelsController(QObject):
    """Part of `Controller`.

    Args:
        showing: Has the tasks.
    """

    listed = Signal(object)  # Sequence[ModelChoice]
    menu_ready = Signal(object, object)  # Sequence[ModelChoice], Sequence[BackendChoice], on request
    fit_known = Signal(str, bool)  # source; whether it fits: told of each after `menu_ready`
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
        self._tasks.run(self._workbench.models.choose_backend(name))

    def stop_loading(self) -> None:
        """Ends the start of the model that is under way."""
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
        """Whether it fits into memory, as far as is known."""
        try:
            plan = await self._workbench.models.load_plan(source)
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
        await (self._workbench.models.choose(source) if choice is None else self._workbench.models.open(source, choice))
        await self._list()


class ShelfController(QObject):
    """Part of `Controller`. What is refused is told by `refused`, unless it belongs to one row.

    Args:
        showing: Has the tasks.
        models: Opens a model.
    """

    listed = Signal(object)  # Sequence[ShelfModel]
    offered = Signal(object)  # Sequence[Offer]
    downloads_changed = Signal(object)  # tuple[Download, ...]
    planned = Signal(object)  # ModelPlan
    plan_refused = Signal(str)
    found = Signal(str, object)  # the words, Sequence[HubFind]
    search_refused = Signal(str)
    fitted = Signal(object, object)  # ModelPlan, FitView or None
    verifying = Signal(str, int, int)  # name, bytes done, of so many
    verified = Signal(str, str)  # name, what is wrong with it
    verify_stopped = Signal(str)
    import_planned = Signal(object)  # GgufPlan
    importing = Signal(int, int)  # done, of so many
    import_ended = Signal(str)  # the name on the shelf; "" where it was stopped or refused
    folder_added = Signal(str)  # its name on the shelf
    load_planned = Signal(str, object)  # name, LoadPlan
    load_replanned = Signal(str, object)  # likewise, for another choice than it is remembered with
    context_kept = Signal(str, int)  # name, tokens
    quantising = Signal(str, int, int)  # name, done, of so many
    quantised = Signal(str, str)  # name, what was made of it
    quantise_ended = Signal(str, str)  # name, why nothing was made; "" where it was stopped
    token = Signal(object)  # TokenView
    token_refused = Signal(str)
    server_connected = Signal(str)  # what is known of it
    server_refused = Signal(str)
    removed = Signal(str, int)  # name, bytes that are free again
    refused = Signal(str)

    def __init__(self, showing: Showing, models: ModelsController) -> None:
        super().__init__(showing)
        self._tasks = showing.tasks
        self._workbench, self._shelf = showing.workbench, showing.workbench.shelf
        self._models = models
        self._running = StoppableTasks(showing.tasks)
        self.downloads: tuple[Download, ...] = ()

    # ---- what is here -------------------------------------------------------------------------------------------------

    def ask(self, *, quietly: bool = False) -> None:
        """Lists what is here; `quietly`: not asked for by hand, and so no refusal is said."""
        self._tasks.latest("shelf", self._list(), ignore_refusal if quietly else self.refused.emit)

    def take_downloads(self, downloads: tuple[Download, ...]) -> None:
        self.downloads = downloads
        self.downloads_changed.emit(downloads)

    def open(self, name: str) -> None:
        """Another model from the next request on, if it fits; a download that brought it is not told of any more."""
        self._tasks.run(self._open_fitting(name), self.refused.emit)

    def plan_load(self, name: str, choice: LoadChoice | None = None) -> None:
        """What loading it takes: so, or as it is remembered with it. An older question is let go."""
        planned = partial((self.load_planned if choice is None else self.load_replanned).emit, name)
        self._tasks.latest(
            "plan load",
            tell(planned, self._workbench.models.load_plan, name, choice),
            self.refused.emit,
        )

    def open_with(self, name: str, choice: LoadChoice) -> None:
        """As `open`, and so from now on."""
        self._tasks.run(self._open(name, choice), self.refused.emit)

    def remember_context(self, name: str, context: int) -> None:
        """It alone is loaded with so many tokens from now on."""
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
        """A folder that stays where it is."""
        self._tasks.run(tell(self.folder_added.emit, self._shelf.add_folder, path), self.refused.emit)

    def connect_server(self, server: Server) -> None:
        """Asks it what it is; an older question is let go."""
        self._tasks.latest("connect", self._connect(server), self.server_refused.emit)

    def drop_connecting(self) -> None:
        self._tasks.drop("connect")

    def plan_import(self, path: Path) -> None:
        """What taking in a GGUF file means; an older question is let go."""
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
        """What fetching it means; an older question is let go."""
        self._tasks.latest("plan", tell(self.planned.emit, self._shelf.plan, wanted), self.plan_refused.emit)

    def drop_questions(self) -> None:
        """Cancels the plan and the search that are under way."""
        for key in ("plan", "search the hub"):
            self._tasks.drop(key)

    def search(self, words: str) -> None:
        """Asks the hub for models by words; an older question is let go."""
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

    # ---- its token ----------------------------------------------------------------------------------------------------

    def ask_token(self) -> None:
        self._tasks.latest("token", tell(self.token.emit, self._shelf.hub_token), self.token_refused.emit)

    def keep_token(self, token: str) -> None:
        self._tasks.run(tell(self.token.emit, self._shelf.keep_hub_token, token), self.token_refused.emit)

    def forget_token(self) -> None:
        self._tasks.run(tell(self.token.emit, self._shelf.forget_hub_token), self.token_refused.emit)

    # ---- how ----------------------------------------------------------------------------------------------------------

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

    async def _connect(self, server: Server) -> None:
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
