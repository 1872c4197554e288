"""What sessions are set to: read with them, changed by the window, asked for by answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.supervisor import Supervisor
from app.workbench.refusals import stored
from app.workbench.setup.adapters import lines, stack_of
from app.workbench.setup.beginning import names_of, read_tools
from app.workbench.setup.presets import Presets
from app.workbench.setup.stacks import Stacks, values_of
from app.workbench.setup.values import OPTIONS, Branch, SessionValues, grammar_of, guess_problem, read_values
from app.workbench.setup.views import facts_of, option_views
from app.workbench.tree.session import OpenSession
from runtime import (
    GenerationOptions,
    GrammarError,
    ResolvedOptions,
    RuntimeFault,
    clean_text,
    resolve_options,
)
from storage import SessionStore, StoreError
from ui import AdapterChoice, AnswerFormat, FormatKind, Guess, Refusal, SessionSetup, translate

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a session asks of an answer that begins now; it keeps it to its end."""

    session: Mapping[str, Any]  # the session's layer, without adapters
    preset: GenerationOptions
    adapters: tuple[AdapterChoice, ...] | None  # None: it says nothing of them
    preset_name: str = ""  # "": the one that is the default


class Setups(Stacks):
    """Settings of sessions.

    Args:
        store: Where they are saved, with their session.
        supervisor: Knows the model that runs.
        preset: Elsewise's own.
        call: What somebody says for every answer, before the session.
        on_free: Hears of adapters that an answer or a session needs no more; others may.
    """

    def __init__(
        self,
        store: SessionStore,
        supervisor: Supervisor,
        preset: GenerationOptions,
        call: Mapping[str, Any],
        on_free: Callable[[Sequence[AdapterChoice]], None],
    ) -> None:
        super().__init__(supervisor, on_free)
        self._store = store
        self._call = call
        self.presets = Presets(store, preset)
        self._notes: dict[int, list[str]] = {}

    # ---- reading ------------------------------------------------------------------------------------------------------

    async def load(self, session: OpenSession) -> None:
        """Reads what an open session is set to, once; what cannot be taken falls back, with a note."""
        if session.values is not None:
            return
        await self.presets.load()
        try:
            held: object = await self._store.session_setup(session.id)
        except StoreError as fault:
            log.warning("session %d: its settings cannot be read: %s", session.id, fault)
            held = f"{fault}"  # no mapping: the defaults, and a note that says so
        values, notes = read_values(held)
        if session.values is None:  # nobody else read it meanwhile
            session.values, self._notes[session.id] = values, notes

    def asked(self, session: OpenSession) -> Asked:
        """What an answer that begins now is asked for."""
        values = values_of(session)
        return Asked(values.layer(), self.presets.options(values.preset), values.adapters or None, values.preset)

    async def carry(self, source: OpenSession, copy: OpenSession, nodes: Mapping[int, int]) -> None:
        """The copy of a session is set as that one is; `nodes` are its numbers for the nodes of that one."""
        values = values_of(source)
        pruned = frozenset((nodes[node], start) for node, start in values.pruned if node in nodes)
        copy.values = replace(values, pruned=pruned)
        if copy.values.is_set:
            await stored(self._store.set_session_setup(copy.id, copy.values.stored()))

    async def set_pruned(self, session: OpenSession, pruned: frozenset[Branch]) -> None:
        """Other branches are out of sight."""
        values = replace(values_of(session), pruned=pruned)
        await stored(self._store.set_session_setup(session.id, values.stored()))
        session.values = values

    def view(self, session: OpenSession) -> SessionSetup:
        """What a session is set to, and what of it holds."""
        values, model = values_of(session), self._supervisor.running
        beginning = session.beginning()
        notes = [*self._notes.get(session.id, ()), *self.presets.notes]
        if values.preset and values.preset not in self.presets.names:
            words = translate("Workbench", "its preset {0!r:.80} is not there any more; the default is taken")
            notes.append(words.format(values.preset))
        problem = "" if model is None else guess_problem(values.guess, model.info)
        if problem:
            notes.append(translate("Workbench", "{0}; its answers come without guesses").format(problem))
        return SessionSetup(
            session_id=session.id,
            system=beginning.system,
            files=beginning.files,
            tools=beginning.tools,
            options=option_views(self._resolved(values), values),
            preset=values.preset if values.preset in self.presets.names else "",
            presets=self.presets.names,
            default_preset=self.presets.default,
            answer_format=values.answer_format,
            adapters=lines(model, values.adapters),
            guess=values.guess,
            model=None if model is None else facts_of(model.info),
            notes=notes,
        )

    # ---- options and presets ------------------------------------------------------------------------------------------

    async def set_option(self, session: OpenSession, name: str, value: object) -> None:
        """Sets one option, or (None) leaves it to the others."""
        values = values_of(session)
        if name not in OPTIONS:
            raise Refusal(translate("Workbench", "there is no option {0!r:.40}").format(name))
        options = {held: said for held, said in values.options.items() if held != name}
        if value is not None:
            options[name] = value
        await self._set(session, replace(values, options=options))

    async def choose_preset(self, session: OpenSession, name: str) -> None:
        """Takes a preset; the session's own options are put aside."""
        self.presets.check(name)
        await self._set(session, replace(values_of(session), preset=name, options={}))

    async def save_preset(self, session: OpenSession, name: str) -> None:
        """Saves what preset and session say, and chooses it."""
        values = values_of(session)
        preset = self.presets.options(values.preset)
        said = {n: v for n, v in preset.sampling.given().items() if n in OPTIONS}
        said |= {n: getattr(preset, n) for n in ("max_tokens", "seed") if getattr(preset, n) is not None}
        said |= {"stop": list(preset.stop)} if preset.stop else {}
        kept = await self.presets.save(name, {**said, **values.options})
        await self._set(session, replace(values, preset=kept, options={}))

    async def delete_preset(self, session: OpenSession, name: str) -> None:
        """Forgets one; the session takes the default if it had that one."""
        await self.presets.delete(name)
        if values_of(session).preset == name:
            await self._set(session, replace(values_of(session), preset=""))

    # ---- the form of answers ------------------------------------------------------------------------------------------

    async def set_format(self, session: OpenSession, answer_format: AnswerFormat) -> None:
        """The form of the next answers; its grammar is compiled when one begins."""
        if answer_format.kind is not FormatKind.FREE:
            problem = await self.check_format(answer_format)
            if problem:
                raise Refusal(problem)
        await self._set(session, replace(values_of(session), answer_format=answer_format))

    async def check_format(self, answer_format: AnswerFormat) -> str:
        """What is wrong with it, in llguidance's words; on a thread, and compiled in a process that can be killed."""
        if answer_format.kind is FormatKind.FREE:
            return ""
        if not answer_format.source.strip():
            return translate("Workbench", "nothing is written yet")
        try:
            await asyncio.to_thread(lambda: grammar_of(answer_format).check())
        except GrammarError as fault:
            return str(fault)
        return ""

    async def check_tools(self, source: str) -> tuple[Sequence[str], str]:
        """The names of the tools, and what is wrong with their definitions."""
        try:
            return names_of(read_tools(source)), ""
        except RuntimeFault as fault:
            return (), str(fault)

    def require_tools(self, source: str) -> None:
        """Refuses definitions that are none."""
        try:
            read_tools(source)
        except RuntimeFault as fault:
            raise Refusal(str(fault)) from fault

    async def set_guess(self, session: OpenSession, guess: Guess) -> None:
        """Where guesses come from."""
        model = self._supervisor.running
        problem = "" if model is None else guess_problem(guess, model.info)
        if problem:
            raise Refusal(problem)
        await self._set(session, replace(values_of(session), guess=guess))

    # ---- how ----------------------------------------------------------------------------------------------------------

    async def _set(self, session: OpenSession, values: SessionValues) -> None:
        """Checks everything together, saves it, and only then takes it."""
        try:
            self._resolved(values)
        except (RuntimeFault, TypeError) as fault:
            raise Refusal(str(fault)) from fault
        await stored(self._store.set_session_setup(session.id, values.stored()))
        session.values = values
        self._notes.pop(session.id, None)

    def _resolved(self, values: SessionValues) -> ResolvedOptions:
        model, preset = self._supervisor.running, self.presets.options(values.preset)
        own = None if model is None else model.own_options
        stack = stack_of(values.adapters or None)
        layer = values.layer() if stack is None else {**values.layer(), "adapters": stack}
        return resolve_options(self._call, session=layer, preset=preset, model=own)


def clean_prompt(text: str) -> str:
    """A system prompt as the store keeps it."""
    return clean_text(text).replace("\0", "\ufffd").strip()
