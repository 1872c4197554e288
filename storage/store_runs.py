"""The store's members about runs and their tokens. Part of `SessionStore`, which says what holds for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from storage.database import Database
from storage.rows import NewChunk, NewNode, NodeRow, SessionTree, StoredChunk
from storage.tables import nodes, token_chunks, trash
from storage.tables.node_columns import SessionShape


class RunMembers:
    """Trees of runs: read, grown at their ends, scored anew; what was saved is not rewritten."""

    _database: Database

    async def set_current(self, session_id: int, node_id: int | None) -> None:
        """Makes `node_id` the tip of the path that is shown."""
        await self._database.write(lambda db: nodes.set_current(db, session_id, node_id))

    async def load_session(self, session_id: int) -> SessionTree:
        """The session and its runs, in the order made, without tokens. Damaged rows are marked, not left out."""
        return await self._database.read(lambda db: nodes.tree(db, session_id))

    async def load_shape(self, session_id: int) -> SessionShape:
        """The session and where its runs stand, without what they say: for long ones. Damaged rows are marked."""
        return await self._database.read(lambda db: nodes.shape(db, session_id))

    async def load_nodes(self, session_id: int, node_ids: Sequence[int], *, after: int | None = None) -> list[NodeRow]:
        """Some runs of a session, in the order made, without tokens; numbers that it does not have are left out.

        Args:
            session_id: Their session.
            node_ids: The runs.
            after: And those with higher numbers than this.
        """
        ids = list(node_ids)
        return await self._database.read(lambda db: nodes.some(db, session_id, ids, after))

    async def add_node(self, node: NewNode, chunk: NewChunk | None = None, *, current: bool = False) -> int:
        """Adds a run with its first tokens, and (`current`) makes it the tip that is shown, in one transaction.

        Returns:
            The new node's id; everything is on disk by then.

        Raises:
            InvalidRowError: A parent in another session, an `at_token` the parent does not have, columns that do not fit.
        """
        return await self._database.write(lambda db: nodes.add(db, node, chunk, current=current))

    async def append_chunk(self, node_id: int, chunk: NewChunk) -> None:
        """Saves the next tokens of an open run (or all tokens of a finished run that has none yet). Rewrites nothing.

        Raises:
            InvalidRowError: The chunk does not follow what is saved, or the run is finished.
        """
        await self._database.write(lambda db: token_chunks.append(db, nodes.require(db, node_id), chunk))

    async def rescore(self, node_id: int, chunk: NewChunk) -> None:
        """Saves another set of columns for tokens of a run, or for its bytes as another model cuts them.

        When read, the newest per fingerprint and range wins; what was saved before stays.

        Raises:
            InvalidRowError: Other ids than the run has, or a range that it (or that model so far) does not have.
        """
        await self._database.write(lambda db: token_chunks.rescore(db, nodes.require(db, node_id), chunk))

    async def finish_node(
        self, node_id: int, *, finish_reason: str | None, incomplete: bool = False, stats: Mapping[str, Any], text: str
    ) -> None:
        """Ends an open run: "complete" after None, eos, stop or grammar, else "partial". Its text can be searched from now on.

        Args:
            node_id: The run.
            finish_reason: Why it ended.
            incomplete: It was cut, whatever the reason: "partial" (a stop text inside a structured answer).
            stats: How it was made.
            text: Its content.

        Raises:
            InvalidRowError: The run was finished before.
        """
        await self._database.write(
            lambda db: nodes.finish(db, node_id, finish_reason=finish_reason, incomplete=incomplete, stats=stats, text=text)
        )

    async def discard_node(self, node_id: int) -> None:
        """Deletes an answer that ended before it said anything, so that another one can take its place.

        Raises:
            InvalidRowError: It has words, is still written, or something goes on from it.
        """
        await self._database.write(lambda db: trash.discard(db, node_id))

    async def load_tokens(self, node_ids: Sequence[int], kv_fingerprint: str | None = None) -> dict[int, list[StoredChunk]]:
        """The tokens of several runs, in order, checksums verified; numbers that do not exist are left out.

        Args:
            node_ids: The runs.
            kv_fingerprint: Under this model where it has scored the run; else, and for None, under the run's own. Each
                chunk says whose it is.

        Returns:
            Per run: ranges that follow each other without overlap. A damaged one is marked, never left out.
        """
        ids = list(node_ids)
        return await self._database.read(lambda db: token_chunks.load(db, ids, kv_fingerprint))
