"""Branches put out of sight: kept in the store, hidden in the outline and among the variants until they are restored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from app.workbench.refusals import GONE, stored
from app.workbench.session import OpenSession
from app.workbench.tree import Tree, is_hidden
from storage import SessionStore
from ui import Refusal

Move = Callable[[OpenSession, int], Awaitable[None]]
Branch = tuple[int, int]  # a node, and the token of it where the branch begins


async def load_pruned(store: SessionStore, session_id: int) -> set[Branch]:
    """Those of a session."""
    held = await stored(store.setting(_key(session_id)))
    pairs = held if isinstance(held, list) else []
    return {(pair[0], pair[1]) for pair in pairs if isinstance(pair, list) and len(pair) == 2}


async def prune(store: SessionStore, session: OpenSession, branch: Branch, move: Move, *, pruned: bool) -> None:
    """Puts a branch out of sight, or back; where it was shown, the latest one that is left is shown instead, by `move`.

    Raises:
        Refusal: There is no such branch, or it is the only one.
    """
    node_id, start = branch
    if node_id not in session.tree.nodes or start < 0:
        raise Refusal(GONE)
    wanted = session.pruned | {branch} if pruned else session.pruned - {branch}
    tip = session.tip
    if pruned and tip is not None and is_hidden(session.tree, wanted, tip):
        tip = latest_in_sight(session.tree, wanted)
        if tip is None:
            raise Refusal("this is the only branch: there would be nothing left to show")
    await stored(store.set_setting(_key(session.id), sorted(wanted)))
    session.pruned = wanted
    if tip is not None and tip != session.tip:
        await move(session, tip)


def latest_in_sight(tree: Tree, pruned: Collection[Branch]) -> int | None:
    """The newest end of a path that goes through no pruned branch."""
    ends = [n for n in tree.nodes.values() if n.role != "system" and not any(map(tree.leaves_at_end, tree.children(n.id)))]
    return next((n.id for n in sorted(ends, key=lambda n: -n.seq) if not is_hidden(tree, pruned, n.id)), None)


def _key(session_id: int) -> str:
    return f"pruned/{session_id}"
