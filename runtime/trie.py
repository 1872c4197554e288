"""A radix tree over token ids whose edges carry cached keys and values.

A path is a list of spans `(namespace, ids)`; the namespace says which numbers the KV belongs to (fingerprint, adapters),
so the same tokens under two adapters never meet. Payloads are opaque: the backend's `PayloadOps` splits and weighs them.
The idea of a radix tree as prefix cache is SGLang's RadixAttention; leases, the logical clock and byte accounting are ours.

Pure Python and numpy, iterative throughout; used by the engine's owner thread alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from runtime.records import Int32, Scores

Namespace = Hashable
Span = tuple[Namespace, Int32]
Key = tuple[Namespace, int]


class PayloadOps(Protocol):
    """What the trie must know of payloads; a backend satisfies it."""

    def split(self, payload: Any, n: int) -> tuple[Any, Any]:
        """The first `n` tokens and the rest."""

    def payload_bytes(self, payload: Any) -> int:
        """Bytes it holds."""

    def payload_resumable(self, payload: Any) -> bool:
        """Whether generation can go on after its last token."""


class Node:
    """One edge and the place where it ends. Leases pin the place; `pins` counts the leases at or below it."""

    __slots__ = ("attached", "children", "namespace", "nbytes", "parent", "payload", "pins", "scores", "stamp", "tokens")

    def __init__(self, namespace: Namespace, tokens: Int32, payload: Any, scores: Scores | None, parent: Node | None) -> None:
        self.namespace, self.tokens, self.payload, self.scores, self.parent = namespace, tokens, payload, scores, parent
        self.children: dict[Key, Node] = {}
        self.pins = 0
        self.stamp = 0
        self.nbytes = 0
        self.attached = True

    def path(self) -> list[Node]:
        """From the first edge down to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes


class Lease:
    """Pins a path: nothing on it is evicted until `release`. Use as a context manager, or release in `finally`."""

    __slots__ = ("_trie", "length", "node")

    def __init__(self, trie: Trie, node: Node, length: int) -> None:
        self._trie, self.node, self.length = trie, node, length
        trie.pin(node)

    def move(self, node: Node, length: int) -> None:
        """Holds another place instead."""
        self._trie.pin(node)
        self._trie.unpin(self.node)
        self.node, self.length = node, length

    def release(self) -> None:
        """Lets the path go; a second call does nothing."""
        if self.length >= 0:
            self._trie.unpin(self.node)
            self.length = -1

    @property
    def held(self) -> bool:
        """Whether it still pins."""
        return self.length >= 0

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class Inserted:
    """What an insert found and did, in tokens: already there, newly stored, refused for lack of room."""

    already: int
    stored: int
    refused: int


class Trie:
    """Token paths to KV, least recently used leaf evicted first, by bytes.

    Args:
        ops: Splits and weighs payloads.
        budget: Bytes that payloads and scores may hold together.
    """

    def __init__(self, ops: PayloadOps, budget: int) -> None:
        self._ops = ops
        self.budget = budget
        self.root = Node(None, np.empty(0, np.int32), None, None, None)
        self.bytes = 0
        self.leased_bytes = 0
        self.evicted_bytes = 0
        self.hits = 0
        self.misses = 0
        self._clock = 0
        self._pushes = 0
        self._heap: list[tuple[int, int, Node]] = []  # leaves by stamp; stale entries are skipped

    # ---- reading ------------------------------------------------------------------------------------------------

    def lookup(self, spans: Sequence[Span], *, exact: bool = False) -> Lease:
        """A lease on the deepest place of the path from which generation can go on.

        An edge is split when the path leaves it in the middle (where its payload can be resumed there). Every visited
        node is touched: an ancestor is never older than its child. With `exact`, places that cannot be resumed count too.
        """
        node, depth = self.root, 0
        best, best_depth = node, 0
        self._clock += 1
        for namespace, ids in spans:
            at = 0
            while at < len(ids):
                child = node.children.get((namespace, int(ids[at])))
                if child is None:
                    break
                same = common_prefix(child.tokens, ids[at:])
                if same < len(child.tokens):
                    child = self._split(child, same)
                child.stamp = self._clock
                node, depth, at = child, depth + same, at + same
                if exact or self._ops.payload_resumable(child.payload):
                    best, best_depth = node, depth
            if at < len(ids):
                break
        self._offer(node)
        self.hits, self.misses = self.hits + (best_depth > 0), self.misses + (best_depth == 0)
        return Lease(self, best, best_depth)

    def match(self, spans: Sequence[Span]) -> int:
        """Tokens of the path that are held; touches and splits nothing."""
        node, depth = self.root, 0
        for namespace, ids in spans:
            at = 0
            while at < len(ids):
                child = node.children.get((namespace, int(ids[at])))
                if child is None:
                    return depth
                same = common_prefix(child.tokens, ids[at:])
                depth, at = depth + same, at + same
                if same < len(child.tokens):
                    return depth
                node = child
        return depth

    # ---- writing ------------------------------------------------------------------------------------------------

    def insert(self, lease: Lease, namespace: Namespace, tokens: Int32, payload: Any, scores: Scores | None = None) -> Inserted:
        """Hangs tokens under the leased place and moves the lease to their end.

        What is there already stays (missing scores are filled in); only the rest is stored. An item that cannot fit
        beside what is leased is refused, never admitted by flushing everything else; the lease then ends where the trie does.
        """
        node, at = lease.node, 0
        if not node.attached:
            return Inserted(0, 0, len(tokens))
        self._clock += 1
        for above in node.path():  # an ancestor is never older than what is hung under it
            above.stamp = self._clock
        while at < len(tokens):
            child = node.children.get((namespace, int(tokens[at])))
            if child is None:
                break
            same = common_prefix(child.tokens, tokens[at:])
            if same < len(child.tokens):
                child = self._split(child, same)
            child.stamp = self._clock
            if scores is not None:
                self._fill_scores(child, scores[at : at + same])
            if at + same == len(tokens):
                self._complete(child, payload, at)
            node, at = child, at + same
        rest = len(tokens) - at
        if rest:
            if at:
                payload = self._ops.split(payload, at)[1]
                scores = None if scores is None else scores[at:]
            lease.move(node, lease.length + at)
            size = self._ops.payload_bytes(payload) + (0 if scores is None else scores.nbytes)
            if not self.make_room(size):
                return Inserted(at, 0, rest)
            fresh = Node(namespace, np.array(tokens[at:], np.int32), payload, scores, node)
            node.children[namespace, int(tokens[at])] = fresh
            fresh.stamp = self._clock
            self._weigh(fresh, size)
            lease.move(fresh, lease.length + rest)
        else:
            lease.move(node, lease.length + at)
        return Inserted(at, rest, 0)

    def set_scores(self, node: Node, scores: Scores) -> None:
        """Puts scores beside the node's KV, keeping what is known already; left out when there is no room."""
        self._fill_scores(node, scores)

    def make_room(self, size: int) -> bool:
        """Evicts until `size` bytes are free; False, and nothing evicted, when leases leave too little."""
        if size > self.budget - self.leased_bytes:
            return False
        self.evict(self.bytes + size - self.budget)
        return self.bytes + size <= self.budget

    def evict(self, size: int) -> int:
        """Frees at least `size` bytes if unleased leaves hold them, oldest first.

        Returns:
            Bytes freed.
        """
        freed = 0
        while freed < size and self._heap:
            stamp, _, node = heapq.heappop(self._heap)
            if node.stamp != stamp or not node.attached or node.children or node.pins or node.parent is None:
                continue
            freed += node.nbytes
            self.evicted_bytes += node.nbytes
            self._remove(node)
        return freed

    def set_budget(self, budget: int) -> None:
        """Another budget, in bytes; evicts down to it as far as leases allow."""
        self.budget = budget
        self.evict(self.bytes - budget)

    def clear(self) -> None:
        """Drops everything. Leased paths are detached: they stay readable for their holders and go when released."""
        for node in list(self.nodes()):
            node.attached = False
            if not node.pins:
                self._weigh(node, 0)
                node.payload = node.scores = None
        self.root.children.clear()
        self._heap.clear()

    # ---- accounting ---------------------------------------------------------------------------------------------

    def pin(self, node: Node) -> None:
        """One more lease at `node`: counted on the whole path."""
        for each in node.path():
            if each.pins == 0:
                self.leased_bytes += each.nbytes
            each.pins += 1

    def unpin(self, node: Node) -> None:
        """One lease less."""
        for each in reversed(node.path()):
            each.pins -= 1
            if each.pins == 0:
                self.leased_bytes -= each.nbytes
                if not each.attached:
                    self.bytes -= each.nbytes
                    each.nbytes = 0
                    each.payload = each.scores = None
        self._offer(node)

    def nodes(self) -> Iterator[Node]:
        """Every edge, parents before children."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    @property
    def evictable_bytes(self) -> int:
        """Bytes that no lease holds."""
        return self.bytes - self.leased_bytes

    @property
    def clock(self) -> int:
        """The logical time of the last access."""
        return self._clock

    def _weigh(self, node: Node, size: int) -> None:
        self.bytes += size - node.nbytes
        if node.pins:
            self.leased_bytes += size - node.nbytes
        node.nbytes = size

    def _fill_scores(self, node: Node, scores: Scores) -> None:
        merged = scores if node.scores is None else merge_scores(node.scores, scores)
        if merged is None:
            return
        grown = merged.nbytes - (0 if node.scores is None else node.scores.nbytes)
        free = node.pins == 0
        if free:
            self.pin(node)  # making room must not take the node itself
        if grown <= 0 or self.make_room(grown):
            node.scores = merged
            self._weigh(node, node.nbytes + grown)
        if free:
            self.unpin(node)

    def _complete(self, node: Node, payload: Any, at: int) -> None:
        """Gives a node without recurrent state the one that was just computed at its end."""
        ops = self._ops
        if ops.payload_resumable(node.payload) or not ops.payload_resumable(payload):
            return
        fresh = ops.split(payload, at)[1] if at else payload
        grown = ops.payload_bytes(fresh) - ops.payload_bytes(node.payload)
        self.pin(node)
        if self.make_room(grown):
            node.payload = fresh
            self._weigh(node, node.nbytes + grown)
        self.unpin(node)

    def _split(self, node: Node, n: int) -> Node:
        """Cuts an edge after `n` tokens; `node` stays the lower part, so leases on it keep their place."""
        upper_payload, lower_payload = self._ops.split(node.payload, n)
        upper_scores = None if node.scores is None else node.scores[:n]
        lower_scores = None if node.scores is None else node.scores[n:]
        parent = node.parent
        assert parent is not None
        upper = Node(node.namespace, node.tokens[:n].copy(), upper_payload, upper_scores, parent)
        upper.stamp, upper.pins = node.stamp, node.pins
        parent.children[node.namespace, int(node.tokens[0])] = upper
        node.tokens, node.payload, node.scores, node.parent = node.tokens[n:].copy(), lower_payload, lower_scores, upper
        upper.children[node.namespace, int(node.tokens[0])] = node
        self._weigh(upper, self._size(upper))
        self._weigh(node, self._size(node))
        return upper

    def _size(self, node: Node) -> int:
        return self._ops.payload_bytes(node.payload) + (0 if node.scores is None else node.scores.nbytes)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.namespace, int(node.tokens[0])]
        node.attached = False
        self._weigh(node, 0)
        node.payload = node.scores = None
        self._offer(parent)

    def _offer(self, node: Node) -> None:
        """Queues a leaf for eviction under its present stamp."""
        if node.parent is None or node.children or node.pins or not node.attached:
            return
        self._pushes += 1
        heapq.heappush(self._heap, (node.stamp, self._pushes, node))
        if self._pushes % 4096 == 0:
            self._heap = [e for e in self._heap if e[2].attached and e[2].stamp == e[0] and not e[2].children]
            heapq.heapify(self._heap)


def common_prefix(a: Int32, b: Int32) -> int:
    """How many leading tokens two arrays share."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    first = int(differ.argmax()) if n else 0
    return first if n and differ[first] else n


def merge_scores(known: Scores, more: Scores) -> Scores | None:
    """`known` with its gaps (rank 0) filled from `more`; None when there is nothing to fill. The wider top-k wins whole."""
    if more.top_ids.shape[1] != known.top_ids.shape[1]:
        complete = bool((more.rank > 0).sum() >= (known.rank > 0).sum())
        return more if complete and more.top_ids.shape[1] > known.top_ids.shape[1] else None
    gaps = (known.rank == 0) & (more.rank > 0)
    if not gaps.any():
        return None
    wide = gaps[:, None]
    return Scores(
        logprob=np.where(gaps, more.logprob, known.logprob),
        rank=np.where(gaps, more.rank, known.rank),
        entropy=np.where(gaps, more.entropy, known.entropy),
        top_ids=np.where(wide, more.top_ids, known.top_ids),
        top_logprobs=np.where(wide, more.top_logprobs, known.top_logprobs),
        covered_mass=np.where(gaps, more.covered_mass, known.covered_mass),
    )
