"""A session as a tree of runs: paths, turns and their variants. Plain data, no tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from storage import NodeRow


@dataclass(frozen=True, slots=True)
class Segment:
    """The first `stop` tokens of a node, on a path; None: all of them."""

    node: NodeRow
    stop: int | None


@dataclass(frozen=True, slots=True)
class Turn:
    """The segments of one speaker in a row; the last one's node names the turn."""

    segments: tuple[Segment, ...]

    @property
    def tip(self) -> NodeRow:
        """The node that names the turn on this path."""
        return self.segments[-1].node

    @property
    def role(self) -> str:
        """Who speaks."""
        return self.segments[0].node.role


class Tree:
    """Nodes of a session by id, kept in the order in which they were made."""

    def __init__(self, nodes: Iterable[NodeRow] = ()) -> None:
        self.nodes: dict[int, NodeRow] = {}
        self._children: dict[int | None, list[int]] = {}
        self._turns: tuple[int | None, list[Turn]] | None = None  # the last path that was asked for, until a node changes
        for node in nodes:
            self.put(node)

    def put(self, node: NodeRow) -> None:
        """Adds a node, or replaces what is known of it.

        A parent is always older than its child: a damaged row that says otherwise stands as a root, so that no path is
        a circle.
        """
        self._turns = None
        if node.id in self.nodes:
            self.nodes[node.id] = replace(node, parent_id=self.nodes[node.id].parent_id)
            return
        if node.parent_id not in self.nodes:
            node = replace(node, parent_id=None)
        self._children.setdefault(node.parent_id, []).append(node.id)
        self.nodes[node.id] = node

    def remove(self, node_id: int) -> None:
        """Takes out a node that nothing leaves."""
        self._turns = None
        node = self.nodes.pop(node_id)
        self._children[node.parent_id].remove(node_id)

    def children(self, node_id: int | None) -> list[NodeRow]:
        """Nodes that leave `node_id`, oldest first."""
        return [self.nodes[i] for i in self._children.get(node_id, ())]

    def next_alone(self, node_id: int) -> NodeRow | None:
        """What goes on from the end of a node where nothing else leaves it; None where it ends or branches."""
        children = self._children.get(node_id, ())
        child = self.nodes[children[0]] if len(children) == 1 else None
        return child if child is not None and self.leaves_at_end(child) else None

    def path(self, tip: int | None) -> list[Segment]:
        """From the root to the end of `tip`."""
        segments: list[Segment] = []
        stop: int | None = None
        node = self.nodes.get(tip) if tip is not None else None
        while node is not None:
            segments.append(Segment(node, stop))
            stop = node.at_token
            node = self.nodes.get(node.parent_id) if node.parent_id is not None else None
        segments.reverse()
        return segments

    def turns(self, tip: int | None) -> list[Turn]:
        """The path to `tip` by speaker."""
        if self._turns is None or self._turns[0] != tip:
            self._turns = (tip, self._by_speaker(tip))
        return list(self._turns[1])

    def _by_speaker(self, tip: int | None) -> list[Turn]:
        turns: list[list[Segment]] = []
        for segment in self.path(tip):
            if segment.node.turn_start or not turns:
                turns.append([segment])
            else:
                turns[-1].append(segment)
        return [Turn(tuple(segments)) for segments in turns]

    def opening(self, node: NodeRow) -> NodeRow:
        """The node that opened the turn `node` belongs to."""
        while not node.turn_start and node.parent_id is not None:
            node = self.nodes[node.parent_id]
        return node

    def variants(self, node: NodeRow) -> tuple[int, ...]:
        """The last nodes of every version of the turn: siblings of its opening, and runs that leave inside them."""
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
                found.append(each.id)  # the turn ends here, on one path at least: it is a version of its own
            stack.extend(child for child in self.children(each.id) if not child.turn_start)
        return found

    def leaves_at_end(self, child: NodeRow) -> bool:
        """Whether a child goes on from the end of its parent."""
        parent = self.nodes.get(child.parent_id) if child.parent_id is not None else None
        return child.at_token is None or (parent is not None and child.at_token >= parent.token_count > 0)

    def leaf(self, node_id: int, shown: Sequence[int] = ()) -> int:
        """The tip under a node: along what was shown last, else the newest.

        Where the node's own turn both ends and goes on, it ends: the node was chosen, not what continues it.
        """
        seen, chosen = set(shown), node_id
        while True:
            after = [child for child in self.children(node_id) if self.leaves_at_end(child)]
            if node_id == chosen:
                after = [child for child in after if child.turn_start] or after
            if not after:
                return node_id
            node_id = next((child.id for child in after if child.id in seen), after[-1].id)


def is_hidden(tree: Tree, pruned: Collection[tuple[int, int]], node_id: int) -> bool:
    """Whether the path to the end of a node goes through a pruned branch: a node, and the token of it where that begins."""
    stops = {segment.node.id: segment.stop for segment in tree.path(node_id)} if pruned else {}
    return any(node in stops and (stops[node] is None or (stops[node] or 0) > start) for node, start in pruned)
