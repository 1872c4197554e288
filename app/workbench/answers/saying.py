"""The workbench's members about what is said: messages, answers, drafts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from app.workbench.answers.answers import Turns
from app.workbench.answers.provenance_text import how_made
from app.workbench.answers.streaming import Answers
from app.workbench.answers.text_branch import Retelling
from app.workbench.prompt.drafts import Composing
from app.workbench.sessions.open_sessions import Sessions
from ui import Composition, Event, Made, SessionChanged, SessionsChanged, TextFile


class SayingMembers(ABC):
    """Reads the path that a use case needs, then calls it; what is done stands in `Turns`, `Answers` and `Composing`."""

    _sessions: Sessions
    _turns: Turns
    _retelling: Retelling
    _answers: Answers
    _composing: Composing

    @abstractmethod
    def _tell(self, event: Event) -> None:
        """Tells the window."""

    @abstractmethod
    def _refresh_status(self) -> None:
        """Counters have changed."""

    async def send(self, session_id: int, text: str, replaces: int | None = None) -> None:
        """Saves the user's turn (beside `replaces`, an earlier version of it), then streams an answer.

        Beside a turn of the model's it is another version of that one, and nothing is streamed.
        """
        await self._sessions.read_whole(session_id, replaces)
        if replaces is not None and self._sessions.opened(session_id).role_of(replaces) == "assistant":
            await self._retelling.edit_answer(session_id, replaces, text)
            self._refresh_status()
            return
        await self._turns.send(session_id, text, replaces)

    async def open_as_text(self, session_id: int, node_id: int) -> None:
        """The path to a turn once more as text, for any model; its last question is answered."""
        await self._sessions.read_whole(session_id, node_id)
        session = await self._retelling.open_as_text(session_id, node_id)
        self._tell(SessionChanged(session.view()))
        self._tell(SessionsChanged())
        await self._turns.answer_last(session)
        self._refresh_status()

    async def branch(self, session_id: int, node_id: int, index: int, token_id: int) -> None:
        """A sibling that has another token at `index`, and goes on from there."""
        await self._sessions.read_whole(session_id, node_id)
        await self._turns.branch(session_id, node_id, index, token_id)

    async def regenerate(self, session_id: int, node_id: int) -> None:
        """Another answer beside the model's turn."""
        await self._sessions.read_whole(session_id, node_id)
        await self._turns.regenerate(session_id, node_id)

    async def regenerate_exactly(self, session_id: int, node_id: int) -> None:
        """The same answer once more, with what it was made with."""
        await self._sessions.read_whole(session_id, node_id)
        await self._turns.regenerate_exactly(session_id, node_id)

    def how_made(self, session_id: int, node_id: int) -> Made | None:
        """How an answer was made, as stored with it."""
        session = self._sessions.find(session_id)
        node = session.tree.nodes.get(node_id) if session else None
        return how_made(node) if node is not None and node.whole else None  # one that is shown was read

    async def continue_turn(self, session_id: int, node_id: int) -> None:
        """Goes on with an answer that was stopped."""
        await self._sessions.read_whole(session_id, node_id)
        await self._turns.continue_turn(session_id, node_id)

    def stop(self, session_id: int) -> None:
        """What arrived is kept."""
        self._answers.stop(session_id)

    async def answer_call(self, session_id: int, node_id: int, results: Sequence[str]) -> None:
        """The result of a tool's call, as a turn of its own; then streams an answer."""
        await self._sessions.read_whole(session_id, node_id)
        await self._turns.answer_call(session_id, node_id, results)

    async def compose(self, session_id: int, text: str, replaces: int | None = None) -> Composition:
        """Tokens and context of a draft, where it would stand; no forward."""
        return await self._composing.compose(session_id, text, replaces)

    async def score_draft(self, session_id: int, text: str, replaces: int | None = None) -> float | None:
        """Bits of a draft, behind everything else."""
        await self._sessions.read_whole(session_id)
        return await self._composing.score_draft(session_id, text, replaces)

    async def read_file(self, path: str) -> TextFile:
        """A text file to go with a message."""
        return await self._composing.read_file(path)

    async def leave_out(self, session_id: int, text: str) -> int:
        """Makes room for a message."""
        await self._sessions.read_whole(session_id)
        session, count = await self._composing.leave_out(session_id, text)
        self._tell(SessionChanged(session.view()))
        self._refresh_status()
        return count
