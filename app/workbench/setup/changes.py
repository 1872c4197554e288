"""Changes of a session's settings, system prompt, tools and files (`ui.port.SetupCommands`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

import runtime  # its names are imported at their first use: the window opens without them
from app.supervisor import Supervisor
from app.workbench.answers.answer import RunningAnswers
from app.workbench.models.downloads import Downloads
from app.workbench.prompt.vocabulary import Vocabulary, with_ids
from app.workbench.refusals import refused
from app.workbench.sessions.copying import Copies
from app.workbench.sessions.open_sessions import OpenSessions
from app.workbench.setup.beginning import Beginning, as_text, left_out, names_of, read_tools
from app.workbench.setup.presets import Presets
from app.workbench.setup.session_adapters import Adapters, values_of
from app.workbench.setup.setups import Change, Setups
from app.workbench.setup.values import MOST_ADAPTERS, OPTIONS, SessionValues, grammar_of, guess_problem
from app.workbench.tree.session import OpenSession
from app.workbench.windows import Windows
from runtime import GrammarError, RuntimeFault, clean_text
from storage import NewNode
from ui import QT_TRANSLATE_NOOP, AdapterChoice, AnswerFormat, FormatKind, Guess, Refusal, SessionSetup, TextFile, translate

ADAPTERS_CHANGED = QT_TRANSLATE_NOOP("Workbench", "the adapters have changed; open them again")


@dataclass(eq=False, repr=False)
class SetupChanges:
    """Saves each change before it applies, and returns the new settings (`ui.port.SetupCommands`)."""

    _supervisor: Supervisor
    _sessions: OpenSessions
    _setups: Setups
    _presets: Presets
    _adapters: Adapters  # loads adapters into the engine
    _copies: Copies  # of the sample, which is never changed
    _running: RunningAnswers  # no root is added during an answer
    _downloads: Downloads  # downloads adapters
    _vocabulary: Vocabulary  # finds tokens by their text
    _windows: Windows

    async def view(self, session_id: int) -> SessionSetup:
        return self._setups.view(self._sessions.opened(session_id))

    # ---- options and presets ------------------------------------------------------------------------------------------

    async def set_option(self, session_id: int, name: str, value: object) -> SessionSetup:
        """Sets one option, or unsets it (None); tokens may be given by their text."""
        session = self._sessions.opened(session_id)
        value = with_ids(name, value, self._vocabulary)
        if name not in OPTIONS:
            raise Refusal(translate("Workbench", "there is no option {0!r:.40}").format(name))

        def changed(values: SessionValues) -> SessionValues:
            options = {held: said for held, said in values.options.items() if held != name}
            return replace(values, options=options if value is None else {**options, name: value})

        return await self._save(session, changed)

    async def choose_preset(self, session_id: int, name: str) -> SessionSetup:
        session = self._sessions.opened(session_id)
        self._presets.check(name)
        return await self._save(session, lambda values: replace(values, preset=name, options={}))

    async def save_preset(self, session_id: int, name: str) -> SessionSetup:
        session = self._sessions.opened(session_id)
        values = values_of(session)
        preset = self._presets.options(values.preset)
        said = {n: v for n, v in preset.sampling.given().items() if n in OPTIONS}
        said |= {n: getattr(preset, n) for n in ("max_tokens", "seed") if getattr(preset, n) is not None}
        said |= {"stop": list(preset.stop)} if preset.stop else {}
        kept = await self._presets.save(name, {**said, **values.options})

        def changed(now: SessionValues) -> SessionValues:
            since = {name: value for name, value in now.options.items() if values.options.get(name) != value}
            return replace(now, preset=kept, options=since)

        return await self._save(session, changed)

    async def delete_preset(self, session_id: int, name: str) -> SessionSetup:
        session = self._sessions.opened(session_id)
        await self._presets.delete(name)
        if values_of(session).preset == name:
            return await self._save(session, lambda now: replace(now, preset="") if now.preset == name else now)
        return self._setups.view(session)

    # ---- the beginning ------------------------------------------------------------------------------------------------

    async def set_system(self, session_id: int, text: str) -> SessionSetup:
        held = self._sessions.opened(session_id).beginning()
        return await self._begin(session_id, replace(held, system=_clean(text)))

    async def set_tools(self, session_id: int, source: str) -> SessionSetup:
        try:
            read_tools(source)
        except RuntimeFault as fault:
            raise Refusal(str(fault)) from fault
        held = self._sessions.opened(session_id).beginning()
        return await self._begin(session_id, replace(held, tools=_clean(source)))

    async def pin_files(self, session_id: int, files: Sequence[TextFile]) -> SessionSetup:
        held = self._sessions.opened(session_id).beginning()
        return await self._begin(session_id, replace(held, files=tuple(files)))

    async def check_tools(self, source: str) -> tuple[Sequence[str], str]:
        try:
            return names_of(read_tools(source)), ""
        except RuntimeFault as fault:
            return (), str(fault)

    async def _begin(self, session_id: int, beginning: Beginning) -> SessionSetup:
        """Shows an existing root with this beginning, or adds one; in a copy if the session is the sample."""
        whole = await self._sessions.whole(session_id)
        self._running.check_idle(session_id)
        if beginning == whole.beginning():
            return self._setups.view(whole)
        session = (await self._copies.target(whole)).session
        before = session.tip
        with self._running.claim(session):
            first = (root for root in session.tree.children(None) if root.role == "system")
            roots = [root for root in first if not left_out(root.stats) and not as_text(root.stats)]
            same = next((root for root in roots if Beginning.of(root) == beginning), None)
            if same is None:
                new = NewNode(session.id, None, "system", text=beginning.system, stats=beginning.stats)
                await self._sessions.add(session, new)
            else:
                await self._sessions.move(session, same.id)
        self._windows.tell_path(session, before)
        self._windows.refresh_status()
        return self._setups.view(session)

    # ---- the form of answers, and guesses -----------------------------------------------------------------------------

    async def set_format(self, session_id: int, answer_format: AnswerFormat) -> SessionSetup:
        """Sets the output format of the next answers; each compiles the grammar when it begins."""
        session = self._sessions.opened(session_id)
        if answer_format.kind is not FormatKind.FREE:
            problem = await self.check_format(answer_format)
            if problem:
                raise Refusal(problem)
        return await self._save(session, lambda values: replace(values, answer_format=answer_format))

    async def check_format(self, answer_format: AnswerFormat) -> str:
        """What is wrong with a format, in llguidance's words, or ""; compiles it in a process that can be killed."""
        if answer_format.kind is FormatKind.FREE:
            return ""
        if not answer_format.source.strip():
            return translate("Workbench", "nothing is written yet")
        try:
            await asyncio.to_thread(lambda: grammar_of(answer_format).check())
        except GrammarError as fault:
            return str(fault)
        return ""

    async def set_guess(self, session_id: int, guess: Guess) -> SessionSetup:
        session, model = self._sessions.opened(session_id), self._supervisor.running
        problem = "" if model is None else guess_problem(guess, model)
        if problem:
            raise Refusal(problem)
        return await self._save(session, lambda values: replace(values, guess=guess))

    # ---- adapters -----------------------------------------------------------------------------------------------------

    async def add_adapter(self, session_id: int, folder: str) -> SessionSetup:
        return await self._add_adapter(self._sessions.opened(session_id), folder, "")

    async def get_adapter(self, session_id: int, wanted: str) -> SessionSetup:
        session = self._sessions.opened(session_id)
        here = await asyncio.to_thread(_adapter_here, wanted.strip())
        if here is None:
            task = self._downloads.begin(wanted, adapter=True)
            try:
                fetched = await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.cancelled():
                    raise Refusal(translate("Workbench", "the download was stopped; what was downloaded is kept")) from None
                raise
            if not fetched.is_adapter:
                raise Refusal(
                    translate("Workbench", "{0} is a model, not an adapter; it was added to your models").format(fetched.name)
                )
            here = fetched.name, fetched.folder
        name, folder = here
        return await self._add_adapter(session, folder, name)

    async def set_adapters(self, session_id: int, stack: Sequence[AdapterChoice]) -> SessionSetup:
        """Reorders, rescales, switches or removes adapters; unloads the removed ones."""
        session = self._sessions.opened(session_id)
        values = values_of(session)
        folders, held = ({choice.folder for choice in choices} for choices in (stack, values.adapters))
        if len(folders) != len(stack) or not folders <= held:
            raise Refusal(translate("Workbench", ADAPTERS_CHANGED))
        model, brought = self._supervisor.running, list[AdapterChoice]()
        switched = {choice.folder for choice in values.adapters if not choice.on}
        if model is not None:
            brought = [choice for choice in stack if choice.on and choice.folder in switched]
            await self._adapters.require(model, brought)
            before, values = values, values_of(session)  # the settings may have changed during the load
            now = {choice.folder: choice for choice in values.adapters}
            if now.keys() != held:
                self._adapters.free(brought)
                raise Refusal(translate("Workbench", ADAPTERS_CHANGED))
            kept = [choice.folder for choice in before.adapters if choice.folder in folders]
            if [choice.folder for choice in stack] == kept:  # the caller kept the order: the current one stays
                stack = sorted(stack, key=lambda choice: list(now).index(choice.folder))
            stack = [now[choice.folder] if choice in before.adapters else choice for choice in stack]
        chosen = tuple(stack)

        def changed(now: SessionValues) -> SessionValues:
            if {choice.folder for choice in now.adapters} != held:  # they changed during another write
                self._adapters.free(brought)
                raise Refusal(translate("Workbench", ADAPTERS_CHANGED))
            return replace(now, adapters=chosen)

        setup = await self._save(session, changed)
        self._adapters.free([choice for choice in values.adapters if choice.folder not in folders])
        return setup

    async def _add_adapter(self, session: OpenSession, folder: str, name: str) -> SessionSetup:
        """Loads an adapter before adding it, so that a fault is reported now; `name` defaults to the folder's name."""
        values = values_of(session)
        path = str(Path(folder).expanduser().absolute())  # noqa: ASYNC240  # no file access
        if any(choice.folder == path for choice in values.adapters):
            raise Refusal(translate("Workbench", "{0} is already added").format(name or Path(path).name))
        if len(values.adapters) >= MOST_ADAPTERS:
            raise Refusal(translate("Workbench", "at most {0} adapters can be used").format(MOST_ADAPTERS))
        choice = AdapterChoice(path, name or Path(path).name)
        model = await refused(self._supervisor.model())
        await self._adapters.require(model, [choice])
        return await self._save(session, lambda now: replace(now, adapters=(*now.adapters, choice)))

    async def _save(self, session: OpenSession, change: Change) -> SessionSetup:
        await self._setups.save(session, change)
        return self._setups.view(session)


def _clean(text: str) -> str:
    """A system prompt without the characters that the store does not take."""
    return clean_text(text).replace("\0", "\ufffd").strip()


def _adapter_here(wanted: str) -> tuple[str, str] | None:
    found = [each for each in runtime.list_shelf_adapters() if wanted in (each.name, each.name.partition("@")[0])]
    return (found[-1].name, str(found[-1].path)) if found else None
