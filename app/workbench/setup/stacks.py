"""The adapters of sessions: put on a stack, taken off, brought into the model that runs, and out of it."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from app.supervisor import Supervisor
from app.workbench.prompt.speaker import Speaker, Stack
from app.workbench.setup.adapters import bring, engine_name, stack_of
from app.workbench.setup.values import MOST_ADAPTERS, SessionValues
from app.workbench.tree.session import OpenSession
from runtime import EngineDiedError, LanguageModel, RuntimeFault
from ui import AdapterChoice, Refusal, translate

log = logging.getLogger(__name__)


class Stacks(ABC):
    """The part of `Setups` that is about adapters.

    Args:
        supervisor: Knows the model that runs.
        on_free: Hears of adapters that an answer or a session needs no more; others may.
    """

    def __init__(self, supervisor: Supervisor, on_free: Callable[[Sequence[AdapterChoice]], None]) -> None:
        self._supervisor = supervisor
        self.free = on_free
        self._moving = asyncio.Lock()  # one change of what is loaded at a time: nothing is brought in while it leaves

    @abstractmethod
    async def _set(self, session: OpenSession, values: SessionValues) -> None:
        """Saves what a session is set to, and takes it."""

    async def add_adapter(self, session: OpenSession, folder: str, name: str = "") -> None:
        """Puts one on top of the stack; it is loaded first, so that what is wrong with it is said now.

        Args:
            session: Whose stack.
            folder: With the adapter in it.
            name: What users see; the folder's own name by default.
        """
        values = values_of(session)
        path = str(Path(folder).expanduser().absolute())  # noqa: ASYNC240  # looks at no file
        if any(choice.folder == path for choice in values.adapters):
            raise Refusal(translate("Workbench", "{0} is on the stack already").format(name or Path(path).name))
        if len(values.adapters) >= MOST_ADAPTERS:
            raise Refusal(translate("Workbench", "a stack has at most {0} adapters").format(MOST_ADAPTERS))
        choice = AdapterChoice(path, name or Path(path).name)
        await self.require(await self._model(), [choice])
        values = values_of(session)  # loading took its time
        await self._set(session, replace(values, adapters=(*values.adapters, choice)))

    async def set_adapters(self, session: OpenSession, stack: Sequence[AdapterChoice]) -> None:
        """Another order, other scales; those that are gone from it are free."""
        values = values_of(session)
        folders = {choice.folder for choice in stack}
        if len(folders) != len(stack) or not folders <= {choice.folder for choice in values.adapters}:
            raise Refusal(translate("Workbench", "the stack has changed meanwhile; open it again"))
        model = self._supervisor.running
        switched = {choice.folder for choice in values.adapters if not choice.on}
        if model is not None:
            await self.require(model, [choice for choice in stack if choice.on and choice.folder in switched])
        await self._set(session, replace(values, adapters=tuple(stack)))
        self.free([choice for choice in values.adapters if choice.folder not in folders])

    async def bring(self, model: LanguageModel, choices: Sequence[AdapterChoice] | None) -> Stack | None:
        """The stack, with every adapter on it in place; one that is on its way out is waited for, and brought back.

        Raises:
            RuntimeFault: One of them cannot be used; it is named.
        """
        if not choices:
            return stack_of(choices)
        async with self._moving:
            return await bring(model, choices)

    def lacks(self, session: OpenSession, model: LanguageModel) -> bool:
        """Whether an adapter of a session is not in place."""
        there = {adapter.name for adapter in model.info.adapters if adapter.loaded}
        return not {engine_name(choice) for choice in values_of(session).adapters if choice.on} <= there

    async def speaker(self, session: OpenSession, model: LanguageModel) -> Speaker:
        """The model under the adapters of a session, for a query.

        Raises:
            RuntimeFault: One of them cannot be used.
        """
        return Speaker.of(model, await self.bring(model, values_of(session).adapters or None))

    async def require(self, model: LanguageModel, choices: Sequence[AdapterChoice]) -> None:
        """Brings adapters in before anything is changed.

        Raises:
            Refusal: One of them cannot be used; none of them stays for that.
        """
        try:
            await self.bring(model, choices)
        except EngineDiedError as fault:
            await self._supervisor.died(model)
            raise Refusal(str(fault)) from fault
        except RuntimeFault as fault:
            self.free(choices)
            raise Refusal(str(fault)) from fault

    async def forget(self, gone: Sequence[AdapterChoice], used: Callable[[str], bool]) -> None:
        """Gives the memory of adapters back, unless their folder is `used` by then; queries under them are waited for."""
        model = self._supervisor.running
        if model is None:
            return
        for choice in gone:
            name = engine_name(choice)
            async with self._moving:
                if used(choice.folder) or not any(held.name == name and held.loaded for held in model.info.adapters):
                    continue
                try:
                    await model.unload_adapter_async(name)
                except EngineDiedError:  # and every adapter with it
                    await self._supervisor.died(model)
                    return
                except RuntimeFault as fault:
                    log.info("adapter %s stays loaded: %s", name, fault)

    async def _model(self) -> LanguageModel:
        try:
            return await self._supervisor.model()
        except RuntimeFault as fault:
            raise Refusal(str(fault)) from fault


def values_of(session: OpenSession) -> SessionValues:
    """What a session says; nothing, where it was not read yet."""
    return session.values or SessionValues()
