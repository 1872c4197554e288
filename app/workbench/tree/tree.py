"""A session as a tree of nodes: paths, turns and their variants. Plain data without tokens."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec import Struct

from app.workbench.tree.node_index import NONE, NodeIndex, PathColumns
from storage import NodeColumns, NodeRow


class PathSegment(Struct, frozen=True):
    """A part of a path: the first `stop` tokens of a node; None: all of them."""

    node: NodeRow
    stop: int | None


class TreeTurn(Struct, frozen=True):
    """Successive segments of one role; the last one's node names the turn."""

    segments: tuple[PathSegment, ...]

    @property
    def tip(self) -> NodeRow:
        return self.segments[-1].node

    @property
    def role(self) -> str:
        return self.segments[0].node.role


class Nodes(Mapping[int, NodeRow]):
    """Nodes by id, in the order of creation; each access to an unread node creates a stub."""

    def __init__(self, index: NodeIndex, held: Mapping[int, NodeRow]) -> None:
        self._index = index
        self._held = held

    def __getitem__(self, node_id: int) -> NodeRow:
        held = self._held.get(node_id)
        if held is not None:
            return held
        place = self._index.place(node_id)
        if place == NONE:
            raise KeyError(node_id)
        return self._index.columns.stub(place)

    def __contains__(self, node_id: object) -> bool:
        return self._index.place(node_id) != NONE

    def __iter__(self) -> Iterator[int]:
        return (self._index.columns.id[place] for place in self._index)

    def __len__(self) -> int:
        return len(self._index)


class Tree:
    """The nodes of a session: the place of each, and the rows that were read.

    Args:
        nodes: Whole rows, or only the shape, which the tree changes.
    """

    def __init__(self, nodes: Iterable[NodeRow] | NodeColumns = ()) -> None:
        shape, rows = (nodes, ()) if isinstance(nodes, NodeColumns) else (NodeColumns(0), nodes)
        self._index = NodeIndex(shape)
        self._held: dict[int, NodeRow] = {}
        self.nodes = Nodes(self._index, self._held)
        self._turns: tuple[int | None, int, list[TreeTurn]] | None = None  # the last result, until a node changes
        self._path: tuple[int | None, array[int]] | None = None  # the last path as places, likewise
        self._path_columns: tuple[int | None, PathColumns] | None = None  # likewise
        for node in rows:
            self.put(node)

    def put(self, node: NodeRow) -> None:
        """Adds a node, or replaces its row; a stub does not replace a row that was read. `NodeIndex` checks the parent."""
        self._turns = self._path = self._path_columns = None
        place = self._index.put(node)
        if node.whole:
            up = self._index.up(place)
            self._held[node.id] = replace(node, parent_id=None if up == NONE else self._index.columns.id[up])

    def remove(self, node_id: int) -> None:
        """Removes a node without children."""
        self._turns = self._path = self._path_columns = None
        self._index.remove(self._index.place(node_id))
        self._held.pop(node_id, None)

    def held(self) -> list[NodeRow]:
        """The nodes that were read, in reading order."""
        return list(self._held.values())

    def is_held(self, node_id: int) -> bool:
        return node_id in self._held

    def children(self, node_id: int | None) -> list[NodeRow]:
        """Children of a node (None: the roots), oldest first."""
        place = NONE if node_id is None else self._index.place(node_id)
        if node_id is not None and place == NONE:
            return []
        return [self._at(child) for child in self._index.children(place)]

    def chain_end(self, node_id: int) -> NodeRow:
        """The last node of the chain from `node_id` down, in which each node has one child, which leaves at its end."""
        return self._at(self._index.chain_end(self._index.place(node_id)))

    def root(self, tip: int | None) -> NodeRow | None:
        """The first node of the path to `tip`."""
        places = self._places(tip)
        return self._at(places[0]) if places else None

    def path(self, tip: int | None) -> list[PathSegment]:
        """The segments from the root to the end of `tip`."""
        return self._segments(self._places(tip))

    def path_columns(self, tip: int | None) -> PathColumns:
        """The path to `tip` as columns; its nodes need not be read."""
        if self._path_columns is None or self._path_columns[0] != tip:
            self._path_columns = (tip, PathColumns.along(self._index.columns, self._places(tip)))
        return self._path_columns[1]

    def goes_through(self, tip: int | None, node_id: int) -> bool:
        """Whether the path to `tip` goes through the end of a node."""
        columns = self.path_columns(tip)
        row = columns.row(node_id)
        return row is not None and (row + 1 == len(columns) or self.leaves_at_end(self.nodes[int(columns.ids[row + 1])]))

    def ends(self, tip: int | None) -> list[int]:
        """The nodes that name the turns of the path to `tip`."""
        columns, places = self._index.columns, self._places(tip)
        begins = [columns.kinds[columns.kind[place]].turn_start for place in places[1:]]
        return [columns.id[place] for place, after in zip(places, [*begins, True], strict=False) if after]

    def turn_count(self, tip: int | None) -> int:
        """The number of turns of the path to `tip`."""
        return len(self.path_columns(tip).turns)

    def turns(self, tip: int | None, skip: int = 0) -> list[TreeTurn]:
        """The turns of the path to `tip`, without the first `skip`."""
        if self._turns is None or self._turns[:2] != (tip, skip):
            self._turns = (tip, skip, self._by_role(tip, skip))
        return list(self._turns[2])

    def _by_role(self, tip: int | None, skip: int) -> list[TreeTurn]:
        starts = self.path_columns(tip).turns
        if skip >= len(starts):
            return []
        turns: list[list[PathSegment]] = []
        for segment in self._segments(self._places(tip)[int(starts[skip]) :]):
            if segment.node.turn_start or not turns:
                turns.append([segment])
            else:
                turns[-1].append(segment)
        return [TreeTurn(tuple(segments)) for segments in turns]

    def _places(self, tip: int | None) -> array[int]:
        if self._path is None or self._path[0] != tip:
            self._path = (tip, self._index.path(NONE if tip is None else self._index.place(tip)))
        return self._path[1]

    def _segments(self, places: Sequence[int]) -> list[PathSegment]:
        stops = [*(self._index.at_token(place) for place in places[1:]), None]
        return [PathSegment(self._at(place), stop) for place, stop in zip(places, stops, strict=False)]

    def _at(self, place: int) -> NodeRow:
        held = self._held.get(self._index.columns.id[place])
        return self._index.columns.stub(place) if held is None else held

    def turn(self, node_id: int) -> TreeTurn:
        """The turn that ends with a node, without the path before it."""
        segments = [PathSegment(self.nodes[node_id], None)]
        while not (node := segments[-1].node).turn_start and node.parent_id is not None:
            segments.append(PathSegment(self.nodes[node.parent_id], node.at_token))
        return TreeTurn(tuple(reversed(segments)))

    def turn_ends(self) -> list[int]:
        """Nodes that end a turn on at least one path, oldest first: one for each version (see `variants`)."""
        columns, ends = self._index.columns, []
        for place in self._index:
            after = [child for child in self._index.children(place) if self._index.leaves_at_end(child)]
            if not after or any(columns.kinds[columns.kind[child]].turn_start for child in after):
                ends.append(columns.id[place])
        return ends

    def spans(self, first: int, last: int) -> list[tuple[int, int, str]]:
        """The turns from one node down to another: first node, last node and role of each.

        Reads the columns only: long branches have thousands of nodes.
        """
        index, columns = self._index, self._index.columns
        found = [(first, first, self.opening(self.nodes[first]).role)]
        for place in index.path(index.place(last), index.place(first)):
            kind, node_id = columns.kinds[columns.kind[place]], columns.id[place]
            if kind.turn_start:
                found.append((node_id, node_id, kind.role))
            else:
                found[-1] = (found[-1][0], node_id, found[-1][2])
        return found

    def opening(self, node: NodeRow) -> NodeRow:
        """The node that opened the turn `node` belongs to."""
        while not node.turn_start and node.parent_id is not None:
            node = self.nodes[node.parent_id]
        return node

    def variants(self, node: NodeRow) -> tuple[int, ...]:
        """The last nodes of all versions of a turn (siblings of its opening, and branches inside them), oldest first."""
        opening = self.opening(node)
        versions: list[int] = []
        for sibling in self.children(opening.parent_id):
            if sibling.turn_start and sibling.role == opening.role and sibling.at_token == opening.at_token:
                versions.extend(self._versions(sibling))
        return tuple(sorted(versions, key=lambda i: self.nodes[i].seq))

    def _versions(self, node: NodeRow) -> list[int]:
        found, stack = [], [node]
        while stack:
            each = stack.pop()
            after = [child for child in self.children(each.id) if self.leaves_at_end(child)]
            if not after or any(child.turn_start for child in after):
                found.append(each.id)  # the turn ends here on at least one path
            stack.extend(child for child in self.children(each.id) if not child.turn_start)
        return found

    def leaves_at_end(self, child: NodeRow) -> bool:
        """Whether a child continues its parent's last token."""
        parent = self.nodes.get(child.parent_id) if child.parent_id is not None else None
        return child.at_token is None or (parent is not None and child.at_token >= parent.token_count > 0)

    def leaf(self, node_id: int, shown: Sequence[int] = (), *, as_before: bool = False) -> int:
        """The tip below a node: along the nodes in `shown`, else along the newest children.

        If the node's turn ends at the node on one path and continues on another, the path on which it ends is taken. With
        `as_before` the turn ends at the node in any case: the node was shown as its end.
        """
        seen, chosen = set(shown), node_id
        while True:
            after = [child for child in self.children(node_id) if self.leaves_at_end(child)]
            if node_id == chosen:
                after = [child for child in after if child.turn_start] or ([] if as_before else after)
            if not after:
                return node_id
            node_id = next((child.id for child in after if child.id in seen), after[-1].id)


def is_hidden(tree: Tree, pruned: Collection[tuple[int, int]], node_id: int) -> bool:
    """Whether the path to the end of a node goes through a pruned branch (its node and first token)."""
    stops = {segment.node.id: segment.stop for segment in tree.path(node_id)} if pruned else {}
    return any(node in stops and (stops[node] is None or (stops[node] or 0) > start) for node, start in pruned)
