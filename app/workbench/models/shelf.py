"""The shelf of models and adapters, searches and downloads from the hub, imports, and the hub's token."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import runtime  # its names are imported at their first use: the window opens without them
from app.supervisor import Supervisor
from app.workbench.background import stoppable
from app.workbench.models.downloads import Downloads
from app.workbench.models.settings import Settings
from app.workbench.models.views import adapter_of, find_of, fit_of, model_of, offer_of, plan_of, server_of, servers_here
from app.workbench.refusals import refused
from app.workbench.windows import Windows
from ui import (
    Bits,
    EngineState,
    FitView,
    GgufPlan,
    HubFind,
    LoadChoice,
    ModelPlan,
    ModelsChanged,
    Offer,
    OnTransfer,
    Refusal,
    ServerModel,
    ShelfModel,
    TokenView,
    in_window,
    translate,
)

if TYPE_CHECKING:
    from runtime import Connection, DownloadPlan, DownloadProgress, Fit, Progress

    OnStep = Callable[[Progress], None]
    OnDownload = Callable[[DownloadProgress], None]

PLANS_KEPT = 8
FOUND = 30  # most results of a search
PROPOSED = 3  # models proposed for a beginning


@dataclass(eq=False, repr=False)
class Shelf:
    """Models and adapters on this machine and on the hub (`ui.port.ShelfCommands`)."""

    _supervisor: Supervisor
    _settings: Settings  # load options of models
    _downloads: Downloads
    _windows: Windows
    _plans: dict[str, DownloadPlan] = field(default_factory=dict, init=False)  # by name, the latest ones

    async def list(self) -> Sequence[ShelfModel]:
        await self._downloads.find()
        source = self._supervisor.source
        entries, adapters, servers = await refused(
            asyncio.to_thread(lambda: (runtime.list_models(), runtime.list_shelf_adapters(), servers_here(source)))
        )
        await self._settings.load()
        own = self._settings.own.of
        return [
            *(model_of(entry, source, own(entry.name)) for entry in entries),
            *(server_of(each, source) for each in servers if "://" not in each.name),
            *map(adapter_of, adapters),
        ]

    async def verify(self, name: str, progress: OnTransfer) -> None:
        await refused(stoppable(partial(_verify, name), lambda step: progress(step.done, step.total)))

    async def remove(self, name: str) -> int:
        if name == self._supervisor.source and self._supervisor.state not in (EngineState.NONE, EngineState.DIED):
            # a model that is being loaded may not have its lock yet
            raise Refusal(translate("Workbench", "{0} is in use here; open another model first").format(name))
        freed = await refused(asyncio.to_thread(_remove, name))  # for a server, deletes only the entry
        await self._settings.own.keep(name, LoadChoice())
        self._windows.tell(ModelsChanged())
        return freed

    async def add_folder(self, path: Path) -> str:
        name = await refused(asyncio.to_thread(lambda: runtime.ModelShelf().add(path).name))
        self._windows.tell(ModelsChanged())
        return name

    async def connect(self, server: ServerModel) -> str:
        """Connects to a server, and adds it to the shelf if it answers."""
        connection, arguments = await refused(asyncio.to_thread(_connection, server))
        return await refused(self._connect(connection, arguments, server.key))

    async def _connect(self, connection: Connection, arguments: dict[str, Any], key: str) -> str:
        """Connects and saves the entry; if cancelled, closes the socket and saves nothing."""
        async with await runtime.connect_async(**arguments) as model:
            info = model.info
        kept_in = await asyncio.to_thread(runtime.keep_connection, connection, key)
        self._windows.tell(ModelsChanged())
        can = ", ".join(info.capabilities)
        said = [translate("Workbench", "{0} is on the list: {1}, {2}").format(connection.name, info.name, can)]
        said += [translate("Workbench", "the key is stored in {0}").format(kept_in)] if kept_in else []
        return ". ".join([*said, *map(in_window, info.warnings)])

    async def plan(self, wanted: str) -> ModelPlan:
        plan = await refused(stoppable(partial(_plan, wanted), lambda _step: None))
        fit = await asyncio.to_thread(_first_fit, plan, None, self._reckoned(plan.name), self._supervisor.backend)
        self._plans[plan.name] = plan
        for old in list(self._plans)[:-PLANS_KEPT]:
            del self._plans[old]
        return plan_of(plan, fit, self._settings.own.of(plan.name).context)

    async def fit(self, plan: ModelPlan, context: int) -> FitView | None:
        held = self._plans.get(plan.name)
        if held is None:
            return None
        found = await asyncio.to_thread(_first_fit, held, context, self._reckoned(held.name), self._supervisor.backend)
        return None if found is None else fit_of(found)

    async def offers(self) -> Sequence[Offer]:
        return await refused(asyncio.to_thread(_offers))

    async def search_hub(self, words: str) -> Sequence[HubFind]:
        return await refused(asyncio.to_thread(_search, words))

    def download(self, wanted: str) -> None:
        self._downloads.begin(wanted)

    async def pause_download(self, repository: str) -> None:
        await self._downloads.pause(repository)

    async def cancel_download(self, repository: str) -> int:
        return await self._downloads.cancel(repository)

    def _reckoned(self, name: str) -> dict[str, Any]:
        """The load options of a model that is not here yet."""
        return {option: value for option, value in self._settings.options_for(name).items() if value is not None}

    # ---- made of other files ----

    async def plan_gguf(self, path: Path) -> GgufPlan:
        return await refused(asyncio.to_thread(_plan_gguf, path))

    async def import_gguf(self, path: Path, progress: OnTransfer, *, keep_quantised: bool) -> str:
        """Converts a GGUF file onto the shelf, in a process of its own."""
        work = partial(_import, path, keep_quantised)
        name = await refused(stoppable(work, lambda step: progress(step.done, step.total)))
        self._windows.tell(ModelsChanged())
        return name

    async def quantise(self, name: str, bits: Bits, progress: OnTransfer) -> str:
        """Makes a quantised copy of a model, in a process of its own."""
        made = await refused(stoppable(partial(_quantise, name, bits), lambda step: progress(step.done, step.total)))
        self._windows.tell(ModelsChanged())
        return made

    async def hub_token(self) -> TokenView:
        """Asks the keychain on a thread, since it may show a prompt."""
        return await refused(asyncio.to_thread(_token))

    async def keep_hub_token(self, token: str) -> TokenView:
        return await refused(asyncio.to_thread(_keep, token))

    async def forget_hub_token(self) -> TokenView:
        return await refused(asyncio.to_thread(_forget))


# ---- on a thread ---------------------------------------------------------------------------------------------------------


def _verify(name: str, progress: OnStep) -> None:
    runtime.ModelShelf().verify(name, progress)


def _remove(name: str) -> int:
    if runtime.find_connection(name) is not None and runtime.forget_connection(name):
        return 0
    return runtime.ModelShelf().remove(name)


def _connection(server: ServerModel) -> tuple[Connection, dict[str, Any]]:
    """The connection, by default named after model and host, and the arguments of `connect_async`."""
    from runtime import Connection, check_connection_name, connect_async  # noqa: F401  # imports HTTP here, not on the loop

    host = server.url.partition("://")[2] or server.url
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", f"{server.model.rpartition('/')[2]}-{host}").strip("-._")[:100]
    connection = Connection(server.name or plain, server.url, server.model or None, server.plain_http)
    check_connection_name(connection.name)
    return connection, {**connection.arguments(), **({"api_key": server.key} if server.key else {})}


def _plan(wanted: str, progress: OnDownload) -> DownloadPlan:
    return runtime.plan_download(wanted, progress)


def _offers() -> list[Offer]:
    here = {
        name
        for entry in runtime.list_models()
        if entry.complete
        for name in (entry.name.partition("@")[0], entry.title, Path(entry.source).name.removesuffix(".gguf"))
    }
    best = {
        model.name for model in (*runtime.fitting(PROPOSED), *(() if here else runtime.catalogue()[:1]))
    }  # on an empty shelf also the smallest one, which is downloaded soonest
    return [offer_of(model, here, best=model.name in best) for model in runtime.catalogue()]


def _search(words: str) -> list[HubFind]:
    here = {name for name, state in runtime.available_backends().items() if state is True}
    return [find_of(model, here) for model in runtime.search_models(words, FOUND)]


def _first_fit(plan: DownloadPlan, context: int | None, options: Mapping[str, Any], backend: str) -> Fit | None:
    """The memory a model needs on the engine that would be chosen; None if unknown."""
    from app.fitting import fits

    if plan.kind == "adapter":
        return None
    found = fits(plan.config, plan.weights, "", plan.backends, context, options=options, prefer=backend)
    return found[0] if found else None


def _plan_gguf(path: Path) -> GgufPlan:
    if path.suffix.lower() != ".gguf":
        raise Refusal(
            translate("Workbench", "{0} is not a GGUF file; a model folder is added with Add folder…").format(path.name)
        )
    plan = runtime.plan_import(path)
    return GgufPlan(path, plan.kept, plan.float32, keeps=plan.keeps, note=plan.note)


def _import(path: Path, keep_quantised: bool, progress: OnStep) -> str:  # as `partial` passes it
    return runtime.import_model(path, None, progress, keep_quantised=keep_quantised).path.name.replace("--", "/")


def _quantise(name: str, bits: Bits, progress: OnStep) -> str:
    return runtime.convert_model(name, bits, None, progress).path.name.replace("--", "/")


def _token() -> TokenView:
    return TokenView(runtime.is_token_kept(), runtime.hub_address(), runtime.token_in_environment())


def _keep(token: str) -> TokenView:
    runtime.keep_token(token)
    return _token()


def _forget() -> TokenView:
    runtime.forget_token()
    return _token()
