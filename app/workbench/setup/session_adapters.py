"""Loads adapters into the engine when an answer needs them, and unloads them when no session or answer uses them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import Struct

from app.supervisor import Supervisor
from app.workbench.background import BackgroundTasks
from app.workbench.setup.values import SessionValues
from runtime import AdapterInfo, EngineDiedError, LanguageModel, RuntimeFault
from ui import AdapterChoice, AdapterLine, Refusal, translate

if TYPE_CHECKING:
    from app.workbench.tree.session import OpenSession

Stack = tuple[tuple[str, float], ...]  # (name in the engine, scale), in order


class AdaptedModel(Struct, frozen=True):
    """A model under adapters (None: its own stack), and the fingerprint of its numbers under them."""

    model: LanguageModel
    adapters: Stack | None
    fingerprint: str


log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class Adapters:
    """Loads adapters, and unloads unused ones. All members belong to the window's loop."""

    _supervisor: Supervisor
    _tasks: BackgroundTasks  # run unloads in the background
    # folders on the stack of each session and running answer
    _users: dict[Hashable, frozenset[str]] = field(default_factory=dict, init=False)
    # one change at a time: no adapter is loaded while it is being unloaded
    _moving: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    # ---- users --------------------------------------------------------------------------------------------------------

    def use(self, user: Hashable, choices: Sequence[AdapterChoice]) -> None:
        """Sets the adapters that `user`, a session or an answer, uses."""
        self._users[user] = frozenset(choice.folder for choice in choices)

    def drop(self, user: Hashable) -> None:
        """Removes a user."""
        self._users.pop(user, None)

    def free(self, choices: Sequence[AdapterChoice]) -> None:
        """Unloads the adapters among `choices` that have no user, in the background."""
        unused = [choice for choice in choices if not self._is_used(choice)]
        if unused:
            self._tasks.start(self._unload(unused), "unload adapters")

    def _is_used(self, choice: AdapterChoice) -> bool:
        return any(choice.folder in folders for folders in self._users.values())

    async def _unload(self, choices: Sequence[AdapterChoice]) -> None:
        """Unloads adapters that still have no user, once the queries under way have ended."""
        model = self._supervisor.running
        if model is None:
            return
        for choice in choices:
            name = engine_name(choice)
            async with self._moving:
                if self._is_used(choice) or not any(held.name == name and held.loaded for held in model.info.adapters):
                    continue
                try:
                    await model.unload_adapter_async(name)
                except EngineDiedError:  # the adapters ended with it
                    await self._supervisor.died(model)
                    return
                except RuntimeFault as fault:
                    log.info("adapter %s stays loaded: %s", name, fault)

    # ---- in the engine ------------------------------------------------------------------------------------------------

    async def bring(self, model: LanguageModel, choices: Sequence[AdapterChoice] | None) -> Stack | None:
        """Loads the adapters that are switched on; returns their stack. Waits for an unload under way.

        Raises:
            RuntimeFault: An adapter cannot be used; names it.
        """
        if not choices:
            return stack_of(choices)
        async with self._moving:
            known = {adapter.name: adapter for adapter in model.info.adapters}
            for choice in choices:
                if not choice.on:
                    continue
                name = engine_name(choice)
                if name not in known:
                    await model.add_adapter_async(choice.folder, name)
                if name not in known or not known[name].loaded:
                    await model.load_adapter_async(name)
            return stack_of(choices)

    async def adapted(self, session: OpenSession, model: LanguageModel) -> AdaptedModel:
        """The model under a session's adapters; loads them if necessary.

        Raises:
            RuntimeFault: An adapter cannot be used.
        """
        return await self.under(model, values_of(session).adapters or None)

    async def under(self, model: LanguageModel, choices: Sequence[AdapterChoice] | None) -> AdaptedModel:
        """The model under adapters (None: its own stack); loads them if necessary.

        Raises:
            RuntimeFault: An adapter cannot be used.
        """
        stack = await self.bring(model, choices)
        return AdaptedModel(model, stack, model.info.numbers_under(stack))

    async def require(self, model: LanguageModel, choices: Sequence[AdapterChoice]) -> None:
        """Loads adapters before a change that needs them.

        Raises:
            Refusal: An adapter cannot be used; those loaded for this are unloaded.
        """
        try:
            await self.bring(model, choices)
        except EngineDiedError as fault:
            await self._supervisor.died(model)
            raise Refusal(str(fault)) from fault
        except RuntimeFault as fault:
            self.free(choices)
            raise Refusal(str(fault)) from fault


def lacks_adapters(session: OpenSession, model: LanguageModel) -> bool:
    """Whether an adapter of a session is not loaded."""
    there = {adapter.name for adapter in model.info.adapters if adapter.loaded}
    return not {engine_name(choice) for choice in values_of(session).adapters if choice.on} <= there


def values_of(session: OpenSession) -> SessionValues:
    """A session's settings; empty ones before they were read."""
    return session.values or SessionValues()


def engine_name(choice: AdapterChoice) -> str:
    """An adapter's name in the engine, unique for its folder."""
    return f"{choice.name}-{_mark_of(choice.folder)}"


def _mark_of(folder: str) -> str:
    return hashlib.sha256(folder.encode()).hexdigest()[:8]


def in_words(stack: Stack, known: Sequence[AdapterInfo]) -> str:
    """A stack of adapter digests in words: "pirate × 0.5 + judge × 1"; empty for none."""
    names = {info.digest: info.name.removesuffix(f"-{_mark_of(info.folder)}") for info in known if info.digest is not None}
    return " + ".join(f"{names.get(digest, digest[:8])} × {scale:g}" for digest, scale in stack)


def stack_of(choices: Sequence[AdapterChoice] | None) -> Stack | None:
    """The stack of a request: () for the base alone, None for the model's own stack."""
    return None if choices is None else tuple((engine_name(c), c.scale) for c in choices if c.on)


def stack_of_session(session: OpenSession) -> Stack | None:
    """The stack of a session's requests."""
    return stack_of(session.values.adapters or None) if session.values is not None else None


def lines(model: LanguageModel | None, choices: Sequence[AdapterChoice]) -> list[AdapterLine]:
    """The stack as lines for the window."""
    known = {adapter.name: adapter for adapter in model.info.adapters} if model is not None else {}
    return [_line(choice, known.get(engine_name(choice))) for choice in choices]


def _line(choice: AdapterChoice, info: AdapterInfo | None) -> AdapterLine:
    if info is None:
        return AdapterLine(choice)
    words = translate("Workbench", "{0}, rank {1}, {2} modules").format(info.kind, info.rank, info.modules)
    if info.loaded:
        words += translate("Workbench", ", {0:,.1f} MB").format(info.bytes / 1e6)
    return AdapterLine(choice, words, info.loaded)
