"""Copies the sample before a change, since the sample itself never changes; copies turns under another root."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
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
from app.workbench.tree.tree import TreeTurn
from app.workbench.windows import Windows
from runtime import InvalidRequestError
from storage import NewNode, NodeRow, SessionStore
from ui import BUSY, Refusal, SessionCopied, SessionsChanged, translate

_NUMBERED = re.compile(r" \(copy(?: \d+)?\)$")


class Target(Struct, frozen=True):
    """The session to be changed, and its node ids by those of the original."""

    session: WholeSession
    node_ids: Mapping[int, int] | None = None  # None: the session is the original

    def of(self, node_id: int | None) -> int | None:
        """The id in this session of a node of the original."""
        return node_id if self.node_ids is None or node_id is None else self.node_ids.get(node_id)

    def place(self, node: NewNode) -> NewNode:
        """A new node for the original, moved to the same place in this session."""
        return replace(node, session_id=self.session.id, parent_id=self.of(node.parent_id))


@dataclass(eq=False, repr=False)
class Copies:
    """Copies the sample when a command would change it."""

    _store: SessionStore
    _supervisor: Supervisor  # its model must read the sample's tokens
    _sessions: OpenSessions
    _setups: Setups  # settings of sessions, which are copied too
    _windows: Windows  # windows with the sample show its copy afterwards
    _copying: set[int] = field(default_factory=set, init=False)  # samples whose copy is being made

    async def target(self, session: WholeSession, *, any_model: bool = False) -> Target:
        """The session itself, or a copy of the sample, which is shown from now on.

        Args:
            session: The session to be changed.
            any_model: Whether the change needs no tokens.

        Raises:
            Refusal: The running model cannot read the sample's tokens, or another copy is being made.
        """
        if not session.is_sample:
            return Target(session)
        if session.id in self._copying:
            raise Refusal(translate("Workbench", BUSY))
        model = self._supervisor.running  # a model that is still loading is checked when the answer begins
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
    turns: Sequence[TreeTurn],
    stats: Mapping[str, Any],
    fingerprint: str | None = None,
) -> None:
    """Copies turns under a new root, and shows them.

    Args:
        sessions: Adds the nodes.
        session: The session.
        root: The root of the original.
        turns: The turns; all keep their tokens except the first, which follows other tokens now.
        stats: Additional stats of the new root.
        fingerprint: The fingerprint for the tokens' numbers; None: no turn keeps its tokens.
    """
    beginning = Beginning.of(root) if root is not None else Beginning()
    kept = {**beginning.stats, **stats}
    parent = await sessions.add(session, NewNode(session.id, None, "system", text=beginning.system, stats=kept))
    for place, turn in enumerate(turns):
        run, node = without_numbers(session.turn_run(turn)), turn.tip
        role: Any = turn.role  # from a stored node, so the store knows it
        new = NewNode(session.id, parent.id, role, text=session.content(turn), finish_reason=node.finish_reason)
        tokenised = fingerprint is not None and place > 0 and len(session.runs.get(node.id, EMPTY))
        parent = await sessions.add(session, new, chunk(run, fingerprint) if tokenised and fingerprint is not None else None)
        if tokenised:
            session.runs[parent.id] = run


def copy_title(title: str, taken: Iterable[str]) -> str:
    """An unused title for a copy: "Rain (copy)", "Rain (copy 2)"."""
    plain, held = _NUMBERED.sub("", title), set(taken)
    titles = chain([f"{plain} (copy)"], (f"{plain} (copy {number})" for number in count(2)))
    return next(each for each in titles if each not in held)
