"""The tree: edges and leases; looking paths up, hanging new ones in, cutting edges; what is held, what may go, and when."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from runtime.records import Int32, Scores
from runtime.trie.eviction_log import LIMIT, EvictionLog, Lost

EDGE_TOKENS = 256  # up to which a path that grows lengthens its last edge
FEW = 4096  # entries that a heap may have beyond two for each edge before the stale ones are dropped
END_TOKENS = 16  # of a leaf are evicted at least

Namespace = Hashable
Span = tuple[Namespace, Int32]
Key = tuple[Namespace, int]


class Weight(NamedTuple):
    """Of a payload."""

    nbytes: int  # that it holds
    copied: int  # that a copy of it takes beside what is held already; 0 of a reference
    resumable: bool  # whether generation can go on after its last token


class PayloadOps(Protocol):
    """What the trie must know of payloads; a backend satisfies it."""

    def split(self, payload: Any, n: int) -> tuple[Any, Any]:
        """The first `n` tokens and the rest."""

    def weigh(self, payload: Any) -> Weight:
        """What it takes, and what it is good for."""

    def owner(self, payload: Any) -> object:
        """Whose memory it refers to; None of a copy."""

    def cut(self, payload: Any, n: int) -> tuple[Any, Any]:
        """`split` of a payload that an edge carries: it carries the rest from now on; the first part is to be held."""

    def extend(self, payload: Any, more: Any) -> bool:
        """Lengthens a payload that an edge carries by one that follows it, where that needs no copy; else False."""

    def hold(self, payload: Any, node: Node) -> None:
        """An edge carries it from now on."""

    def release(self, payload: Any) -> None:
        """No edge carries it any more."""


@dataclass(slots=True, eq=False)
class Node:
    """One edge and the place where it ends. Leases pin the place; `pins` counts the leases at or below it."""

    namespace: Namespace
    tokens: Int32
    payload: Any
    scores: Scores | None
    parent: Node | None
    children: dict[Key, Node] = field(default_factory=dict)
    pins: int = 0
    stamp: int = 0
    hits: int = 0  # lookups that passed here
    mark: tuple[int, int] | None = None  # where it ends, once worked out; see `runtime.trie.eviction_log`
    nbytes: int = 0
    resumable: bool = True  # whether generation can go on from here
    attached: bool = True

    def path(self) -> list[Node]:
        """From the first edge down to this one."""
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

    trie: Trie  # counts it
    node: Node  # the place; the root, which needs no pin, until the first `move`
    length: int = 0  # tokens from the root to there; -1 once released
    matched: int = 0  # tokens of the path that were held when it was looked up, whether or not one can go on after them

    def move(self, node: Node, length: int) -> Lease:
        """Holds another place instead; further down, as all that grow do, only what lies between is counted."""
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
        """Lets the path go; a second call does nothing."""
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

    @property
    def held(self) -> bool:
        """Whether it still pins."""
        return self.length >= 0

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def common_prefix(a: npt.NDArray[np.integer], b: npt.NDArray[np.integer]) -> int:
    """How many leading tokens, or bytes, two arrays share."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    first = int(differ.argmax()) if n else 0
    return first if n and differ[first] else n


def shared(edge: Int32, ids: Int32, at: int) -> int:
    """How many tokens of an edge ``ids[at:]`` begins with; that the first is one of them is known."""
    return 1 if len(edge) == 1 else common_prefix(edge, ids[at:])  # queries and particles hang in edges of one token


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
        self.root = Node(None, np.empty(0, np.int32), None, None, None)
        self.clock = 0  # the logical time of the last access

    def lookup(self, spans: Sequence[Span], *, exact: bool = False) -> Lease:
        """A lease on the deepest place of the path from which generation can go on.

        An edge is split when the path leaves it in the middle; where there is no room for that, the lease ends before it.
        Every visited node is touched: an ancestor is never older than its child. With `exact`, places that cannot be
        resumed count too.
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
        if best is not node:  # the end of the lease queues the others
            self.queue_leaf(node)
        return Lease(self, self.root, matched=depth).move(best, best_depth)

    def match(self, spans: Sequence[Span]) -> int:
        """Tokens of the path that are held; touches and splits nothing."""
        return sum(same for _, same in self.walk(spans))

    def walk(self, spans: Sequence[Span]) -> list[tuple[Node, int]]:
        """The edges of a path, each with how many of its tokens belong to it; touches and splits nothing."""
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

        What hangs further down that edge is held along with it: cutting it off would cost a copy.
        """
        return Lease(self, self.root).move(nodes[-1][0] if nodes else self.root, sum(len(node.tokens) for node, _ in nodes))

    def insert(self, lease: Lease, namespace: Namespace, tokens: Int32, payload: Any, scores: Scores | None = None) -> Inserted:
        """Hangs tokens under the leased place and moves the lease to their end.

        What is there already stays (missing scores are filled in); only the rest is stored. An item that cannot fit
        beside what is leased is refused, never admitted by flushing everything else; the lease then ends where the trie does.
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
            scores = None  # what is held anyway is found without them, too
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
        """Lengthens the edge of a leaf that the caller alone leases, where the payload goes on in the same place."""
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
        """Moves the lease over those of `tokens` that are there already, and fills in their scores.

        Done before the rest is copied for `insert`, so that nothing is copied in vain. `refused`: an edge had to be cut,
        and there is no room for that.
        """
        if not lease.node.attached:
            return Inserted(0, 0, len(tokens))
        self.clock += 1
        above: Node | None = lease.node
        while above is not None:  # an ancestor is never older than what is hung under it
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
        """Gives a node without recurrent state the payload that was just computed, without its first `skip` tokens."""
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
        """Puts scores beside the node's KV, keeping what is known already; left out when there is no room."""
        merged = scores if node.scores is None else _merged(node.scores, scores)
        if merged is None:
            return
        grown = merged.nbytes - (0 if node.scores is None else node.scores.nbytes)
        if grown <= 0 or self._make_room_keeping(node, grown):
            node.scores = merged
            self._weigh(node)

    def clear(self) -> None:
        """Drops everything. Leased paths are detached: they stay readable for their holders and go when released."""
        nodes = list(self.nodes())
        for node in nodes[: LIMIT // 4]:  # the first from the root on: a job that comes back misses those first
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
        """Cuts an edge after `n` tokens: the upper part; None where there is no room for the copies of both.

        `node` stays the lower part, so leases on it keep their place.
        """
        copied = self._ops.weigh(node.payload).copied if self._room is not None else 0
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

    def _make_room_keeping(self, node: Node, size: int) -> bool:
        """`make_room` that does not take this node."""
        with Lease(self, self.root).move(node, 0):
            return self.make_room(size)

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
            self._shorten(node, size - freed)
            freed += node.nbytes
            self.evicted_bytes += node.nbytes
            self.evictions += 1
            self._remove(node, Lost.EVICTED)
        for node in put_back:
            self.queue_leaf(node)
        return freed

    def largest(self, count: int) -> list[Node]:
        """The edges of the most bytes, in falling order; what that costs does not depend on how many there are."""
        found: dict[Node, tuple[int, int, Node]] = {}
        while self._sizes and len(found) < count:
            entry = size, _, node = heapq.heappop(self._sizes)
            if node.attached and node.nbytes == -size:  # says what is so
                found[node] = entry
        for entry in found.values():
            heapq.heappush(self._sizes, entry)
        return list(found)

    def drop(self, node: Node) -> None:
        """Lets an edge go that is no good, where no lease holds it and nothing hangs under it."""
        if node.attached and node.parent is not None and not node.children and not node.pins:
            self.cleared_bytes += node.nbytes
            self._remove(node, Lost.CLEARED)

    def set_budget(self, budget: int) -> None:
        """Another budget, in bytes; evicts down to it as far as leases allow."""
        self.budget = budget
        self.evict(self.bytes - budget)

    def _weigh(self, node: Node) -> None:
        """What an edge carries has changed."""
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
        """Drops what an edge carries that hangs in the tree no longer and is no longer leased."""
        self._ops.release(node.payload)
        node.payload = node.scores = None
        self._weigh(node)

    def queue_leaf(self, node: Node) -> None:
        """Queues a leaf for eviction under its present stamp."""
        if node.parent is None or node.children or node.pins or not node.attached:
            return
        self._pushes += 1
        heapq.heappush(self._heap, (node.stamp, self._pushes, node))
        if len(self._heap) > 2 * self.edges + FEW:
            self._heap = [e for e in self._heap if e[2].attached and e[2].stamp == e[0] and not e[2].children]
            heapq.heapify(self._heap)


def _merged(known: Scores, more: Scores) -> Scores | None:
    """`known` with its gaps (rank 0) filled from `more`; None when there is nothing to fill. The wider top-k wins whole."""
    if more.top_ids.shape[1] != known.top_ids.shape[1]:
        complete = bool((more.rank > 0).sum() >= (known.rank > 0).sum())
        return more if complete and more.top_ids.shape[1] > known.top_ids.shape[1] else None
    gaps = np.flatnonzero((known.rank == 0) & (more.rank > 0))
    if not len(gaps):
        return None
    whole = known[:]  # a copy
    whole.write(gaps, more, gaps)
    return whole
