"""Branches put out of sight: kept in the store, hidden in the outline and among the variants until they are restored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from app.workbench.refusals import GONE
from app.workbench.setup.setups import Setups
from app.workbench.setup.values import Branch
from app.workbench.tree.session import OpenSession
from app.workbench.tree.tree import Tree, is_hidden
from ui import Refusal, translate

Move = Callable[[OpenSession, int], Awaitable[None]]


async def prune(setups: Setups, session: OpenSession, branch: Branch, move: Move, *, pruned: bool) -> None:
    """Puts a branch out of sight, or back; where it was shown, the latest one that is left is shown instead, by `move`.

    Raises:
        Refusal: There is no such branch, or it is the only one.
    """
    node_id, start = branch
    if node_id not in session.tree.nodes or start < 0:
        raise Refusal(translate("Workbench", GONE))
    held = frozenset(session.pruned)
    wanted = held | {branch} if pruned else held - {branch}
    tip = session.tip
    if pruned and tip is not None and is_hidden(session.tree, wanted, tip):
        tip = latest_in_sight(session.tree, wanted)
        if tip is None:
            raise Refusal(translate("Workbench", "this is the only branch: there would be nothing left to show"))
    await setups.set_pruned(session, wanted)
    if tip is not None and tip != session.tip:
        await move(session, tip)


def out_of_sight(tree: Tree, pruned: Collection[Branch]) -> set[int]:
    """Nodes to whose ends every path goes through a pruned branch."""
    hidden: set[int] = set()
    for node_id, start in pruned:
        leaving = [child.id for child in tree.children(node_id) if child.at_token is None or child.at_token > start]
        hidden.add(node_id)
        while leaving:
            each = leaving.pop()
            hidden.add(each)
            leaving += [child.id for child in tree.children(each)]
    return hidden


def latest_in_sight(tree: Tree, pruned: Collection[Branch]) -> int | None:
    """The newest end of a path that goes through no pruned branch."""
    ends = [n for n in tree.nodes.values() if n.role != "system" and not any(map(tree.leaves_at_end, tree.children(n.id)))]
    return next((n.id for n in sorted(ends, key=lambda n: -n.seq) if not is_hidden(tree, pruned, n.id)), None)
