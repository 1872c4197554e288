"""The settings of sessions: read with them, saved when the window changes them, resolved for answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from app.supervisor import Supervisor
from app.workbench.refusals import stored
from app.workbench.setup.presets import Presets
from app.workbench.setup.session_adapters import Adapters, lines, stack_of, values_of
from app.workbench.setup.values import OPTIONS, SessionValues, guess_problem, read_values, source_words, without_lacking
from app.workbench.tree.session import OpenSession
from runtime import GenerationOptions, ModelInfo, ResolvedOptions, RuntimeFault, resolve_options
from storage import SessionStore, StoreError
from ui import AdapterChoice, ModelFacts, OptionView, Refusal, SessionSetup, in_window, translate

log = logging.getLogger(__name__)
Change = Callable[[SessionValues], SessionValues]  # makes the new settings from the current ones


class Asked(Struct, frozen=True):
    """The session's settings for an answer that begins now, fixed until it ends."""

    session: Mapping[str, Any]  # the session's layer, without adapters
    preset: GenerationOptions
    adapters: tuple[AdapterChoice, ...] | None  # None: the model's own stack
    call: Mapping[str, Any]  # options of every answer, which take precedence
    preset_name: str = ""  # "": the default one


@dataclass(eq=False, repr=False)
class Setups:
    """The settings of open sessions."""

    _store: SessionStore
    _supervisor: Supervisor
    _presets: Presets
    _adapters: Adapters  # keeps a session's adapters loaded
    _call: Mapping[str, Any]  # options of every answer, which take precedence
    # lines about invalid stored settings, by session
    _notes: dict[int, list[str]] = field(default_factory=dict, init=False)
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)  # one change at a time

    async def load(self, session: OpenSession) -> None:
        """Reads the settings of an open session, once; invalid ones become the defaults, with a note."""
        if session.values is not None:
            return
        await self._presets.load()
        try:
            held: object = await self._store.session_setup(session.id)
        except StoreError as fault:
            log.warning("session %d: its settings cannot be read: %s", session.id, fault)
            held = in_window(str(fault))  # not a mapping, so all become the defaults, with a note
        values, notes = read_values(held)
        if session.values is None:  # otherwise another call has read them
            self._take(session, values)
            self._notes[session.id] = notes

    def asked(self, session: OpenSession) -> Asked:
        """The settings for an answer that begins now."""
        values = values_of(session)
        preset = self._presets.options(values.preset)
        return Asked(values.layer(), preset, values.adapters or None, self._call, values.preset)

    async def carry(self, source: OpenSession, copy: OpenSession, nodes: Mapping[int, int]) -> None:
        """Copies the settings of a session to its copy; `nodes` maps node ids to those of the copy."""
        values = values_of(source)
        pruned, bookmarks = (
            frozenset((nodes[node], start) for node, start in held if node in nodes)
            for held in (values.pruned, values.bookmarks)
        )
        names = {(nodes[node], start): name for (node, start), name in values.names.items() if node in nodes}
        self._take(copy, replace(values, pruned=pruned, names=names, bookmarks=bookmarks))
        if values_of(copy).is_set:
            await stored(self._store.set_session_setup(copy.id, values_of(copy).stored()))

    async def keep(self, session: OpenSession, change: Change) -> None:
        """Saves changed settings that do not depend on each other: hidden branches, names, bookmarks."""
        async with self._changing:
            values = change(values_of(session))
            await stored(self._store.set_session_setup(session.id, values.stored()))
            session.values = values

    async def save(self, session: OpenSession, change: Change) -> None:
        """Checks the changed settings together, saves them, then applies them.

        Raises:
            Refusal: Options contradict each other, or the store cannot write.
        """
        async with self._changing:
            values = change(values_of(session))
            try:
                self._resolved(values)
            except (RuntimeFault, TypeError) as fault:
                raise Refusal(str(fault)) from fault
            await stored(self._store.set_session_setup(session.id, values.stored()))
            self._take(session, values)
            self._notes.pop(session.id, None)

    def view(self, session: OpenSession) -> SessionSetup:
        """The settings of a session, with the resolved options."""
        values, model = values_of(session), self._supervisor.running
        beginning = session.beginning()
        notes = [*self._notes.get(session.id, ()), *self._presets.notes]
        if values.preset and values.preset not in self._presets.names:
            words = translate("Workbench", "its preset {0!r:.80} no longer exists; the default is used")
            notes.append(words.format(values.preset))
        problem = "" if model is None else guess_problem(values.guess, model)
        if problem:
            notes.append(translate("Workbench", "{0}; speculation is off").format(problem))
        return SessionSetup(
            session_id=session.id,
            system=beginning.system,
            files=beginning.files,
            tools=beginning.tools,
            options=option_views(self._resolved(values), values),
            preset=values.preset if values.preset in self._presets.names else "",
            presets=self._presets.names,
            default_preset=self._presets.default,
            answer_format=values.answer_format,
            adapters=lines(model, values.adapters),
            guess=values.guess,
            model=None if model is None else facts_of(model.info),
            notes=notes,
        )

    def _take(self, session: OpenSession, values: SessionValues) -> None:
        session.values = values
        self._adapters.use(session.id, values.adapters)

    def _resolved(self, values: SessionValues) -> ResolvedOptions:
        model, preset = self._supervisor.running, self._presets.options(values.preset)
        own = None if model is None else model.own_options
        preset = preset if model is None else without_lacking(preset, model)
        stack = stack_of(values.adapters or None)
        layer = values.layer() if stack is None else {**values.layer(), "adapters": stack}
        return resolve_options(self._call, session=layer, preset=preset, model=own)


def option_views(resolved: ResolvedOptions, values: SessionValues) -> list[OptionView]:
    """Every option that a person can set, resolved, with its source."""
    views = []
    for name in OPTIONS:
        inner = hasattr(resolved.options.sampling, name)
        value = getattr(resolved.options.sampling if inner else resolved.options, name)
        source = resolved.sources[f"sampling.{name}" if inner else name]
        views.append(OptionView(name, value, source_words(source), values.options.get(name)))
    return views


def facts_of(info: ModelInfo) -> ModelFacts:
    """Facts about the loaded model."""
    return ModelFacts(
        name=info.name,
        fingerprint=info.model_fingerprint,
        architecture=info.architecture,
        parameters=info.parameters,
        backend=info.backend,
        device=info.device,
        dtype=info.precision,
        context_length=info.told_context,
        kv_bytes_per_token=info.kv_bytes_per_token,
        draft=str(info.options.get("draft_model") or ""),
        takes_roles=info.has_template,
        warnings=tuple(map(in_window, info.warnings)),
    )
