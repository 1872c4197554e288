"""Parent and child indices of a session's nodes, and a path of nodes as columns."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from storage import NodeColumns, NodeRow

NONE = -1  # no row
Ints = npt.NDArray[np.int64]


class NodeIndex:
    """The nodes by place (their row in `columns`), in the order of creation, parents before children.

    A damaged row whose parent is younger than itself becomes a root, so that no path is a circle.

    Args:
        columns: The stored nodes; this object changes them.
    """

    def __init__(self, columns: NodeColumns) -> None:
        self.columns = columns
        self._late: dict[int, int] = {}  # places by id, of nodes after one with a higher id
        self._removed: set[int] = set()  # places of removed nodes
        self._highest = 0  # highest id
        self._sorted = 0  # length of the leading part whose ids ascend
        self._up = array("i")  # place of the parent, by place
        self._first, self._last, self._next = array("i"), array("i"), array("i")  # first and last child, next sibling
        self._roots = [NONE, NONE]  # first and last root
        self._ends: Ints | None = None  # see `chain_end`
        self._link_sorted()
        for place in range(self._sorted, len(columns)):
            self._link(place)

    def __len__(self) -> int:
        return len(self._up) - len(self._removed)

    def __iter__(self) -> Iterator[int]:
        """Places of all nodes, oldest first."""
        return (place for place in range(len(self._up)) if place not in self._removed)

    def place(self, node_id: object) -> int:
        """The place of a node; NONE if there is none."""
        if not isinstance(node_id, int):
            return NONE
        found = self._late.get(node_id, NONE)
        if found == NONE and 0 < node_id <= self._highest:
            at = bisect_left(self.columns.id, node_id, 0, self._sorted)
            found = at if at < self._sorted and self.columns.id[at] == node_id else NONE
        return NONE if found in self._removed else found

    def put(self, node: NodeRow) -> int:
        """Adds a node, or replaces its row except for the parent; returns its place."""
        place = self.place(node.id)
        if place == NONE:
            self.columns.append(node)
            place = len(self._up)
            self._link(place)
            return place
        self._ends = None
        parent = self.columns.parent[place]
        self.columns.set(place, node)
        self.columns.parent[place] = parent
        return place

    def remove(self, place: int) -> None:
        """Removes a node without children."""
        up, before = self._up[place], NONE
        for each in self.children(up):
            if each == place:
                break
            before = each
        after = self._next[place]
        if before != NONE:
            self._next[before] = after
        else:
            self._set_end(up, 0, after)
        if after == NONE:
            self._set_end(up, 1, before)
        self._late.pop(self.columns.id[place], None)
        self._removed.add(place)
        self._ends = None

    def up(self, place: int) -> int:
        """The parent's place; NONE of a root."""
        return self._up[place]

    def children(self, place: int) -> Iterator[int]:
        """Places of a node's children (NONE: the roots), oldest first."""
        each = self._end(place, 0)
        while each != NONE:
            yield each
            each = self._next[each]

    def chain_end(self, place: int) -> int:
        """The last node of the chain from a node down, in which each node has one child, which leaves at its end."""
        if self._ends is None:
            self._ends = self._chained()
        return int(self._ends[place])

    def _chained(self) -> Ints:
        """The end of the chain of each place, by pointer doubling."""
        child, at_end = np.array(self._first, np.int64), np.asarray(self.columns.token_count)
        at = np.asarray(self.columns.at_token)[child]
        goes_on = (at == NodeColumns.NOTHING) | ((at >= at_end) & (at_end > 0))
        alone = (child != NONE) & (child == np.asarray(self._last)) & goes_on
        ends = np.where(alone, child, np.arange(len(child)))
        while not np.array_equal(further := ends[ends], ends):
            ends = further
        return ends

    def leaves_at_end(self, place: int) -> bool:
        """Whether a node continues its parent's last token."""
        at, up = self.at_token(place), self._up[place]
        return at is None or (up != NONE and at >= self.columns.token_count[up] > 0)

    def at_token(self, place: int) -> int | None:
        """The number of the parent's tokens that precede a node; None: all."""
        at = self.columns.at_token[place]
        return None if at == NodeColumns.NOTHING else at

    def path(self, place: int, above: int = NONE) -> array[int]:
        """Places from the root, or from the child of `above`, to a node."""
        found = array("i")
        while place not in (above, NONE):
            found.append(place)
            place = self._up[place]
        found.reverse()
        return found

    def _link_sorted(self) -> None:
        """Links the leading places whose ids ascend, all at once; `_link` links a single place."""
        ids, parents = np.asarray(self.columns.id), np.asarray(self.columns.parent)
        before = np.concatenate([np.zeros(min(len(ids), 1), np.int64), ids[:-1]])
        breaks = np.flatnonzero(ids <= before)
        count = int(breaks[0]) if len(breaks) else len(ids)
        if not count:
            return
        ids, parents = ids[:count], parents[:count]
        near = np.minimum(np.searchsorted(ids, parents), count - 1)
        up = np.where((ids[near] == parents) & (near < np.arange(count)), near, NONE)
        parents[up == NONE] = NodeColumns.NOTHING
        order = np.argsort(up, kind="stable")  # groups children by parent, oldest first
        first, last, after = (np.full(count, NONE, np.int64) for _ in range(3))
        same = up[order[1:]] == up[order[:-1]]
        after[order[:-1][same]] = order[1:][same]
        heads, tails = order[np.concatenate([[True], ~same])], order[np.concatenate([~same, [True]])]
        for ends, which, at in ((heads, first, 0), (tails, last, 1)):
            below = up[ends] != NONE
            which[up[ends[below]]] = ends[below]
            self._roots[at] = int(ends[~below][0])
        for column, values in ((self._up, up), (self._first, first), (self._last, last), (self._next, after)):
            column.frombytes(values.astype(np.intc).tobytes())
        self._highest, self._sorted = int(ids[-1]), count

    def _link(self, place: int) -> None:
        self._ends = None
        node_id = self.columns.id[place]
        parent = self.place(self.columns.parent[place])
        if parent == NONE:
            self.columns.parent[place] = NodeColumns.NOTHING
        if node_id > self._highest and self._sorted == place:
            self._highest, self._sorted = node_id, place + 1
        else:
            self._late[node_id] = place
        self._up.append(parent)
        for column in (self._first, self._last, self._next):
            column.append(NONE)
        last = self._end(parent, 1)
        if last == NONE:
            self._set_end(parent, 0, place)
        else:
            self._next[last] = place
        self._set_end(parent, 1, place)

    def _end(self, place: int, which: int) -> int:
        return self._roots[which] if place == NONE else (self._first, self._last)[which][place]

    def _set_end(self, place: int, which: int, child: int) -> None:
        if place == NONE:
            self._roots[which] = child
        else:
            (self._first, self._last)[which][place] = child


Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class PathColumns(Struct, frozen=True, eq=False):
    """The nodes of a path from the root, as columns."""

    ids: Int64  # ``(n,)``
    stops: Int64  # tokens of each that precede the next node, ``(n,)``; NOTHING (`NodeColumns`): all of them
    starts: Bool  # whether each begins a turn, ``(n,)``; the first always does
    tokens: Int64  # stored tokens of each, ``(n,)``, on the path or not
    has_text: Bool  # ``(n,)``
    _order: Int64  # rows sorted by id

    @classmethod
    def along(cls, columns: NodeColumns, places: array[int]) -> PathColumns:
        """The path of these places."""
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
        return len(self.ids)

    @property
    def turns(self) -> Int64:
        """The rows that begin a turn, ``(turns,)``."""
        return np.flatnonzero(self.starts)

    def rows(self, ids: Int64) -> Int64:
        """The rows of nodes, ``(k,)``; -1 for those off the path."""
        if not len(self) or not len(ids):
            return np.full(len(ids), -1, np.int64)
        near = np.minimum(np.searchsorted(self.ids, ids, sorter=self._order), len(self) - 1)
        found = self._order[near]
        return np.where(self.ids[found] == ids, found, -1)

    def row(self, node_id: int) -> int | None:
        """The row of a node; None if it is off the path."""
        found = int(self.rows(np.array([node_id], np.int64))[0])
        return None if found < 0 else found

    def stop(self, row: int) -> int | None:
        """Tokens of a node that precede the next one; None: all of them."""
        stop = int(self.stops[row])
        return None if stop == NodeColumns.NOTHING else stop

    def ends(self) -> Int64:
        """`stops`, with the highest integer instead of NOTHING, ``(n,)``."""
        return np.where(self.stops == NodeColumns.NOTHING, np.iinfo(np.int64).max, self.stops)

    def lengths(self, known: tuple[Int64, Int64]) -> Int64:
        """Tokens of each node that are on the path, ``(n,)``; text without tokens counts as one.

        Args:
            known: Ids of nodes and their token counts, which replace the stored ones.
        """
        ids, counts = known
        rows, lengths = self.rows(ids), self.tokens.copy()
        lengths[rows[rows >= 0]] = counts[rows >= 0]
        lengths = np.where(lengths > 0, lengths, self.has_text)
        return np.where(self.stops == NodeColumns.NOTHING, lengths, np.minimum(lengths, self.stops))
