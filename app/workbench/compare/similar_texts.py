"""What was said in each turn of a session, on all branches: texts alone, no tokens are read for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

from app.workbench.refusals import stored
from app.workbench.setup.beginning import Beginning
from app.workbench.tree.outline import out_of_sight
from app.workbench.tree.reading import slices
from app.workbench.tree.session import OpenSession
from app.workbench.tree.tree import Turn
from storage import NodeRow, SessionStore

IN_WORK: Final = "open"  # a stored answer that nobody has ended yet


@dataclass(frozen=True, slots=True)
class Said:
    """A version of a turn, named by its last node."""

    node_id: int
    role: str
    text: str
    damaged: bool  # part of it cannot be trusted


async def everything_said(store: SessionStore, session: OpenSession) -> AsyncIterator[Said]:
    """All turns that are in sight, oldest first, but those that are being written; what is read for it is not kept.

    Raises:
        Refusal: The store cannot read them.
    """
    hidden = out_of_sight(session.tree, session.pruned)
    for ids in slices([i for i in session.tree.turn_ends() if i not in hidden]):
        turns = [session.tree.turn(i) for i in ids if i in session.tree.nodes]
        wanted = {segment.node.id for turn in turns for segment in turn.segments}
        rows = {i: session.tree.nodes[i] for i in wanted if session.tree.is_held(i)}
        unread = sorted(wanted - rows.keys())
        for row in await stored(store.load_nodes(session.id, unread)) if unread else ():
            rows[row.id] = row
        for turn in turns:
            nodes = [segment.node.id for segment in turn.segments]
            if all(i in rows and i not in session.states and rows[i].status != IN_WORK for i in nodes):
                yield _said(turn, rows)


def _said(turn: Turn, rows: Mapping[int, NodeRow]) -> Said:
    nodes = [rows[segment.node.id] for segment in turn.segments]
    if turn.role == "system":
        text = Beginning.of(nodes[0]).content
    else:
        stops = [*(node.at_byte for node in nodes[1:]), None]
        parts = [node.text.encode()[:stop] for node, stop in zip(nodes, stops, strict=True)]
        text = b"".join(parts).decode(errors="replace")
    return Said(nodes[-1].id, turn.role, text, any(node.damaged for node in nodes))
