"""Reads an open session from the store: nodes, their tokens, and what its outline is made of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from app.workbench.refusals import stored
from app.workbench.tree.session import OpenSession
from storage import NodeRow, SessionStore

SLICE = 64  # nodes that are read at a time


async def read(store: SessionStore, session: OpenSession, missing: Sequence[int]) -> None:
    """Reads nodes and their tokens, from the last one on, in slices: no frame waits for more than one of them.

    Raises:
        Refusal: The store cannot read them.
    """
    for stop in range(len(missing), 0, -SLICE):
        ids = missing[max(stop - SLICE, 0) : stop]
        await _read_nodes(store, session, [i for i in ids if not session.tree.is_held(i)])
        session.add_tokens(await stored(store.load_tokens([i for i in ids if i not in session.runs])))


async def read_names(store: SessionStore, session: OpenSession) -> None:
    """Reads the texts that the outline is made of.

    Raises:
        Refusal: The store cannot read them.
    """
    for ids in slices(session.unnamed()):
        await _read_nodes(store, session, ids)


async def every_node(store: SessionStore, session: OpenSession) -> AsyncIterator[NodeRow]:
    """All nodes of a session, read or not, a few at a time; those that were not read are not kept.

    Raises:
        Refusal: The store cannot read them.
    """
    for ids in slices(list(session.tree.nodes)):
        unread = [i for i in ids if not session.tree.is_held(i)]
        for node in await stored(store.load_nodes(session.id, unread)) if unread else ():
            yield node
        for node_id in ids:
            held = session.tree.nodes.get(node_id)
            if held is not None and held.whole:
                yield held


def slices(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """The same in parts of `SLICE`."""
    return (ids[at : at + SLICE] for at in range(0, len(ids), SLICE))


async def _read_nodes(store: SessionStore, session: OpenSession, node_ids: Sequence[int]) -> None:
    for node in await stored(store.load_nodes(session.id, node_ids)) if node_ids else ():
        if node.id in session.tree.nodes and not session.tree.is_held(node.id):  # else it is newer here, or gone
            session.tree.put(node)
