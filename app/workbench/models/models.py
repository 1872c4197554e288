"""Chooses the model, its engine and its load options (`ui.port.ModelCommands`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

import runtime  # its names are imported at their first use: the window opens without them
from app.supervisor import Supervisor
from app.workbench.answers.answer import RunningAnswers
from app.workbench.background import BackgroundTasks
from app.workbench.models.settings import Settings
from app.workbench.models.views import backend_choices, detail_of, fit_of, place_of, servers_here, title_of
from app.workbench.prompt.vocabulary import Vocabulary
from app.workbench.refusals import refused
from app.workbench.sessions.open_sessions import OpenSessions
from app.workbench.windows import Windows
from runtime import RuntimeFault
from storage import StoreError
from ui import BUSY, BackendChoice, LoadChoice, LoadPlan, ModelChoice, ModelsChanged, Refusal, WeightsForm, translate

log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class Models:
    """Chooses models and loads them (`ui.port.ModelCommands`). A change applies from the next request on."""

    _supervisor: Supervisor  # loads the model
    _settings: Settings  # load options
    _sessions: OpenSessions  # allow retries of failed answers after a change
    _running: RunningAnswers  # the model does not change during an answer
    _vocabulary: Vocabulary  # of the loaded model
    _tasks: BackgroundTasks
    _windows: Windows

    def warm_up(self) -> None:
        """Starts the engine in the background, so that the first answer need not wait for it."""
        self._tasks.start(self._warm_up(), "warm up")

    async def _warm_up(self) -> None:
        try:
            await self._vocabulary.learn(await self._supervisor.model())
            await self._sessions.find_tiers()
        except (RuntimeFault, StoreError) as fault:
            log.warning("the engine did not start: %s", fault)

    async def list(self) -> Sequence[ModelChoice]:
        source = self._supervisor.source
        entries, servers = await asyncio.to_thread(lambda: (runtime.list_models(), servers_here(source)))
        return [
            *(ModelChoice(e.name, self._label(e), detail_of(e), e.name == source, e.last_used) for e in entries),
            *(ModelChoice(c.name, self._server_label(c), place_of(c), c.name == source) for c in servers),
        ]

    def _label(self, entry: runtime.ShelfEntry) -> str:
        """A model's title, preceded by the form of its weights if it runs in another form than its own."""
        running = self._supervisor.running
        if running is None or entry.name != self._supervisor.source or running.info.computed_with == running.info.dtype:
            return entry.title
        return f"{running.info.options['weights']} · {entry.title}"  # in front: a long title is cut at its end

    def _server_label(self, connection: runtime.Connection) -> str:
        """The given name of a model on a server; without one, the name that the server gave."""
        running = self._supervisor.running
        answered = running is not None and connection.name == self._supervisor.source and "://" in connection.name
        return running.info.name if answered and running is not None else title_of(connection)

    async def choose(self, source: str) -> None:
        await self._settings.load()
        await self._change(source=source, options=self._settings.options_for(source))

    def backends(self) -> Sequence[BackendChoice]:
        """The engines that run real models."""
        choices = backend_choices(self._supervisor.backend)
        running = self._supervisor.running
        remote = running is not None and not running.has("kv")  # no engine of this machine is in use
        return [replace(choice, chosen=False) for choice in choices] if remote else choices

    async def choose_backend(self, name: str) -> None:
        await self._change(backend=name)

    async def stop_loading(self) -> None:
        await self._supervisor.stop_loading()

    async def reload(self) -> None:
        await self._change()

    async def grow_context(self) -> None:
        source = self._supervisor.source
        await self._settings.own.keep(source, replace(self._settings.own.of(source), context=None))
        await self._settings.set("context_length", None)
        await self._change(options={"context_length": None})

    async def _change(self, **changes: Any) -> None:
        if len(self._running):
            raise Refusal(translate("Workbench", BUSY))
        await self._supervisor.change(**changes)
        self._windows.tell(ModelsChanged())  # the windows name the model while it loads
        self._sessions.allow_retries()
        self.warm_up()

    # ---- what one model is loaded with --------------------------------------------------------------------------------

    async def load_plan(self, name: str, choice: LoadChoice | None = None) -> LoadPlan:
        """The memory a model needs, from the headers of its weights."""
        await self._settings.load()
        chosen = self._settings.own.of(name) if choice is None else choice
        if await refused(asyncio.to_thread(lambda: runtime.find_connection(name))) is not None:
            return LoadPlan(chosen, None)  # a model on a server needs no memory here
        options = {key: value for key, value in self._settings.options_for(name, chosen).items() if value is not None}
        entry, fit, forms = await refused(asyncio.to_thread(_reckon, name, options, self._supervisor.backend))
        values = self._settings.values
        return LoadPlan(
            choice=chosen,
            fit=None if fit is None else fit_of(fit),
            most=entry.context,
            forms=forms,
            set_context=values.context_length,
            set_weights=values.weights,
        )

    async def open(self, name: str, choice: LoadChoice) -> None:
        """Saves the load choice of a model, then loads it."""
        await self._settings.load()
        await self._settings.own.keep(name, choice)
        await self.choose(name)

    async def remember_context(self, name: str, context: int) -> None:
        """Saves a model's context length in its load choice."""
        await self._settings.load()
        await self._settings.own.keep(name, replace(self._settings.own.of(name), context=context))
        if name == self._supervisor.source:
            self._settings.pass_on()
        self._windows.tell(ModelsChanged())


def _reckon(
    name: str, options: Mapping[str, Any], backend: str
) -> tuple[runtime.ShelfEntry, runtime.Fit | None, list[WeightsForm]]:
    """A model, its memory on the engine that would be chosen, and the forms of its weights there."""
    from app.fitting import fits, forms_under

    shelf = runtime.ModelShelf()
    entry = shelf.find(name)
    if not entry.complete or options.get("offload", "none") != "none":  # with offload, weights that do not fit stay on the disk
        return entry, None, []
    found = fits(shelf.config(name), entry.weights, entry.dtype, entry.backends, None, options=options, prefer=backend)
    if not found:
        return entry, None, []
    costs = {each.weights: str(each) for each in runtime.measured_perplexities(entry.fingerprint or "")}
    return entry, found[0], [WeightsForm(form, costs.get(form, "")) for form in forms_under(found[0].backend, options)]
