"""Pinned paths of open sessions: their KV and the distribution after them stay in memory without a running job."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

from runtime.errors import MemoryBudgetError
from runtime.kv.trie import Lease, Node, Span, Trie
from runtime.scheduler.prefill.distributions import FLOAT_BYTES, Distribution, LogitsCache

SHARE = 2  # pins hold at most this fraction (1/2) of the budget


class Pins:
    """Leases by number, least recently moved first, with the distribution after each path. Owner thread only.

    Args:
        trie: Holds the paths.
        vectors: Holds the distributions.
        budget: The budget of the whole model, in bytes.
        make_room: Frees the bytes for a distribution; False: it is not kept.

    Attributes:
        leases: The leases by number.
        nbytes: Bytes of the distributions.
    """

    def __init__(self, trie: Trie, vectors: LogitsCache, budget: int, make_room: Callable[[int], bool]) -> None:
        self._trie, self._vectors, self._make_room = trie, vectors, make_room
        self._limit = budget // SHARE
        self.leases: OrderedDict[int, Lease] = OrderedDict()
        self._keys: dict[int, Hashable] = {}  # keys of the distributions, by pin
        self.nbytes = 0

    def hold(self, pin: int, spans: Sequence[Span], key: Hashable) -> int:
        """Pins the cached part of a path; beyond the limit, releases the least recently moved pins.

        Args:
            pin: Its number; its previous path is released.
            spans: The path.
            key: Of the distribution after the path, which is kept too if it is known: recurrent models could only recompute
                it from an earlier checkpoint.

        Returns:
            Tokens of the path that are pinned.
        """
        nodes = self._trie.walk(spans)
        tokens, fresh = sum(count for _, count in nodes), self._trie.hold(nodes)
        row = self._vectors.peek(key)
        self.release(pin)  # after the new lease, so that nothing they share is evicted in between
        if fresh.node.parent is None:
            fresh.release()
            return 0
        self.leases[pin] = fresh
        if row is not None:
            self._keep(pin, key, row)
        if self._trie.leased_bytes + self.nbytes <= self._limit:  # an upper bound: other leases count too
            return tokens
        self._fit(keep=pin)
        if self._bytes() > self._limit:  # the new pin alone is too large
            self._shorten(fresh)
            if fresh.node.parent is None:
                self.release(pin)
            return min(tokens, fresh.length)
        return tokens

    def release(self, pin: int) -> None:
        """Releases a pin, if it exists."""
        lease = self.leases.pop(pin, None)
        if lease is not None:
            lease.release()
        key = self._keys.pop(pin, None)
        if key is not None and key not in self._keys.values():
            self.nbytes -= FLOAT_BYTES * self._vectors.pinned.pop(key).vocab

    def release_all(self) -> None:
        for pin in list(self.leases):
            self.release(pin)

    def make_evictable(self, size: int) -> bool:
        """Makes `size` more bytes evictable by releasing pins, least recently moved first.

        Returns:
            False if pins hold too little, or running requests lease the same nodes.
        """
        if not self.leases or size > self._bytes():
            return False
        wanted = self._trie.evictable_bytes + size
        while self.leases and self._trie.evictable_bytes < wanted:
            self.release(next(iter(self.leases)))
        return self._trie.evictable_bytes >= wanted

    def set_budget(self, budget: int) -> None:
        """Sets the budget of the whole model in bytes."""
        self._limit = budget // SHARE
        self._fit()
        if self._bytes() > self._limit:
            self.release_all()

    def _keep(self, pin: int, key: Hashable, row: Distribution) -> None:
        pinned = self._vectors.pinned
        if key not in pinned:
            if not self._make_room(FLOAT_BYTES * row.vocab) or pin not in self.leases:  # making room may release the pin itself
                return
            try:
                pinned[key] = row.alone()  # a copy: its array may hold other rows
            except MemoryBudgetError:  # the device itself has no room for a copy
                return
            self.nbytes += FLOAT_BYTES * row.vocab
        self._keys[pin] = key

    def _fit(self, keep: int | None = None) -> None:
        while len(self.leases) > (keep is not None) and self._bytes() > self._limit:
            self.release(next(iter(self.leases)))

    def _bytes(self) -> int:
        """Bytes of all pinned edges, each counted once, and of the distributions."""
        seen: set[int] = set()
        total = self.nbytes
        for lease in self.leases.values():
            node: Node | None = lease.node
            while node is not None and node.parent is not None and id(node) not in seen:
                seen.add(id(node))
                total += node.nbytes
                node = node.parent
        return total

    def _shorten(self, lease: Lease) -> None:
        """Moves a lease up its path until it fits the limit."""
        held, length = self.nbytes, 0
        place = self._trie.root
        for node in lease.node.path():
            held += node.nbytes
            if held > self._limit:
                break
            place, length = node, length + len(node.tokens)
        lease.move(place, length)
