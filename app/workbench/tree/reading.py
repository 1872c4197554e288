"""Reads an open session from the store: nodes, their tokens, and the texts of its outline."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from app.workbench.refusals import stored
from app.workbench.tree.session import OpenSession, WholeSession
from storage import NodeRow, SessionStore

SLICE = 64  # nodes that are read at a time


async def load_whole(store: SessionStore, session_id: int, *, branches: bool = False) -> WholeSession:
    """A session from the store, with the tokens of the path shown last, or of all branches.

    Raises:
        StoreError: It cannot be read.
    """
    session = WholeSession(await store.load_session(session_id))
    nodes = list(session.tree.nodes) if branches else [segment.node.id for segment in session.tree.path(session.tip)]
    for ids in slices(nodes):
        session.add_tokens(await store.load_tokens(ids))
    return session


async def read(store: SessionStore, session: OpenSession, missing: Sequence[int]) -> None:
    """Reads nodes and their tokens in slices, last ones first, so that no frame waits for more than one slice.

    Raises:
        Refusal: The store cannot read them.
    """
    for stop in range(len(missing), 0, -SLICE):
        ids = missing[max(stop - SLICE, 0) : stop]
        await _read_nodes(store, session, [i for i in ids if not session.tree.is_held(i)])
        session.add_tokens(await stored(store.load_tokens(session.without_tokens(ids))))


async def read_whole(store: SessionStore, session: OpenSession, *tips: int | None) -> WholeSession:
    """The session, with all tokens of the paths to `tips` read.

    Raises:
        Refusal: The store cannot read them.
    """
    for tip in tips:
        await read(store, session, session.unread_along(tip))
    assert isinstance(session, WholeSession)  # every open session is one; only this function casts it
    return session


async def read_names(store: SessionStore, session: OpenSession) -> None:
    """Reads the texts that the outline needs.

    Raises:
        Refusal: The store cannot read them.
    """
    for ids in slices(session.unnamed()):
        await _read_nodes(store, session, ids)


async def every_node(
    store: SessionStore, session: OpenSession, node_ids: Sequence[int] | None = None
) -> AsyncIterator[NodeRow]:
    """Yields nodes of a session, by default all, in slices; nodes read only for this are not kept.

    Raises:
        Refusal: The store cannot read them.
    """
    for ids in slices(list(session.tree.nodes) if node_ids is None else node_ids):
        unread = [i for i in ids if not session.tree.is_held(i)]
        for node in await stored(store.load_nodes(session.id, unread)) if unread else ():
            yield node
        for node_id in ids:
            held = session.tree.nodes.get(node_id)
            if held is not None and held.whole:
                yield held


def slices(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Ids in slices of `SLICE`."""
    return (ids[at : at + SLICE] for at in range(0, len(ids), SLICE))


async def _read_nodes(store: SessionStore, session: OpenSession, node_ids: Sequence[int]) -> None:
    for node in await stored(store.load_nodes(session.id, node_ids)) if node_ids else ():
        if node.id in session.tree.nodes and not session.tree.is_held(node.id):  # otherwise it is newer here, or was removed
            session.tree.put(node)
