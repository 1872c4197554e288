"""Copies: of the sample, which stays as it was shipped, when it would be changed; of turns, under another beginning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from app.supervisor import Supervisor
from app.workbench.prompt.prompt import check_tokens
from app.workbench.prompt.recorder import chunk
from app.workbench.refusals import stored
from app.workbench.sessions.open_sessions import OpenSessions
from app.workbench.setup.beginning import Beginning
from app.workbench.setup.setups import Setups
from app.workbench.tree.runs import EMPTY, without_numbers
from app.workbench.tree.session import WholeSession
from app.workbench.tree.tree import Turn
from app.workbench.windows import Windows
from runtime import InvalidRequestError
from storage import NewNode, NodeRow, SessionStore
from ui import BUSY, Refusal, SessionCopied, SessionsChanged, translate

_NUMBERED = re.compile(r" \(copy(?: \d+)?\)$")


class Target(Struct, frozen=True):
    """The session a change goes into, and its numbers for the nodes of the one that was named."""

    session: WholeSession
    numbers: Mapping[int, int] | None = None  # None: it is the same session

    def of(self, node_id: int | None) -> int | None:
        """The number here of a node that was named there."""
        return node_id if self.numbers is None or node_id is None else self.numbers.get(node_id)

    def place(self, node: NewNode) -> NewNode:
        """A new node, put at the same place here."""
        return replace(node, session_id=self.session.id, parent_id=self.of(node.parent_id))


@dataclass(eq=False, repr=False)
class Copies:
    """Makes copies of the sample when they are needed."""

    _store: SessionStore  # where they are saved
    _supervisor: Supervisor  # knows the model that will go on in them
    _sessions: OpenSessions  # the open sessions
    _setups: Setups  # what they are set to goes with them
    _windows: Windows  # those that show the sample show its copy from then on
    _copying: set[int] = field(default_factory=set, init=False)  # samples whose copy is being made

    async def target(self, session: WholeSession, *, any_model: bool = False) -> Target:
        """The session itself, or a copy of the sample, which is shown from now on.

        Args:
            session: What is to be changed.
            any_model: Its tokens are of no interest.

        Raises:
            Refusal: The model that runs cannot read the sample's tokens; says what to do. Nothing was copied.
                Or a copy for another change is being made.
        """
        if not session.is_sample:
            return Target(session)
        if session.id in self._copying:
            raise Refusal(translate("Workbench", BUSY))
        model = self._supervisor.running  # one that is still loading is asked when the answer begins
        if model is not None and not any_model:
            try:
                check_tokens(model, session, session.tree.path(session.tip))
            except InvalidRequestError as fault:
                raise Refusal(str(fault)) from fault
        self._copying.add(session.id)
        try:
            return await self._copy(session)
        finally:
            self._copying.remove(session.id)

    async def _copy(self, session: WholeSession) -> Target:
        titles = [row.title for row in await stored(self._store.sessions())]
        made = await stored(self._store.copy_session(session.id, copy_title(session.title, titles)))
        await self._sessions.show(made.session_id)
        copy = await self._sessions.whole(made.session_id)
        await self._setups.carry(session, copy, made.nodes)
        self._windows.follow(session.id, copy)
        self._windows.tell(SessionCopied(session.id, copy.view(), made.nodes))
        self._windows.tell(SessionsChanged())
        return Target(copy, made.nodes)


async def begin_with(
    sessions: OpenSessions,
    session: WholeSession,
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


def copy_title(title: str, taken: Iterable[str]) -> str:
    """A title for a copy that no other session has: "Rain (copy)", "Rain (copy 2)"."""
    plain, held = _NUMBERED.sub("", title), set(taken)
    first = f"{plain} (copy)"
    if first not in held:
        return first
    number = 2
    while f"{plain} (copy {number})" in held:
        number += 1
    return f"{plain} (copy {number})"
