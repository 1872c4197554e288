"""What was said once more beside what was said: the latest turns alone, all of it as text, an answer in other words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from app.supervisor import Supervisor
from app.workbench.answers.streaming import Answers
from app.workbench.prompt.prompt import Tokeniser, check_tokens
from app.workbench.prompt.recorder import chunk
from app.workbench.refusals import GONE
from app.workbench.sessions.copying import Copies
from app.workbench.sessions.open_sessions import Sessions
from app.workbench.setup.beginning import AS_TEXT, Beginning
from app.workbench.tree.runs import EMPTY, without_numbers
from app.workbench.tree.session import OpenSession
from app.workbench.tree.tree import Turn
from runtime import EngineDiedError, InvalidRequestError, RuntimeFault, clean_text
from storage import NewNode, NodeRow, StoreError
from ui import Event, Refusal, SessionChanged, SessionsChanged, translate

EDITED: Final = "edited"  # why an answer ends that somebody wrote


class Retelling:
    """The use cases that write turns which no model made; what stands there stays beside them.

    Args:
        sessions: The open sessions.
        supervisor: Knows the model that runs.
        copies: Takes changes of the sample elsewhere.
        answers: Keeps a session for one piece of work at a time.
        tokeniser: Turns text into ids.
        tell: Takes events for the window.
    """

    def __init__(
        self,
        sessions: Sessions,
        supervisor: Supervisor,
        copies: Copies,
        answers: Answers,
        tokeniser: Tokeniser,
        tell: Callable[[Event], None],
    ) -> None:
        self._sessions = sessions
        self._supervisor = supervisor
        self._copies = copies
        self._answers = answers
        self._tokeniser = tokeniser
        self._tell = tell

    async def edit_answer(self, session_id: int, node_id: int, text: str) -> None:
        """Another version of the model's turn, in somebody's own words; the model can go on with it, and answers nothing now.

        The words are on the disk first; they get their tokens at once where a model runs, else when one goes on from them.
        """
        session = self._sessions.opened(session_id)
        node = session.tree.nodes.get(node_id)
        if node is None:
            raise Refusal(translate("Workbench", GONE))
        opening = session.tree.opening(node)
        text = clean_text(text).replace("\0", "\ufffd")  # as the store keeps it
        if not text.strip():
            raise Refusal(translate("Workbench", "write what the answer should say; to get another one, regenerate it"))
        target = await self._copies.target(session)
        new = NewNode(
            session.id, opening.parent_id, "assistant", text=text, at_token=opening.at_token, status="partial",
            finish_reason=EDITED,
        )  # fmt: skip
        session = target.session
        with self._answers.claim(session):
            await self._answers.settle(session)
            written = await self._sessions.add(session, target.place(new))
            await self._sessions.drop_failed(session, target.of(node_id))
            self._tell(SessionsChanged())
            await self._cut(session, written)
        await self._sessions.refresh(session)
        self._tell(SessionChanged(session.view()))

    async def open_as_text(self, session_id: int, node_id: int) -> OpenSession:
        """The path to a turn once more, as another beginning without tokens: any model can go on with what it says.

        Returns:
            The session, with that path shown. An answer that said nothing is left out at its end.
        """
        session = self._sessions.opened(session_id)
        if node_id not in session.tree.nodes:
            raise Refusal(translate("Workbench", GONE))
        self._answers.check_idle(session_id)
        target = await self._copies.target(session, any_model=True)
        session, at = target.session, target.of(node_id)
        turns = session.tree.turns(at)
        root = turns[0].tip if turns and turns[0].role == "system" else None
        said = [turn for turn in (turns[1:] if root is not None else turns) if session.content(turn).strip()]
        if not said:
            raise Refusal(translate("Workbench", "nothing was said here yet"))
        with self._answers.claim(session):
            await self._answers.settle(session)
            await begin_with(self._sessions, session, root, said, {AS_TEXT: len(said)})
        return session

    async def _cut(self, session: OpenSession, node: NodeRow) -> None:
        """Gives an answer that somebody wrote its tokens, where a model runs that can; else it stays text."""
        model = self._supervisor.running
        if model is None:
            return
        try:
            check_tokens(model, session, session.tree.path(node.id))
            await self._tokeniser.own_words(session, await self._answers.speaker_now(session, model), node)
        except EngineDiedError:
            await self._supervisor.died(model)
        except (RuntimeFault, InvalidRequestError, StoreError, Refusal):  # whoever goes on from there is told
            return


async def begin_with(
    sessions: Sessions,
    session: OpenSession,
    root: NodeRow | None,
    turns: Sequence[Turn],
    stats: Mapping[str, Any],
    numbers: str | None = None,
) -> None:
    """Another beginning with these turns, which is shown then.

    Args:
        sessions: Add its nodes.
        session: Where.
        root: What the conversation began with.
        turns: They follow; all but the first, which stands behind other tokens now, keep their own.
        stats: What the new root says beside that.
        numbers: What the tokens' numbers will be filed under; None: no turn keeps its tokens.
    """
    beginning = Beginning.of(root) if root is not None else Beginning()
    kept = {**beginning.stats, **stats}
    parent = await sessions.add(session, NewNode(session.id, None, "system", text=beginning.system, stats=kept))
    for place, turn in enumerate(turns):
        run, node = without_numbers(session.turn_run(turn)), turn.tip
        role: Any = turn.role  # of a stored node, so one that the store knows
        new = NewNode(session.id, parent.id, role, text=session.content(turn), finish_reason=node.finish_reason)
        tokenised = numbers is not None and place > 0 and len(session.runs.get(node.id, EMPTY))
        parent = await sessions.add(session, new, chunk(run, numbers) if tokenised and numbers is not None else None)
        if tokenised:
            session.runs[parent.id] = run
