"""A path in columns, one row a node: what is asked of all of it is arithmetic over arrays, and no walk."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage import NodeColumns

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """From the root on.

    Attributes:
        ids: Of the nodes, ``(n,)``.
        stops: Tokens of each that come before the next node, ``(n,)``; NOTHING (`NodeColumns`): all of them.
        starts: Where turns begin, ``(n,)``; the first node of a path always begins one.
        tokens: That are stored of each, ``(n,)``, on the path or not.
        has_text: Whether each has words, ``(n,)``.
    """

    ids: Int64
    stops: Int64
    starts: Bool
    tokens: Int64
    has_text: Bool
    _order: Int64  # rows by id

    @classmethod
    def along(cls, columns: NodeColumns, places: array[int]) -> Course:
        """The path through these rows of a session's nodes."""
        at = np.asarray(places, np.int64)
        stops = np.full(len(at), NodeColumns.NOTHING, np.int64)
        stops[:-1] = np.asarray(columns.at_token)[at[1:]]
        kinds = np.asarray(columns.kind)[at]
        starts = np.array([kind.turn_start for kind in columns.kinds], np.bool_)[kinds]
        starts[:1] = True
        has_text = np.array([kind.has_text for kind in columns.kinds], np.bool_)[kinds]
        ids = np.asarray(columns.id)[at]
        return cls(ids, stops, starts, np.asarray(columns.token_count)[at], has_text, np.argsort(ids))

    def __len__(self) -> int:
        """Nodes of the path."""
        return len(self.ids)

    @property
    def turns(self) -> Int64:
        """The rows where turns begin, ``(turns,)``."""
        return np.flatnonzero(self.starts)

    def rows(self, ids: Int64) -> Int64:
        """Which row each of some nodes is, ``(k,)``; -1 where the path does not go through it."""
        if not len(self) or not len(ids):
            return np.full(len(ids), -1, np.int64)
        near = np.minimum(np.searchsorted(self.ids, ids, sorter=self._order), len(self) - 1)
        found = self._order[near]
        return np.where(self.ids[found] == ids, found, -1)

    def row(self, node_id: int) -> int | None:
        """Which row a node is; None where the path does not go through it."""
        found = int(self.rows(np.array([node_id], np.int64))[0])
        return None if found < 0 else found

    def stop(self, row: int) -> int | None:
        """Tokens of a node that come before the next one; None: all of them."""
        stop = int(self.stops[row])
        return None if stop == NodeColumns.NOTHING else stop

    def lengths(self, known: tuple[Int64, Int64]) -> Int64:
        """Tokens of each node that stand on the path, ``(n,)``; text without tokens is shown as one.

        Args:
            known: Ids of nodes, and how many tokens each has, whatever is stored of it.
        """
        ids, counts = known
        rows, lengths = self.rows(ids), self.tokens.copy()
        lengths[rows[rows >= 0]] = counts[rows >= 0]
        lengths = np.where(lengths > 0, lengths, self.has_text)
        return np.where(self.stops == NodeColumns.NOTHING, lengths, np.minimum(lengths, self.stops))
