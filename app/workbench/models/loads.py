"""The workbench's members about loading single models and making them (`ui.port.LoadCommands`); the hub's token."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.supervisor import Supervisor
from app.workbench.background import stoppable
from app.workbench.models.settings import SettingsKeeper
from app.workbench.models.views import fit_of
from app.workbench.refusals import refused
from ui import (
    Bits,
    Event,
    GgufPlan,
    LoadChoice,
    LoadPlan,
    ModelsChanged,
    OnTransfer,
    Refusal,
    TokenView,
    WeightsForm,
    translate,
)

if TYPE_CHECKING:
    from runtime import Fit, Progress, ShelfEntry

    OnStep = Callable[[Progress], None]


class LoadMembers(ABC):
    """What `ui.port.LoadCommands` promises; members of `AppWorkbench`."""

    supervisor: Supervisor
    _settings: SettingsKeeper

    @abstractmethod
    def _tell(self, event: Event) -> None:
        """Tells the window."""

    @abstractmethod
    async def choose_model(self, source: str) -> None:
        """From the next request on."""

    async def load_plan(self, name: str, choice: LoadChoice | None = None) -> LoadPlan:
        """By the headers of its weights."""
        await self._settings.load()
        chosen = self._settings.own.of(name) if choice is None else choice
        options = {key: value for key, value in self._settings.options_for(name, chosen).items() if value is not None}
        entry, fit, forms = await refused(asyncio.to_thread(_reckon, name, options, self.supervisor.backend))
        values = self._settings.values
        return LoadPlan(
            choice=chosen,
            fit=None if fit is None else fit_of(fit),
            most=entry.context,
            forms=forms,
            set_context=values.context_length,
            set_weights=values.weights,
        )

    async def open_model(self, name: str, choice: LoadChoice) -> None:
        """Kept first: the engine is loaded with it whenever it starts again."""
        await self._settings.load()
        await self._settings.own.keep(name, choice)
        await self.choose_model(name)

    async def remember_context(self, name: str, context: int) -> None:
        """Beside what else was chosen for it."""
        await self._settings.load()
        await self._settings.own.keep(name, replace(self._settings.own.of(name), context=context))
        if name == self.supervisor.source:
            self._settings.pass_on()
        self._tell(ModelsChanged())

    async def plan_gguf(self, path: Path) -> GgufPlan:
        """By its header."""
        return await refused(asyncio.to_thread(_plan_gguf, path))

    async def import_gguf(self, path: Path, progress: OnTransfer, *, keep_quantised: bool) -> str:
        """Converted onto the shelf, in a process of its own."""
        work = partial(_import, path, keep_quantised)
        name = await refused(stoppable(work, lambda step: progress(step.done, step.total)))
        self._tell(ModelsChanged())
        return name

    async def quantise_model(self, name: str, bits: Bits, progress: OnTransfer) -> str:
        """In a process of its own."""
        made = await refused(stoppable(partial(_quantise, name, bits), lambda step: progress(step.done, step.total)))
        self._tell(ModelsChanged())
        return made

    async def hub_token(self) -> TokenView:
        """The keychain is asked on a thread: it may ask its user."""
        return await refused(asyncio.to_thread(_token))

    async def keep_hub_token(self, token: str) -> TokenView:
        """In the system keychain."""
        return await refused(asyncio.to_thread(_keep, token))

    async def forget_hub_token(self) -> TokenView:
        """Out of it."""
        return await refused(asyncio.to_thread(_forget))


# ---- on a thread; what they need of the runtime is loaded there, for the window opens without it --------------------------


def _reckon(name: str, options: Mapping[str, Any], backend: str) -> tuple[ShelfEntry, Fit | None, list[WeightsForm]]:
    """A model, what it takes on the engine that would be chosen, and the forms of its weights there."""
    from app.fitting import fits, forms_under
    from runtime import ModelShelf, measured_perplexities

    shelf = ModelShelf()
    entry = shelf.find(name)
    if not entry.complete or options.get("offload", "none") != "none":  # what does not fit stays on disk
        return entry, None, []
    found = fits(shelf.config(name), entry.weights, entry.dtype, entry.backends, None, options=options, prefer=backend)
    if not found:
        return entry, None, []
    costs = {each.weights: str(each) for each in measured_perplexities(entry.fingerprint or "")}
    return entry, found[0], [WeightsForm(form, costs.get(form, "")) for form in forms_under(found[0].backend, options)]


def _plan_gguf(path: Path) -> GgufPlan:
    from runtime import plan_import

    if path.suffix.lower() != ".gguf":
        raise Refusal(translate("Workbench", "{0} is no GGUF file; a model folder is added with Add folder…").format(path.name))
    plan = plan_import(path)
    return GgufPlan(path, plan.kept, plan.float32, keeps=plan.keeps, note=plan.note)


def _import(path: Path, keep_quantised: bool, progress: OnStep) -> str:  # as `partial` passes it
    from runtime import import_model

    return import_model(path, None, progress, keep_quantised=keep_quantised).path.name.replace("--", "/")


def _quantise(name: str, bits: Bits, progress: OnStep) -> str:
    from runtime import convert_model

    return convert_model(name, bits, None, progress).path.name.replace("--", "/")


def _token() -> TokenView:
    from runtime import hub_address, is_token_kept, token_in_environment

    return TokenView(is_token_kept(), hub_address(), token_in_environment())


def _keep(token: str) -> TokenView:
    from runtime import keep_token

    keep_token(token)
    return _token()


def _forget() -> TokenView:
    from runtime import forget_token

    forget_token()
    return _token()
