"""Bytes, leases and age: what is held, what may go, and in which order."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from runtime.trie.eviction_log import EvictionLog, Lost
from runtime.trie.node import Node, PayloadOps

FEW = 4096  # entries that a heap may have beyond two for each edge before the stale ones are dropped


class LruAccounts:
    """The accounts of the trie's nodes: least recently used unleased leaf evicted first, by bytes.

    Args:
        ops: Told of payloads that are let go.
        budget: Bytes that payloads and scores may hold together.
        room: Asked before bytes are taken, those of the moment in which an edge is cut included: makes that many free,
            by `evict` and whatever else it knows, or answers False. Without it the budget alone counts.
    """

    def __init__(self, ops: PayloadOps, budget: int, room: Callable[[int], bool] | None = None) -> None:
        self._ops = ops
        self.budget = budget
        self._room = room
        self.eviction_log = EvictionLog()
        self.edges = 0
        self.tokens = 0
        self.leases = 0  # on edges: a lease on the root holds nothing
        self.bytes = 0
        self.leased_bytes = 0
        self.evicted_bytes = 0
        self.evictions = 0
        self.cleared_bytes = 0
        self._pushes = 0
        self._heap: list[tuple[int, int, Node]] = []  # leaves by stamp; stale entries are skipped
        self._sizes: list[tuple[int, int, Node]] = []  # edges by bytes, the largest first; stale entries are skipped

    @property
    def evictable_bytes(self) -> int:
        """Bytes that no lease holds."""
        return self.bytes - self.leased_bytes

    def make_room(self, size: int) -> bool:
        """Evicts until `size` bytes are free; False, and nothing evicted, when leases leave too little."""
        if self._room is not None:
            return self._room(size)
        if size > self.budget - self.leased_bytes:
            return False
        self.evict(self.bytes + size - self.budget)
        return self.bytes + size <= self.budget

    def evict(self, size: int, *, spared: object = None) -> int:
        """Frees at least `size` bytes if unleased leaves hold them, oldest first.

        Args:
            size: Bytes.
            spared: Payloads of this owner (see `PayloadOps.owner`) stay.

        Returns:
            Bytes freed.
        """
        freed = 0
        put_back: list[Node] = []
        while freed < size and self._heap:
            stamp, _, node = heapq.heappop(self._heap)
            if node.stamp != stamp or not node.attached or node.children or node.pins or node.parent is None:
                continue
            if spared is not None and self._ops.owner(node.payload) is spared:
                put_back.append(node)
                continue
            node = self._end_of(node, size - freed)
            freed += node.nbytes
            self.evicted_bytes += node.nbytes
            self.evictions += 1
            self._remove(node, Lost.EVICTED)
        for node in put_back:
            self._offer(node)
        return freed

    def _end_of(self, leaf: Node, size: int) -> Node:  # noqa: ARG002  # the trie cuts it
        """The part of a leaf that is evicted for `size` bytes."""
        return leaf

    def largest(self, count: int) -> list[Node]:
        """The edges of the most bytes, in falling order; what that costs does not depend on how many there are."""
        found: dict[Node, tuple[int, int, Node]] = {}
        while self._sizes and len(found) < count:
            entry = heapq.heappop(self._sizes)
            if _holds(entry):
                found[entry[2]] = entry
        for entry in found.values():
            heapq.heappush(self._sizes, entry)
        return list(found)

    def drop(self, node: Node) -> None:
        """Lets an edge go that is no good, where nobody holds it and nothing hangs under it."""
        if node.attached and node.parent is not None and not node.children and not node.pins:
            self.cleared_bytes += node.nbytes
            self._remove(node, Lost.CLEARED)

    def set_budget(self, budget: int) -> None:
        """Another budget, in bytes; evicts down to it as far as leases allow."""
        self.budget = budget
        self.evict(self.bytes - budget)

    def pin(self, node: Node) -> None:
        """One more lease at `node`: counted on the whole path."""
        self.leases += node.parent is not None
        self._pin_up(node, None)

    def unpin(self, node: Node) -> None:
        """One lease less."""
        self.leases -= node.parent is not None
        each, above = node, node.parent
        while above is not None:
            each.pins -= 1
            if each.pins == 0:
                self.leased_bytes -= each.nbytes
                if not each.attached:
                    self.cleared_bytes += each.nbytes
                    self.bytes -= each.nbytes
                    each.nbytes = 0
                    self._let_go(each)
            each, above = above, above.parent
        self._offer(node)

    def repin(self, old: Node, new: Node) -> None:
        """A lease goes from `old` to `new`: further down, as all that grow do, only what lies between is counted."""
        node: Node | None = new
        while node is not None and node is not old:
            node = node.parent
        if node is old:
            self.leases += (new.parent is not None) - (old.parent is not None)
            self._pin_up(new, old)
        else:
            self.pin(new)
            self.unpin(old)

    def _pin_up(self, node: Node, end: Node | None) -> None:
        """Counts one lease more on every edge from `node` up to `end`, which is left out; None: up to the root."""
        above = node.parent
        while above is not None and node is not end:
            if node.pins == 0:
                self.leased_bytes += node.nbytes
            node.pins += 1
            node, above = above, above.parent

    def _weigh(self, node: Node, size: int) -> None:
        self.bytes += size - node.nbytes
        if node.pins:
            self.leased_bytes += size - node.nbytes
        node.nbytes = size
        if size:
            self._pushes += 1
            heapq.heappush(self._sizes, (-size, self._pushes, node))
            if len(self._sizes) > 2 * self.edges + FEW:
                self._sizes = list({entry[2]: entry for entry in self._sizes if _holds(entry)}.values())
                heapq.heapify(self._sizes)

    def _remove(self, node: Node, reason: Lost) -> None:
        parent = node.parent
        assert parent is not None
        self.eviction_log.note(parent, node.namespace, node.tokens, reason)
        del parent.children[node.namespace, int(node.tokens[0])]
        self.edges -= 1
        self.tokens -= len(node.tokens)
        node.attached = False
        self._weigh(node, 0)
        self._let_go(node)
        self._offer(parent)

    def _let_go(self, node: Node) -> None:
        self._ops.release(node.payload)
        node.payload = node.scores = None

    def _offer(self, node: Node) -> None:
        """Queues a leaf for eviction under its present stamp."""
        if node.parent is None or node.children or node.pins or not node.attached:
            return
        self._pushes += 1
        heapq.heappush(self._heap, (node.stamp, self._pushes, node))
        if len(self._heap) > 2 * self.edges + FEW:
            self._heap = [e for e in self._heap if e[2].attached and e[2].stamp == e[0] and not e[2].children]
            heapq.heapify(self._heap)


def _holds(entry: tuple[int, int, Node]) -> bool:
    """Whether an entry of `_sizes` says what is so."""
    return entry[2].attached and entry[2].nbytes == -entry[0]
