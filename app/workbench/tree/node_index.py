"""Parent and child indices of a session's nodes, and the nodes along a path as columns."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from storage import NodeColumns, NodeRow

NONE = -1  # no place
Ints = npt.NDArray[np.int64]


class Links:
    """Nodes by place, in the order in which they were made; parents stand before their children.

    A parent is always older than its child: a damaged row that says otherwise stands as a root, so that no path is a
    circle.

    Args:
        columns: What is known already; it belongs to this object from now on.
    """

    def __init__(self, columns: NodeColumns) -> None:
        self.columns = columns
        self._late: dict[int, int] = {}  # places of nodes that stand behind one with a higher id
        self._gone: set[int] = set()  # places
        self._highest = 0  # id
        self._sorted = 0  # places from the first whose ids go up
        self._up = array("i")  # the parent's place
        self._first, self._last, self._next = array("i"), array("i"), array("i")  # child, child, sibling
        self._roots = [NONE, NONE]  # first, last
        self._ends: Ints | None = None  # see `last_alone`
        self._link_sorted()
        for place in range(self._sorted, len(columns)):
            self._link(place)

    def __len__(self) -> int:
        return len(self._up) - len(self._gone)

    def __iter__(self) -> Iterator[int]:
        """Places of all nodes, oldest first."""
        return (place for place in range(len(self._up)) if place not in self._gone)

    def place(self, node_id: object) -> int:
        """Where a node stands; NONE where there is none."""
        if not isinstance(node_id, int):
            return NONE
        found = self._late.get(node_id, NONE)
        if found == NONE and 0 < node_id <= self._highest:
            at = bisect_left(self.columns.id, node_id, 0, self._sorted)
            found = at if at < self._sorted and self.columns.id[at] == node_id else NONE
        return NONE if found in self._gone else found

    def put(self, node: NodeRow) -> int:
        """Adds a node, or replaces what is known of it but for its parent; returns its place."""
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
        """Takes out a node that nothing leaves."""
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
        self._gone.add(place)
        self._ends = None

    def up(self, place: int) -> int:
        """The parent's place; NONE of a root."""
        return self._up[place]

    def children(self, place: int) -> Iterator[int]:
        """Places of what leaves a node (NONE: the roots), oldest first."""
        each = self._end(place, 0)
        while each != NONE:
            yield each
            each = self._next[each]

    def last_alone(self, place: int) -> int:
        """Where those end that go on from a node, each from the end of one that nothing else leaves."""
        if self._ends is None:
            self._ends = self._chained()
        return int(self._ends[place])

    def _chained(self) -> Ints:
        """For each place the last of its chain; every round doubles how far a place sees."""
        child, at_end = np.array(self._first, np.int64), np.asarray(self.columns.token_count)
        at = np.asarray(self.columns.at_token)[child]
        goes_on = (at == NodeColumns.NOTHING) | ((at >= at_end) & (at_end > 0))
        alone = (child != NONE) & (child == np.asarray(self._last)) & goes_on
        ends = np.where(alone, child, np.arange(len(child)))
        while not np.array_equal(further := ends[ends], ends):
            ends = further
        return ends

    def leaves_at_end(self, place: int) -> bool:
        """Whether a node goes on from the end of its parent."""
        at, up = self.at_token(place), self._up[place]
        return at is None or (up != NONE and at >= self.columns.token_count[up] > 0)

    def at_token(self, place: int) -> int | None:
        """How many of its parent's tokens come before a node; None: all."""
        at = self.columns.at_token[place]
        return None if at == NodeColumns.NOTHING else at

    def path(self, place: int, above: int = NONE) -> array[int]:
        """Places from the root, or from below the node `above`, to a node."""
        found = array("i")
        while place not in (above, NONE):
            found.append(place)
            place = self._up[place]
        found.reverse()
        return found

    def _link_sorted(self) -> None:
        """Links all places from the first whose ids go up: as `_link` does one by one."""
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
        order = np.argsort(up, kind="stable")  # children of one parent in a row, oldest first
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


class Course(Struct, frozen=True, eq=False):
    """From the root on."""

    ids: Int64  # of the nodes, ``(n,)``
    stops: Int64  # tokens of each that come before the next node, ``(n,)``; NOTHING (`NodeColumns`): all of them
    starts: Bool  # where turns begin, ``(n,)``; the first node of a path always begins one
    tokens: Int64  # that are stored of each, ``(n,)``, on the path or not
    has_text: Bool  # whether each has words, ``(n,)``
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

    def ends(self) -> Int64:
        """The token of each node at which the path leaves it, ``(n,)``; where it goes through all of them, beyond any."""
        return np.where(self.stops == NodeColumns.NOTHING, np.iinfo(np.int64).max, self.stops)

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
