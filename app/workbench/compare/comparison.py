"""The path that is shown beside a second model (`ui.port.ComparisonCommands`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.supervisor import Supervisor
from app.workbench.compare.second_engine import SecondEngine
from app.workbench.models.settings import Settings
from app.workbench.models.views import backend_choices, models_here
from app.workbench.sessions.open_sessions import OpenSessions
from app.workbench.setup.adapters import Adapters, values_of
from ui import OnCompared, PathComparison, SecondChoice, WeightsForm, translate

if TYPE_CHECKING:
    from runtime import ModelInfo


class Comparison:
    """Compares paths under the model in use and a second one, whose engine it owns.

    Args:
        supervisor: Has the model in use.
        sessions: The open sessions.
        settings: What models are loaded with.
        adapters: Of a session, brought into either model.
    """

    def __init__(self, supervisor: Supervisor, sessions: OpenSessions, settings: Settings, adapters: Adapters) -> None:
        self._supervisor = supervisor
        self._sessions = sessions
        self._settings = settings
        self._adapters = adapters
        self._second = SecondEngine(supervisor)
        self._comparing = asyncio.Lock()

    async def choices(self, session_id: int) -> Sequence[SecondChoice]:
        """The same model otherwise, and what else is on the shelf."""
        from app.workbench.compare.second_choices import second_choices  # the window opens without it

        entries = await asyncio.to_thread(models_here)
        session = self._sessions.opened(session_id)
        info = None if self._supervisor.running is None else self._supervisor.running.info
        digest = next((entry.fingerprint for entry in entries if entry.name == self._supervisor.source), None) or ""
        return second_choices(
            self._supervisor.source,
            backend_choices(self._supervisor.backend),
            entries,
            values_of(session).adapters,
            dtype="" if info is None else info.dtype,
            weights=_held(info),
            forms=[] if info is None else await asyncio.to_thread(_forms, info, digest),
            set_weights=self._set_weights,
        )

    def _set_weights(self, name: str, backend: str) -> str:
        from app.fitting import forms_under  # the window opens without it

        options = self._settings.options_for(name)
        _plain, *others = forms_under(backend, options) or ("",)
        return options["weights"] if options["weights"] in others else ""

    async def compare(
        self, session_id: int, choice: SecondChoice, progress: OnCompared, *, anyway: bool = False, kl_of_all: bool = False
    ) -> PathComparison:
        """One at a time, whichever window asks; another one that is under way, or being stopped, is waited for."""
        from app.workbench.compare.second_model import Comparing  # the window opens without it

        self._sessions.opened(session_id)
        if self._comparing.locked():
            progress(translate("Workbench", "waiting for another comparison to end"), 0, 0)
        async with self._comparing:
            session = await self._sessions.whole(session_id)
            compare = Comparing(self._supervisor, self._second, self._adapters).compare
            return await compare(session, choice, progress, anyway=anyway, kl_of_all=kl_of_all)

    @property
    def keeps_second(self) -> bool:
        """Whether it stays loaded."""
        return self._second.keeps

    async def keep_second(self, keep: bool) -> None:  # a state, not an option
        """From now on, or not any more; a comparison that is under way goes on."""
        self._second.keeps = keep
        if not keep and not self._comparing.locked():
            await self._second.close()

    async def close(self, within: float | None = None) -> None:
        """Ends the second engine, within 2 s or what is said."""
        await self._second.close(within)


def _held(info: ModelInfo | None) -> str:
    """The form of a model's linear weights."""
    form = "auto" if info is None else str(info.options.get("weights", "auto"))
    return "float32" if form == "auto" else form


def _forms(info: ModelInfo, digest: str) -> list[WeightsForm]:
    """That an engine could hold a model's weights in, with what is known of their cost."""
    from runtime import measured_perplexities, weight_forms

    if info.dtype.rpartition(".")[2] != "float32":
        return []
    costs = {each.weights: str(each) for each in measured_perplexities(digest)}
    return [WeightsForm(form, costs.get(form, "")) for form in weight_forms(info.backend, info.device)]
