"""The part of the workbench that is about what a session is set to (`ui.SetupCommands`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.workbench.answers.answers import Turns
from app.workbench.answers.streaming import Answers
from app.workbench.background import Chores
from app.workbench.prompt.vocabulary import Vocabulary
from app.workbench.sessions.open_sessions import Sessions
from app.workbench.setup.beginning import Beginning
from app.workbench.setup.setups import Setups, clean_prompt
from app.workbench.setup.token_names import with_ids
from ui import AdapterChoice, AnswerFormat, Guess, SessionSetup, TextFile


class SetupMembers:
    """Finds the session, changes it, and says what holds now; what is done stands in `Setups` and `Turns`."""

    _answers: Answers
    _sessions: Sessions
    _setups: Setups
    _turns: Turns
    _chores: Chores
    vocabulary: Vocabulary

    async def setup(self, session_id: int) -> SessionSetup:
        """What the session is set to."""
        return self._setups.view(self._sessions.opened(session_id))

    async def set_option(self, session_id: int, name: str, value: object) -> SessionSetup:
        """Sets one option, or leaves it to the others; tokens may be named by their text."""
        await self._setups.set_option(self._sessions.opened(session_id), name, with_ids(name, value, self.vocabulary))
        return await self.setup(session_id)

    async def choose_preset(self, session_id: int, name: str) -> SessionSetup:
        """Takes a preset."""
        await self._setups.choose_preset(self._sessions.opened(session_id), name)
        return await self.setup(session_id)

    async def save_preset(self, session_id: int, name: str) -> SessionSetup:
        """Saves a preset."""
        await self._setups.save_preset(self._sessions.opened(session_id), name)
        return await self.setup(session_id)

    async def delete_preset(self, session_id: int, name: str) -> SessionSetup:
        """Deletes a preset."""
        await self._setups.delete_preset(self._sessions.opened(session_id), name)
        return await self.setup(session_id)

    async def set_system(self, session_id: int, text: str) -> SessionSetup:
        """Another system prompt, as another beginning."""
        held = self._sessions.opened(session_id).beginning()
        return await self._begin(session_id, replace(held, system=clean_prompt(text)))

    async def set_tools(self, session_id: int, source: str) -> SessionSetup:
        """Other tools, as another beginning."""
        self._setups.require_tools(source)
        held = self._sessions.opened(session_id).beginning()
        return await self._begin(session_id, replace(held, tools=clean_prompt(source)))

    async def pin_files(self, session_id: int, files: Sequence[TextFile]) -> SessionSetup:
        """Other pinned files, as another beginning."""
        held = self._sessions.opened(session_id).beginning()
        return await self._begin(session_id, replace(held, files=tuple(files)))

    async def _begin(self, session_id: int, beginning: Beginning) -> SessionSetup:
        return self._setups.view(await self._turns.begin(session_id, beginning))  # the sample's change goes into a copy

    async def check_tools(self, source: str) -> tuple[Sequence[str], str]:
        """What tools are defined, and what is wrong with them."""
        return await self._setups.check_tools(source)

    async def set_format(self, session_id: int, answer_format: AnswerFormat) -> SessionSetup:
        """The form of the next answers."""
        await self._setups.set_format(self._sessions.opened(session_id), answer_format)
        return await self.setup(session_id)

    async def check_format(self, answer_format: AnswerFormat) -> str:
        """What is wrong with a form."""
        return await self._setups.check_format(answer_format)

    async def add_adapter(self, session_id: int, folder: str) -> SessionSetup:
        """Another adapter on top of the stack."""
        await self._setups.add_adapter(self._sessions.opened(session_id), folder)
        return await self.setup(session_id)

    async def set_adapters(self, session_id: int, stack: Sequence[AdapterChoice]) -> SessionSetup:
        """Another order, other scales, some off, some gone."""
        await self._setups.set_adapters(self._sessions.opened(session_id), stack)
        return await self.setup(session_id)

    def _free_adapters(self, choices: Sequence[AdapterChoice]) -> None:
        """Gives the memory of those back that neither a session nor a running answer has on its stack."""
        free = [choice for choice in choices if not self._uses_adapter(choice.folder)]
        if free:
            self._chores.start(self._setups.forget(free, self._uses_adapter), "forget adapters")

    def _uses_adapter(self, folder: str) -> bool:
        return self._sessions.uses_adapter(folder) or self._answers.use_adapter(folder)

    async def set_guess(self, session_id: int, guess: Guess) -> SessionSetup:
        """Where guesses come from."""
        await self._setups.set_guess(self._sessions.opened(session_id), guess)
        return await self.setup(session_id)
