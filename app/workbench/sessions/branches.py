"""Shows, hides, names and compares the branches of a session (`ui.port.BranchCommands`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from app.workbench.answers.answer import RunningAnswers
from app.workbench.refusals import GONE
from app.workbench.sessions.open_sessions import OpenSessions
from app.workbench.setup.setups import Setups
from app.workbench.setup.values import MOST_NAME, Branch, SessionValues
from app.workbench.tree.outline import latest_visible
from app.workbench.tree.reading import every_node, read
from app.workbench.tree.session import OpenSession
from app.workbench.tree.tree import is_hidden
from app.workbench.tree.turn_rows import found_in, segments_of, text_of, turn_rows
from app.workbench.windows import Windows
from storage import SessionStore
from ui import Refusal, RowText, SessionChanged, SessionView, TreeRow, translate

if TYPE_CHECKING:
    from ui import BranchDiff


@dataclass(eq=False, repr=False)
class SessionBranches:
    """Shows, hides and compares branches (`ui.port.BranchCommands`)."""

    _store: SessionStore
    _sessions: OpenSessions
    _setups: Setups  # save hidden branches, names and bookmarks
    _running: RunningAnswers  # no other branch is shown during an answer
    _windows: Windows

    async def select(self, session_id: int, node_id: int, *, as_before: bool = False) -> SessionView:
        """Shows the path through a node; with `as_before` the turn ends at the node."""
        session = self._sessions.opened(session_id)
        self._running.check_idle(session_id)
        await self._sessions.move(session, node_id, as_before=as_before)
        return self._show(session)

    def has(self, session_id: int, node_id: int) -> bool:
        session = self._sessions.opened(session_id)
        return session.in_place_of(node_id) in session.tree.nodes

    async def show_turn(self, session_id: int, node_id: int) -> SessionView:
        """Shows a path through a turn, with some turns before it; changes the path only while no answer runs."""
        session = self._sessions.opened(session_id)
        if node_id not in session.tree.nodes:
            raise Refusal(translate("Workbench", GONE))
        if not session.tree.goes_through(session.tip, node_id):
            self._running.check_idle(session_id)
            await self._sessions.move(session, node_id)
        # the path goes through the node, and a child's id is higher than its parent's
        session.step_back_to(next((end for end in session.tree.ends(session.tip) if end >= node_id), node_id))
        await read(self._store, session, session.missing())
        return self._show(session)

    async def tree(self, session_id: int) -> Sequence[TreeRow]:
        return self._rows(self._sessions.opened(session_id))

    async def row_texts(self, session_id: int, rows: Sequence[TreeRow]) -> Sequence[RowText]:
        """The texts of rows; empty for a row that no longer exists."""
        session = self._sessions.opened(session_id)
        held = [segments_of(session.tree, row) for row in rows]
        await read(self._store, session, session.unread(segment for segments in held for segment in segments))
        return [session.row_text(segments_of(session.tree, row), row.start, row.common) for row in rows]

    async def find_rows(self, session_id: int, words: str) -> Sequence[tuple[int, int]]:
        """The rows that contain `words`; texts read for this are not kept."""
        session = self._sessions.opened(session_id)
        texts = {node.id: node.text async for node in every_node(self._store, session)}
        return list(found_in(session.tree, self._rows(session), texts, words))

    async def earlier_texts(self, session_id: int) -> Sequence[tuple[int, str, str]]:
        """Node, role and text of the turns before the shown ones; texts read for this are not kept."""
        session = self._sessions.opened(session_id)
        turns = session.tree.turns(session.tip)[: session.earlier]
        nodes = [segment.node.id for turn in turns for segment in turn.segments]
        texts = {node.id: node.text async for node in every_node(self._store, session, nodes)}
        return [(turn.tip.id, turn.role, text_of(session.tree, turn.segments, texts)) for turn in turns]

    def _rows(self, session: OpenSession) -> tuple[TreeRow, ...]:
        values = session.values
        names, bookmarks = (values.names, values.bookmarks) if values is not None else ({}, frozenset())
        return turn_rows(session.tree, session.tip, pruned=session.pruned, names=names, bookmarks=bookmarks)

    async def prune(self, session_id: int, node_id: int, start: int, pruned: bool) -> None:  # a state, not an option
        """Hides a branch in the outline and among the variants, or shows it again.

        If the path shown is hidden, the latest visible one is shown instead.

        Raises:
            Refusal: There is no such branch, or it is the only one.
        """
        session = self._opened(session_id, node_id, start)
        self._running.check_idle(session_id)
        branch = (node_id, start)

        def changed(held: SessionValues) -> SessionValues:
            wanted = held.pruned | {branch} if pruned else held.pruned - {branch}
            if pruned and session.tip is not None and _visible_tip(session, wanted) is None:
                raise Refusal(translate("Workbench", "this is the only branch: there would be nothing left to show"))
            return replace(held, pruned=wanted)

        await self._setups.keep(session, changed)
        tip = _visible_tip(session, session.pruned) if pruned else None
        if tip is not None and tip != session.tip:
            await self._sessions.move(session, tip)
        self._show(session)

    async def rename(self, session_id: int, node_id: int, start: int, name: str) -> None:
        """Gives a branch a name; "" removes it.

        Raises:
            Refusal: There is no such branch, or the store cannot write.
        """
        session = self._opened(session_id, node_id, start)
        branch, name = (node_id, start), " ".join(name.split())[:MOST_NAME]

        def changed(held: SessionValues) -> SessionValues:
            others = {each: kept for each, kept in held.names.items() if each != branch}
            return replace(held, names={**others, branch: name} if name else others)

        await self._setups.keep(session, changed)
        self._show(session)

    async def bookmark(self, session_id: int, node_id: int, start: int, marked: bool) -> None:  # a state, not an option
        """Sets or removes the bookmark of a row of the tree.

        Raises:
            Refusal: There is no such row, or the store cannot write.
        """
        session = self._opened(session_id, node_id, start)
        row = {(node_id, start)}
        await self._setups.keep(
            session, lambda held: replace(held, bookmarks=held.bookmarks | row if marked else held.bookmarks - row)
        )
        self._show(session)

    async def compare(self, session_id: int, left: int, right: int) -> BranchDiff:
        from app.workbench.compare.branch_diff import compare  # imports difflib and more: the window opens without it

        return await compare(self._store, self._sessions.opened(session_id), left, right)

    def _opened(self, session_id: int, node_id: int, start: int) -> OpenSession:
        """The open session that has a branch, by its node and first token."""
        session = self._sessions.opened(session_id)
        if node_id not in session.tree.nodes or start < 0:
            raise Refusal(translate("Workbench", GONE))
        return session

    def _show(self, session: OpenSession) -> SessionView:
        view = session.view()
        self._windows.tell(SessionChanged(view))
        self._windows.refresh_status()
        return view


def _visible_tip(session: OpenSession, pruned: Collection[Branch]) -> int | None:
    """The tip; if that is hidden, the latest visible one; None if there is none."""
    hidden = session.tip is not None and is_hidden(session.tree, pruned, session.tip)
    return latest_visible(session.tree, pruned) if hidden else session.tip
