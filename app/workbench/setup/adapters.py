"""The adapters of sessions in the engine: loaded when an answer needs them, unloaded when no session or answer uses them."""

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


class Speaker(Struct, frozen=True):
    """A model, the adapters asked for (None: the model's own stack), and what their numbers are filed under."""

    model: LanguageModel
    adapters: Stack | None
    numbers: str

    @classmethod
    def of(cls, model: LanguageModel, adapters: Stack | None = None) -> Speaker:
        """The model under these adapters.

        Raises:
            AdapterError: One of them is not loaded.
        """
        return cls(model, adapters, model.info.numbers_under(adapters))


log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class Adapters:
    """Loads adapters, and unloads those that have no user left. All members belong to the window's loop."""

    _supervisor: Supervisor  # knows the model that runs
    _tasks: BackgroundTasks  # unload in the background
    # the folders on the stack of a session or of an answer in work
    _users: dict[Hashable, frozenset[str]] = field(default_factory=dict, init=False)
    # one change of what is loaded at a time: nothing is brought in while it leaves
    _moving: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    # ---- which are used -----------------------------------------------------------------------------------------------

    def use(self, user: Hashable, choices: Sequence[AdapterChoice]) -> None:
        """`user` has these on its stack from now on, and no others."""
        self._users[user] = frozenset(choice.folder for choice in choices)

    def drop(self, user: Hashable) -> None:
        """`user` has none any more."""
        self._users.pop(user, None)

    def free(self, choices: Sequence[AdapterChoice]) -> None:
        """Gives the memory of those back that have no user, in the background."""
        unused = [choice for choice in choices if not self._is_used(choice)]
        if unused:
            self._tasks.start(self._unload(unused), "unload adapters")

    def _is_used(self, choice: AdapterChoice) -> bool:
        return any(choice.folder in folders for folders in self._users.values())

    async def _unload(self, choices: Sequence[AdapterChoice]) -> None:
        """Those that still have no user; queries under them are waited for."""
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
                except EngineDiedError:  # and every adapter with it
                    await self._supervisor.died(model)
                    return
                except RuntimeFault as fault:
                    log.info("adapter %s stays loaded: %s", name, fault)

    # ---- in the engine ------------------------------------------------------------------------------------------------

    async def bring(self, model: LanguageModel, choices: Sequence[AdapterChoice] | None) -> Stack | None:
        """The stack, with every adapter on it loaded; one that is being unloaded is waited for, and loaded again.

        Raises:
            RuntimeFault: One of them cannot be used; it is named.
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

    async def speaker(self, session: OpenSession, model: LanguageModel) -> Speaker:
        """The model under the adapters that a session has on its stack now.

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


def lacks_adapters(session: OpenSession, model: LanguageModel) -> bool:
    """Whether an adapter of a session is not loaded."""
    there = {adapter.name for adapter in model.info.adapters if adapter.loaded}
    return not {engine_name(choice) for choice in values_of(session).adapters if choice.on} <= there


def values_of(session: OpenSession) -> SessionValues:
    """What a session says; nothing, where it was not read yet."""
    return session.values or SessionValues()


def engine_name(choice: AdapterChoice) -> str:
    """What the engine calls it: two folders of one name are two adapters."""
    return f"{choice.name}-{_mark_of(choice.folder)}"


def _mark_of(folder: str) -> str:
    return hashlib.sha256(folder.encode()).hexdigest()[:8]


def in_words(stack: Stack, known: Sequence[AdapterInfo]) -> str:
    """Adapters by the digests of their numbers, as people know them: "pirate × 0.5 + judge × 1"; empty for none."""
    names = {info.digest: info.name.removesuffix(f"-{_mark_of(info.folder)}") for info in known if info.digest is not None}
    return " + ".join(f"{names.get(digest, digest[:8])} × {scale:g}" for digest, scale in stack)


def stack_of(choices: Sequence[AdapterChoice] | None) -> Stack | None:
    """What a request asks for, () for the base alone; None where the session says nothing of adapters."""
    return None if choices is None else tuple((engine_name(c), c.scale) for c in choices if c.on)


def stack_of_session(session: OpenSession) -> Stack | None:
    """What requests on behalf of a session ask for."""
    return stack_of(session.values.adapters or None) if session.values is not None else None


def lines(model: LanguageModel | None, choices: Sequence[AdapterChoice]) -> list[AdapterLine]:
    """The stack as it is shown."""
    known = {adapter.name: adapter for adapter in model.info.adapters} if model is not None else {}
    return [_line(choice, known.get(engine_name(choice))) for choice in choices]


def _line(choice: AdapterChoice, info: AdapterInfo | None) -> AdapterLine:
    if info is None:
        return AdapterLine(choice)
    words = translate("Workbench", "{0}, rank {1}, {2} modules").format(info.kind, info.rank, info.modules)
    if info.loaded:
        words += translate("Workbench", ", {0:,.1f} MB").format(info.bytes / 1e6)
    return AdapterLine(choice, words, info.loaded)
