"""The workbench's members about the shelf of models and what is fetched for it (`ui.port.ModelCommands`)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.supervisor import Supervisor
from app.workbench.background import stoppable
from app.workbench.models.downloads import Downloads
from app.workbench.models.settings import SettingsKeeper
from app.workbench.models.views import adapter_of, find_of, fit_of, model_of, offer_of, plan_of
from app.workbench.refusals import refused
from app.workbench.sessions.open_sessions import Sessions
from app.workbench.setup.setups import Setups
from ui import (
    EngineState,
    Event,
    FitView,
    HubFind,
    ModelPlan,
    ModelsChanged,
    Offer,
    OnTransfer,
    Refusal,
    SessionSetup,
    ShelfModel,
    translate,
)

if TYPE_CHECKING:
    from runtime import DownloadPlan, DownloadProgress, Fit, Progress, ShelfEntry, ShelvedAdapter

    OnStep = Callable[[Progress], None]
    OnDownload = Callable[[DownloadProgress], None]

PLANS_KEPT = 8
FOUND = 30  # models of a search at most
PROPOSED = 3  # models to begin with


class ModelMembers(ABC):
    """What `ui.port.ModelCommands` promises; members of `AppWorkbench`."""

    supervisor: Supervisor
    _sessions: Sessions
    _setups: Setups
    _downloads: Downloads
    _settings: SettingsKeeper
    _plans: dict[str, DownloadPlan]

    @abstractmethod
    def _tell(self, event: Event) -> None:
        """Tells the window."""

    async def model_shelf(self) -> Sequence[ShelfModel]:
        """Models, then adapters."""
        await self._downloads.find()
        entries, adapters = await asyncio.to_thread(_on_the_shelf)
        await self._settings.load()
        own = self._settings.own.of
        return [*(model_of(entry, self.supervisor.source, own(entry.name)) for entry in entries), *map(adapter_of, adapters)]

    async def verify_model(self, name: str, progress: OnTransfer) -> None:
        """Reads every file once."""
        await refused(stoppable(partial(_verify, name), lambda step: progress(step.done, step.total)))

    async def remove_model(self, name: str) -> int:
        """Deletes one that nobody has loaded."""
        if name == self.supervisor.source and self.supervisor.state not in (EngineState.NONE, EngineState.DIED):
            # it may be on its way: nobody holds it yet
            raise Refusal(translate("Workbench", "{0} is in use here; open another model first").format(name))
        freed = await refused(asyncio.to_thread(_remove, name))
        await self._settings.own.forget(name)
        self._tell(ModelsChanged())
        return freed

    async def add_model_folder(self, path: Path) -> str:
        """A link on the shelf."""
        name = await refused(asyncio.to_thread(_add, path))
        self._tell(ModelsChanged())
        return name

    async def plan_model(self, wanted: str) -> ModelPlan:
        """Asks the hub; nobody hears how far that is."""
        plan = await refused(stoppable(partial(_plan, wanted), lambda _step: None))
        fit = await asyncio.to_thread(_first_fit, plan, None, self._reckoned(plan.name), self.supervisor.backend)
        self._plans[plan.name] = plan
        for old in list(self._plans)[:-PLANS_KEPT]:
            del self._plans[old]
        return plan_of(plan, fit, self._settings.own.of(plan.name).context)

    async def fit(self, plan: ModelPlan, context: int) -> FitView | None:
        """With so many tokens."""
        held = self._plans.get(plan.name)
        if held is None:
            return None
        found = await asyncio.to_thread(_first_fit, held, context, self._reckoned(held.name), self.supervisor.backend)
        return None if found is None else fit_of(found)

    async def offers(self) -> Sequence[Offer]:
        """From the catalogue that comes with Elsewise."""
        return await refused(asyncio.to_thread(_offers))

    async def search_hub(self, words: str) -> Sequence[HubFind]:
        """One question to the hub."""
        return await refused(asyncio.to_thread(_search, words))

    def download(self, wanted: str) -> None:
        """Begins or goes on."""
        self._downloads.begin(wanted)

    async def pause_download(self, repository: str) -> None:
        """What has arrived is kept."""
        await self._downloads.pause(repository)

    async def cancel_download(self, repository: str) -> int:
        """What has arrived is deleted."""
        return await self._downloads.cancel(repository)

    def _reckoned(self, name: str) -> dict[str, Any]:
        """What a model that is not here yet would be loaded with."""
        return {option: value for option, value in self._settings.options_for(name).items() if value is not None}

    async def get_adapter(self, session_id: int, wanted: str) -> SessionSetup:
        """From the shelf, or from the hub."""
        session = self._sessions.opened(session_id)
        here = await asyncio.to_thread(_adapter_here, wanted.strip())
        if here is None:
            task = self._downloads.begin(wanted, adapter=True)
            try:
                fetched = await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.cancelled():
                    raise Refusal(translate("Workbench", "the download was stopped; what has arrived is kept")) from None
                raise
            if not fetched.is_adapter:
                raise Refusal(translate("Workbench", "{0} is a model, no adapter; it is on the shelf").format(fetched.name))
            here = fetched.name, fetched.folder
        name, folder = here
        await self._setups.add_adapter(session, folder, name)
        return self._setups.view(session)


# ---- on a thread; what they need of the runtime is loaded there, for the window opens without it --------------------------


def _on_the_shelf() -> tuple[list[ShelfEntry], list[ShelvedAdapter]]:
    from runtime import list_models, list_shelf_adapters

    return list_models(), list_shelf_adapters()


def _verify(name: str, progress: OnStep) -> None:
    from runtime import ModelShelf

    ModelShelf().verify(name, progress)


def _remove(name: str) -> int:
    from runtime import ModelShelf

    return ModelShelf().remove(name)


def _add(path: Path) -> str:
    from runtime import ModelShelf

    return ModelShelf().add(path).name


def _plan(wanted: str, progress: OnDownload) -> DownloadPlan:
    from runtime import plan_download

    return plan_download(wanted, progress)


def _offers() -> list[Offer]:
    from runtime import catalogue, fitting, list_models

    best = {model.name for model in fitting(PROPOSED)}
    here = {entry.name.partition("@")[0] for entry in list_models() if entry.complete}
    return [offer_of(model, here, best=model.name in best) for model in catalogue()]


def _search(words: str) -> list[HubFind]:
    from runtime import available_backends, search_models

    here = {name for name, state in available_backends().items() if state is True}
    return [find_of(model, here) for model in search_models(words, FOUND)]


def _first_fit(plan: DownloadPlan, context: int | None, options: Mapping[str, Any], backend: str) -> Fit | None:
    """On the engine that would be chosen."""
    from app.fitting import fits

    if plan.kind == "adapter":
        return None
    found = fits(plan.config, plan.weights, "", plan.backends, context, options=options, prefer=backend)
    return found[0] if found else None


def _adapter_here(wanted: str) -> tuple[str, str] | None:
    from runtime import list_shelf_adapters

    found = [each for each in list_shelf_adapters() if wanted in (each.name, each.name.partition("@")[0])]
    return (found[-1].name, str(found[-1].path)) if found else None
