"""The workbench's members about the model and the settings it is loaded with."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.supervisor import Supervisor
from app.workbench.answers.streaming import Answers
from app.workbench.background import Chores
from app.workbench.models.damage import told
from app.workbench.models.settings import SettingsKeeper
from app.workbench.prompt.vocabulary import Vocabulary
from app.workbench.refusals import BUSY, stored
from app.workbench.sessions.open_sessions import Sessions
from app.workbench.setup.setups import Setups
from app.workbench.status import backend_choices, detail_of
from app.workbench.tree.session import OpenSession
from app.workbench.windows import Windows
from runtime import EngineDiedError, RuntimeFault
from storage import SessionStore, StoreError
from ui import AppSettings, BackendChoice, Backup, Event, ModelChoice, Refusal, SessionChanged, SettingsView, translate

if TYPE_CHECKING:
    from runtime import ShelfEntry

log = logging.getLogger(__name__)
HINTS = frozenset({"tokens", "models"})  # what is explained once
HINTS_SETTING = "hints"  # those that were dismissed


class LoadingMembers(ABC):
    """Which model runs, how it is loaded, and what holds for the whole app."""

    supervisor: Supervisor
    vocabulary: Vocabulary
    _store: SessionStore
    _sessions: Sessions
    _setups: Setups
    _windows: Windows
    _answers: Answers
    _settings: SettingsKeeper
    _chores: Chores

    @abstractmethod
    def _tell(self, event: Event) -> None:
        """Tells the window."""

    @abstractmethod
    def _refresh_status(self) -> None:
        """Counters have changed."""

    def warm_up(self) -> None:
        """Starts the engine in the background, so that the first answer need not wait for it."""
        self._chores.start(self._warm_up(), "warm up")

    async def _warm_up(self) -> None:
        try:
            await self.vocabulary.learn(await self.supervisor.model())
            await self._find_tiers()
        except (RuntimeFault, StoreError) as fault:
            log.warning("the engine did not start: %s", fault)

    def _bring_adapters(self, session: OpenSession) -> None:
        """A session is shown whose adapters the engine may not have: soon it has, and what of the path is held is known."""
        model = self.supervisor.running
        if model is not None and self._setups.lacks(session, model):
            self._chores.start(self._find_tiers(), "bring adapters")

    async def _find_tiers(self) -> None:
        """The engine runs now: what of the shown paths it holds, and what of them is in its block file."""
        for session in self._windows.shown():
            if session.id in self._answers.running:
                continue
            before = session.warm, session.stored
            model = self.supervisor.running
            if model is not None and self._setups.lacks(session, model):
                try:  # KV under adapters is filed by their numbers; and who goes on need not wait for them
                    await self._setups.speaker(session, model)
                except EngineDiedError:
                    await self.supervisor.died(model)
                except RuntimeFault as fault:  # who sends a message is told
                    log.info("the adapters of session %d are not in place: %s", session.id, fault)
            await self._sessions.find_warm(session)
            if (session.warm, session.stored) != before:
                self._tell(SessionChanged(session.view()))
                self._refresh_status()

    async def grow_context(self) -> None:
        """All the context that the model has."""
        source = self.supervisor.source
        await self._settings.own.keep(source, replace(self._settings.own.of(source), context=None))
        await self._settings.change("context_length", None)
        await self._change(options={"context_length": None})

    async def models(self) -> Sequence[ModelChoice]:
        """What is on the shelf."""
        entries = await asyncio.to_thread(_on_the_shelf)
        return [ModelChoice(e.name, self._label(e), detail_of(e), e.name == self.supervisor.source) for e in entries]

    def _label(self, entry: ShelfEntry) -> str:
        """A model's title; of the one that runs, behind the form of its weights where that was asked for."""
        running = self.supervisor.running
        if running is None or entry.name != self.supervisor.source or running.info.computed_with == running.info.dtype:
            return entry.title
        return f"{running.info.options['weights']} · {entry.title}"  # in front: what is too long is cut at its end

    async def choose_model(self, source: str) -> None:
        """From the next request on."""
        await self._settings.load()
        await self._change(source=source, options=self._settings.options_for(source))

    def backends(self) -> Sequence[BackendChoice]:
        """The engines that are known, without the toys."""
        return backend_choices(self.supervisor.backend)

    async def choose_backend(self, name: str) -> None:
        """From the next request on."""
        await self._change(backend=name)

    async def _change(self, **changes: Any) -> None:
        if self._answers.running:
            raise Refusal(translate("Workbench", BUSY))
        await self.supervisor.change(**changes)
        self._sessions.hope()
        self.warm_up()

    # ---- settings -----------------------------------------------------------------------------------------------------

    async def load_settings(self) -> AppSettings:
        """Before anything is shown or loaded."""
        return await self._settings.load()

    async def settings(self) -> SettingsView:
        """What is set."""
        await self._settings.load()
        models = [choice.source for choice in await self.models()]
        backends = [choice.name for choice in self.backends() if not choice.problem]
        return replace(self._settings.view(models, backends), data=await self._settings.facts())

    async def change_setting(self, name: str, value: object) -> SettingsView:
        """Changes one row."""
        await self._settings.change(name, value)
        return await self.settings()

    async def reload_model(self) -> SettingsView:
        """Loads the model anew with what is set."""
        await self._change()
        return await self.settings()

    async def hints(self) -> frozenset[str]:
        """What nobody dismissed."""
        held = await stored(self._store.setting(HINTS_SETTING))
        return HINTS - {name for name in held if isinstance(name, str)} if isinstance(held, list) else HINTS

    async def dismiss_hint(self, name: str) -> bool:
        """It is not shown again; whether this call was the first to say so."""
        async with self._settings.hints:  # several windows may open at once
            left = await self.hints()
            if name in left:
                await stored(self._store.set_setting(HINTS_SETTING, sorted((HINTS - left) | {name})))
            return name in left

    async def back_up(self) -> Backup:
        """Copies all sessions and checks the copy."""
        made = await stored(self._store.back_up_now())
        return Backup(str(made), await asyncio.to_thread(lambda: made.stat().st_size))

    async def verify_data(self) -> Sequence[str]:
        """Reads every stored row; what is damaged is set aside, so that the rest is whole."""
        damage = await stored(self._store.verify())
        if damage:
            try:
                await self._store.set_aside_damage()
            except StoreError as fault:  # what is damaged is told all the same
                log.warning("what is damaged could not be set aside: %s", fault)
        return [told(row) for row in damage]


def _on_the_shelf() -> list[ShelfEntry]:
    from runtime import list_models  # knows every format: loaded here, on the thread, for the window is on the screen by now

    return list_models()
