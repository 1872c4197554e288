"""A radix tree over token ids whose edges carry cached keys and values: lookup, insertion, leases, byte accounting, eviction.

A path is a list of spans `(namespace, ids)`; the namespace identifies the weights behind the KV (fingerprint, adapters), so
the same tokens under two adapters share nothing. Payloads are opaque: the backend's `PayloadOps` splits and weighs them.
The idea of a radix tree as prefix cache is SGLang's RadixAttention; leases, the logical clock and byte accounting are ours.

Pure Python and numpy, iterative throughout; used by the engine's owner thread alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from runtime.kv.eviction_log import LIMIT, EvictionLog, Lost
from runtime.records import Int32, Scores

EDGE_TOKENS = 256  # a growing path lengthens its last edge up to this length
FEW = 4096  # a heap drops its stale entries beyond this many more than two for each edge
END_TOKENS = 16  # fewest tokens cut from the end of a leaf by an eviction

Namespace = Hashable
Span = tuple[Namespace, Int32]
Key = tuple[Namespace, int]


class Weight(NamedTuple):
    """The memory of a payload, and whether generation can resume from it."""

    nbytes: int
    copied: int  # additional bytes of a copy; 0 for a reference
    resumable: bool  # whether generation can go on after its last token


class PayloadOps(Protocol):
    """The operations on payloads that the trie needs."""

    def split(self, payload: Any, n: int) -> tuple[Any, Any]:
        """The first `n` tokens and the rest."""

    def weigh(self, payload: Any) -> Weight:
        """Its bytes, and whether it is resumable."""

    def owner(self, payload: Any) -> object:
        """The owner of the memory that it refers to; None for a copy."""

    def cut(self, payload: Any, n: int) -> tuple[Any, Any]:
        """`split` of an edge's payload: the edge keeps the second part; the caller passes the first to `hold`."""

    def extend(self, payload: Any, more: Any) -> bool:
        """Appends `more` to an edge's payload if that needs no copy; else False."""

    def hold(self, payload: Any, node: Node) -> None:
        """Attaches the payload to an edge."""

    def release(self, payload: Any) -> None:
        """Detaches the payload from its edge."""


@dataclass(slots=True, eq=False)
class Node:
    """One edge and its end. Leases pin the end; `pins` counts the leases at or below it."""

    namespace: Namespace
    tokens: Int32
    payload: Any
    scores: Scores | None
    parent: Node | None
    children: dict[Key, Node] = field(default_factory=dict)
    pins: int = 0
    stamp: int = 0
    hits: int = 0  # lookups that passed through it
    mark: tuple[int, int] | None = None  # cached depth and digest of its end; see `runtime.kv.eviction_log.place`
    nbytes: int = 0
    resumable: bool = True  # whether generation can go on from its end
    attached: bool = True

    def path(self) -> list[Node]:
        """The edges from the root down to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes


@dataclass(slots=True, eq=False)
class Lease:
    """Pins a path: nothing on it is evicted until `release`. Use as a context manager, or release in `finally`."""

    trie: Trie
    node: Node  # the pinned end; the root, which needs no pin, until the first `move`
    length: int = 0  # tokens from the root to `node`; -1 once released
    matched: int = 0  # tokens of the path in the trie at its lookup, resumable or not

    def move(self, node: Node, length: int) -> Lease:
        """Pins `node` instead, at `length` tokens; a move further down only visits the nodes in between."""
        trie, each = self.trie, node
        above: Node | None = node
        while above is not None and above is not self.node:
            above = above.parent
        trie.leases += (node.parent is not None) - (above is not None and above.parent is not None)
        while each.parent is not None and each is not above:
            if each.pins == 0:
                trie.leased_bytes += each.nbytes
            each.pins += 1
            each = each.parent
        if above is None:
            self.release()
        self.node, self.length = node, length
        return self

    def release(self) -> None:
        """Unpins the path; a second call does nothing."""
        if self.length < 0:
            return
        trie, each = self.trie, self.node
        trie.leases -= each.parent is not None
        while each.parent is not None:
            each.pins -= 1
            if each.pins == 0:
                trie.leased_bytes -= each.nbytes
                if not each.attached:
                    trie.cleared_bytes += each.nbytes
                    trie.drop_payload(each)
            each = each.parent
        trie.queue_leaf(self.node)
        self.length = -1

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def common_prefix(a: npt.NDArray[np.integer], b: npt.NDArray[np.integer]) -> int:
    """The number of leading tokens, or bytes, that two arrays share."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    first = int(differ.argmax()) if n else 0
    return first if n and differ[first] else n


def shared(edge: Int32, ids: Int32, at: int) -> int:
    """The number of leading tokens that an edge shares with ``ids[at:]``; the first token is known to match."""
    return 1 if len(edge) == 1 else common_prefix(edge, ids[at:])  # queries and particles make edges of one token


@dataclass(frozen=True, slots=True)
class Inserted:
    """The outcome of an insert in tokens: present before, newly stored, refused for lack of room."""

    already: int
    stored: int
    refused: int


class Trie:
    """Token paths to KV, least recently used leaf evicted first, by bytes.

    Args:
        ops: Splits and weighs payloads.
        budget: Bytes for payloads and scores together.
        make_room: Called before an allocation, also the temporary one for splitting an edge, with its bytes: frees them, by
            `evict` or otherwise, or returns False. Without it the budget alone limits the trie.
    """

    def __init__(self, ops: PayloadOps, budget: int, make_room: Callable[[int], bool] | None = None) -> None:
        self._ops = ops
        self.budget = budget
        self._make_room = make_room
        self.eviction_log = EvictionLog()
        self.edges = 0
        self.tokens = 0
        self.leases = 0  # without those on the root, which pin nothing
        self.bytes = 0
        self.leased_bytes = 0
        self.evicted_bytes = 0
        self.evictions = 0
        self.cleared_bytes = 0
        self._pushes = 0
        self._heap: list[tuple[int, int, Node]] = []  # leaves by stamp; stale entries are skipped
        self._sizes: list[tuple[int, int, Node]] = []  # edges by bytes, the largest first; stale entries are skipped
        self.root = Node(None, np.empty(0, np.int32), None, None, None)
        self.clock = 0  # the logical time of the last access

    def lookup(self, spans: Sequence[Span], *, exact: bool = False) -> Lease:
        """A lease on the deepest resumable node of the path; with `exact`, on the deepest node.

        An edge that the path leaves in the middle is split; without room for that, the lease ends before it.
        Every visited node is touched: an ancestor is never older than its child.
        """
        node, depth = self.root, 0
        self.clock += 1
        clock = self.clock
        for namespace, ids in spans:
            at, tokens = 0, ids.tolist()
            while at < len(tokens):
                child = node.children.get((namespace, tokens[at]))
                if child is None:
                    break
                whole = len(child.tokens)
                same = 1 if whole == 1 else common_prefix(child.tokens, ids[at:])
                upper = child if same == whole else self._cut(child, same)
                if upper is None:
                    break
                upper.stamp = clock
                upper.hits += 1
                node, depth, at = upper, depth + same, at + same
            if at < len(tokens):
                break
        best, best_depth = node, depth
        while best.parent is not None and not (exact or best.resumable):
            best, best_depth = best.parent, best_depth - len(best.tokens)
        if best is not node:  # the release of the lease only queues `best`
            self.queue_leaf(node)
        return Lease(self, self.root, matched=depth).move(best, best_depth)

    def match(self, spans: Sequence[Span]) -> int:
        """Tokens of the path that are in the trie; touches and splits nothing."""
        return sum(same for _, same in self.walk(spans))

    def walk(self, spans: Sequence[Span]) -> list[tuple[Node, int]]:
        """The edges of a path, each with the number of its tokens on the path; touches and splits nothing."""
        node, found = self.root, list[tuple[Node, int]]()
        for namespace, ids in spans:
            at = 0
            while at < len(ids):
                child = node.children.get((namespace, int(ids[at])))
                if child is None:
                    return found
                same = shared(child.tokens, ids, at)
                found.append((child, same))
                node, at = child, at + same
                if same < len(child.tokens):
                    return found
        return found

    def hold(self, nodes: Sequence[tuple[Node, int]]) -> Lease:
        """A lease on the edges that `walk` found, up to the end of the last one; touches and splits nothing.

        The last edge is pinned whole, beyond the path too: splitting it would cost a copy.
        """
        return Lease(self, self.root).move(nodes[-1][0] if nodes else self.root, sum(len(node.tokens) for node, _ in nodes))

    def insert(self, lease: Lease, namespace: Namespace, tokens: Int32, payload: Any, scores: Scores | None = None) -> Inserted:
        """Inserts tokens under the leased node and moves the lease to their end.

        Tokens already in the trie stay (missing scores are filled in); only the rest is stored. Tokens that do not fit
        beside the leased ones are refused rather than flushing everything else; the lease then ends where the trie does.
        """
        found = self.follow(lease, namespace, tokens, scores)
        node, at, rest = lease.node, found.already, len(tokens) - found.already
        if not rest:
            self.complete(node, payload, at - len(node.tokens))
        if not rest or found.refused:
            return found
        if at:
            payload = self._ops.split(payload, at)[1]
            scores = None if scores is None else scores[at:]
        if self._lengthened(node, namespace, tokens[at:], payload, scores):
            lease.move(node, lease.length + rest)
            return Inserted(at, rest, 0)
        copied = self._ops.weigh(payload).copied
        needed = copied + (0 if scores is None else scores.nbytes)
        if needed and not self.make_room(needed):
            if copied or scores is None:
                return Inserted(at, 0, rest)
            scores = None  # a reference needs no memory: it is stored without them
        fresh = Node(namespace, np.array(tokens[at:], np.int32), payload, scores, node)
        self._ops.hold(payload, fresh)
        node.children[namespace, int(tokens[at])] = fresh
        self.edges += 1
        self.tokens += rest
        fresh.stamp = self.clock
        self._weigh(fresh)
        lease.move(fresh, lease.length + rest)
        return Inserted(at, rest, 0)

    def _lengthened(self, node: Node, namespace: Namespace, tokens: Int32, payload: Any, scores: Scores | None) -> bool:
        """Appends tokens to a leaf that only the caller leases, if the payload extends the leaf's; else False."""
        whole = len(node.tokens) + len(tokens)
        if node.parent is None or node.children or node.pins != 1 or node.namespace != namespace or whole > EDGE_TOKENS:
            return False
        before = node.scores
        if (before is None) != (scores is None):
            return False
        if before is not None and scores is not None and before.top_ids.shape[1] != scores.top_ids.shape[1]:
            return False
        if (scores is not None and not self.make_room(scores.nbytes)) or not self._ops.extend(node.payload, payload):
            return False
        if before is not None and scores is not None:
            node.scores = Scores.concat([before, scores])
        node.tokens = np.concatenate([node.tokens, np.asarray(tokens, np.int32)])
        node.mark = None
        node.stamp = self.clock
        self.tokens += len(tokens)
        self._weigh(node)
        return True

    def _shorten(self, leaf: Node, size: int) -> None:
        """Cuts a leaf to its last `size` bytes, about, where that needs no copy; what precedes them becomes its parent."""
        if not leaf.nbytes or self._ops.weigh(leaf.payload).copied:
            return
        count = max(-(-size * len(leaf.tokens) // leaf.nbytes), END_TOKENS)
        if count < len(leaf.tokens):
            self._cut(leaf, len(leaf.tokens) - count)

    def follow(self, lease: Lease, namespace: Namespace, tokens: Int32, scores: Scores | None = None) -> Inserted:
        """Moves the lease along `tokens` as far as the trie has them, and fills in their scores.

        Called before `insert`, so that only missing tokens are copied. `refused`: no room to split an edge.
        """
        if not lease.node.attached:
            return Inserted(0, 0, len(tokens))
        self.clock += 1
        above: Node | None = lease.node
        while above is not None:  # an ancestor is never older than its child
            above.stamp, above = self.clock, above.parent
        node, at, refused = lease.node, 0, 0
        while at < len(tokens):
            child = node.children.get((namespace, int(tokens[at])))
            if child is None:
                break
            same = shared(child.tokens, tokens, at)
            upper = child if same == len(child.tokens) else self._cut(child, same)
            if upper is None:
                refused = len(tokens) - at
                break
            upper.stamp = self.clock
            if scores is not None:
                self.set_scores(upper, scores[at : at + same])
            node, at = upper, at + same
        if at:
            lease.move(node, lease.length + at)
        return Inserted(at, 0, refused)

    def complete(self, node: Node, payload: Any, skip: int = 0) -> None:
        """Replaces the payload of a node without recurrent state by a resumable one, less its first `skip` tokens."""
        ops = self._ops
        if node.resumable or not ops.weigh(payload).resumable:
            return
        fresh = ops.split(payload, skip)[1] if skip else payload
        grown = ops.weigh(fresh).nbytes - ops.weigh(node.payload).nbytes
        if self._make_room_keeping(node, grown):
            self.replace(node, fresh)

    def replace(self, node: Node, payload: Any) -> None:
        """Gives a node another payload of the same tokens."""
        self._ops.release(node.payload)
        node.payload = payload
        self._ops.hold(payload, node)
        self._weigh(node)

    def set_scores(self, node: Node, scores: Scores) -> None:
        """Merges scores into those of the node; leaves them out without room."""
        merged = scores if node.scores is None else _merged(node.scores, scores)
        if merged is None:
            return
        grown = merged.nbytes - (0 if node.scores is None else node.scores.nbytes)
        if grown <= 0 or self._make_room_keeping(node, grown):
            node.scores = merged
            self._weigh(node)

    def clear(self) -> None:
        """Removes all edges. Leased ones are detached: they stay readable for their holders until released."""
        nodes = list(self.nodes())
        for node in nodes[: LIMIT // 4]:  # parents before children: a returning job misses the first ones of its path first
            parent = node.parent
            assert parent is not None
            self.eviction_log.note(parent, node.namespace, node.tokens, Lost.CLEARED)
        for node in nodes:
            node.attached = False
            if not node.pins:
                self.cleared_bytes += node.nbytes
                self.drop_payload(node)
        self.root.children.clear()
        self.edges = self.tokens = 0
        self._heap.clear()
        self._sizes.clear()

    def nodes(self) -> Iterator[Node]:
        """Every edge, parents before children."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _cut(self, node: Node, n: int) -> Node | None:
        """Splits an edge after `n` tokens and returns the upper part; None without room for copies of both.

        `node` stays the lower part, so leases on it stay valid.
        """
        copied = self._ops.weigh(node.payload).copied if self._make_room is not None else 0
        if copied and not self._make_room_keeping(node, copied + (0 if node.scores is None else node.scores.nbytes)):
            return None
        upper_payload, lower_payload = self._ops.cut(node.payload, n)
        upper_scores = None if node.scores is None else node.scores[:n]
        lower_scores = None if node.scores is None else node.scores[n:]
        parent = node.parent
        assert parent is not None
        upper = Node(node.namespace, node.tokens[:n].copy(), upper_payload, upper_scores, parent)
        upper.stamp, upper.pins, upper.hits = node.stamp, node.pins, node.hits
        self._ops.hold(upper_payload, upper)
        parent.children[node.namespace, int(node.tokens[0])] = upper
        node.tokens, node.payload, node.scores, node.parent = node.tokens[n:].copy(), lower_payload, lower_scores, upper
        upper.children[node.namespace, int(node.tokens[0])] = node
        self.edges += 1
        self._weigh(upper)
        self._weigh(node)
        return upper

    # ---- bytes, leases and age ------------------------------------------------------------------------------------------

    @property
    def evictable_bytes(self) -> int:
        """Bytes without a lease."""
        return self.bytes - self.leased_bytes

    def make_room(self, size: int) -> bool:
        """Evicts until `size` bytes are free; False, without an eviction, if leases leave too little."""
        if self._make_room is not None:
            return self._make_room(size)
        if size > self.budget - self.leased_bytes:
            return False
        self.evict(self.bytes + size - self.budget)
        return self.bytes + size <= self.budget

    def _make_room_keeping(self, node: Node, size: int) -> bool:
        """`make_room` that does not evict this node."""
        with Lease(self, self.root).move(node, 0):
            return self.make_room(size)

    def evict(self, size: int, *, spared: object = None) -> int:
        """Frees at least `size` bytes of unleased leaves, if there are so many, least recently used first.

        Args:
            size: Bytes.
            spared: Leaves whose payload has this owner (see `PayloadOps.owner`) stay.

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
            self._shorten(node, size - freed)
            freed += node.nbytes
            self.evicted_bytes += node.nbytes
            self.evictions += 1
            self._remove(node, Lost.EVICTED)
        for node in put_back:
            self.queue_leaf(node)
        return freed

    def largest(self, count: int) -> list[Node]:
        """The `count` edges with the most bytes, in descending order; the cost does not depend on the size of the trie."""
        found: dict[Node, tuple[int, int, Node]] = {}
        while self._sizes and len(found) < count:
            entry = size, _, node = heapq.heappop(self._sizes)
            if node.attached and node.nbytes == -size:  # not stale
                found[node] = entry
        for entry in found.values():
            heapq.heappush(self._sizes, entry)
        return list(found)

    def drop(self, node: Node) -> None:
        """Removes a damaged edge, unless it is leased or has children."""
        if node.attached and node.parent is not None and not node.children and not node.pins:
            self.cleared_bytes += node.nbytes
            self._remove(node, Lost.CLEARED)

    def _weigh(self, node: Node) -> None:
        """Updates the bytes of an edge whose payload or scores have changed."""
        size = 0 if node.scores is None else node.scores.nbytes
        if node.payload is not None:
            held, _, node.resumable = self._ops.weigh(node.payload)
            size += held
        self.bytes += size - node.nbytes
        if node.pins:
            self.leased_bytes += size - node.nbytes
        node.nbytes = size
        if size:
            self._pushes += 1
            heapq.heappush(self._sizes, (-size, self._pushes, node))
            if len(self._sizes) > 2 * self.edges + FEW:
                current = {e[2]: e for e in self._sizes if e[2].attached and e[2].nbytes == -e[0]}
                self._sizes = list(current.values())
                heapq.heapify(self._sizes)

    def _remove(self, node: Node, reason: Lost) -> None:
        parent = node.parent
        assert parent is not None
        self.eviction_log.note(parent, node.namespace, node.tokens, reason)
        del parent.children[node.namespace, int(node.tokens[0])]
        self.edges -= 1
        self.tokens -= len(node.tokens)
        node.attached = False
        self.drop_payload(node)
        self.queue_leaf(parent)

    def drop_payload(self, node: Node) -> None:
        """Releases the payload and scores of a removed edge without leases."""
        self._ops.release(node.payload)
        node.payload = node.scores = None
        self._weigh(node)

    def queue_leaf(self, node: Node) -> None:
        """Queues an unpinned leaf for eviction under its present stamp."""
        if node.parent is None or node.children or node.pins or not node.attached:
            return
        self._pushes += 1
        heapq.heappush(self._heap, (node.stamp, self._pushes, node))
        if len(self._heap) > 2 * self.edges + FEW:
            self._heap = [e for e in self._heap if e[2].attached and e[2].stamp == e[0] and not e[2].children]
            heapq.heapify(self._heap)


def _merged(known: Scores, more: Scores) -> Scores | None:
    """`known` with its gaps (rank 0) filled from `more`, None without a gap; `more` if it is as complete with a wider top-k."""
    if more.top_ids.shape[1] != known.top_ids.shape[1]:
        complete = bool((more.rank > 0).sum() >= (known.rank > 0).sum())
        return more if complete and more.top_ids.shape[1] > known.top_ids.shape[1] else None
    gaps = np.flatnonzero((known.rank == 0) & (more.rank > 0))
    if not len(gaps):
        return None
    whole = known[:]  # a copy
    whole.write(gaps, more, gaps)
    return whole
