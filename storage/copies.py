"""A session copied whole, into the same folder and with the same tags: the same tree and tokens under new numbers.

It is read as it stands at one moment, and written as an import is: in slices, seen by nobody until it is whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from storage.text import clean
from storage.transfer.parts import NODE_MORE, SESSION_MORE, EndPart, NodePart, Part, PlacePart, SessionPart, TokensPart
from storage.transfer.reading import StoredSession, stored_session


class SessionSource:
    """A session of the store as parts of an import; used by one thread.

    Checksums of the copy are its own: what is damaged is refused, so that damage is never sealed in.

    Args:
        store: The sessions file.
        session_id: Which session.
        title: What the copy is called.

    Raises:
        UnknownRowError: There is no such session.
        StoreDamagedError: Part of it is damaged.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, store: Path, session_id: int, title: str) -> None:
        self._title = clean(title)
        self._reading = stored_session(store, session_id)
        self._session = self._reading.__enter__()
        try:
            self._session.require_whole()
        except BaseException:
            self.close()
            raise
        self.total, self.done = 2 * self._session.node_count, 0  # nodes: themselves, then their tokens
        self.nodes: list[int] = []  # the original's, in the order of the copy's

    def close(self) -> None:
        """Ends the moment at which it is read."""
        self._reading.__exit__(None, None, None)

    def parts(self) -> Iterator[Part]:
        """Everything in it, in the order in which it is to be written."""
        session = self._session
        yield SessionPart(self._title, more={name: session.row[name] for name in SESSION_MORE})
        for stands in session.place():
            yield PlacePart(stands["folder_id"], stands["tags"])
        places: dict[int | None, int | None] = {None: None}
        for row in session.nodes():
            places[row["id"]] = len(self.nodes)
            self.nodes.append(row["id"])
            yield NodePart(
                parent=places[row["parent_id"]],
                role=row["role"],
                text=clean(row["text"]),
                at_token=row["at_token"],
                at_byte=row["at_byte"],
                at_end=bool(row["at_end"]),
                turn_start=bool(row["turn_start"]),
                status=row["status"],
                finish_reason=row["finish_reason"],
                token_count=row["token_count"],
                kv_fingerprint=row["kv_fingerprint"],
                stats=row["stats"],
                created=row["created"],
                more={name: row[name] for name in NODE_MORE},
            )
            self.done += 1
        for place, node_id in enumerate(self.nodes):
            yield from self._tokens(session, place, node_id)
            self.done += 1
        yield EndPart(places.get(session.row["current_node"]), session.row["branches"])

    def _tokens(self, session: StoredSession, place: int, node_id: int) -> Iterator[Part]:
        for row in session.chunks(node_id):
            yield TokensPart(place, row["kv_fingerprint"], row["first"], row["count"], row["columns"], row["summary"])
