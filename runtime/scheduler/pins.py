"""Paths that are kept although nobody computes on them: what open sessions come back to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from runtime.trie import Lease, Span, Trie
from runtime.trie.node import Node

SHARE = 2  # pins hold no more than this fraction of the budget


class Pins:
    """Leases by number, least recently moved first. Owner thread only.

    Args:
        trie: Where the paths hang.
        budget: Bytes that the model may hold; pins take a part of them.
    """

    def __init__(self, trie: Trie, budget: int) -> None:
        self._trie = trie
        self._limit = budget // SHARE
        self._leases: OrderedDict[int, Lease] = OrderedDict()

    def __len__(self) -> int:
        return len(self._leases)

    def hold(self, pin: int, spans: Sequence[Span]) -> int:
        """Keeps what is held of a path; pins that were moved before others give way where all are too much.

        Returns:
            Tokens of the path that are kept.
        """
        tokens = self._trie.match(spans)
        fresh = self._trie.hold(spans)
        self.release(pin)  # after the new lease: what both hold is not let go in between
        if fresh.node.parent is None:
            fresh.release()
            return 0
        self._leases[pin] = fresh
        if self._trie.leased_bytes <= self._limit:  # whoever leases it
            return tokens
        self._fit(keep=pin)
        if self._bytes() > self._limit:  # this one alone
            self._shorten(fresh)
            if fresh.node.parent is None:
                self.release(pin)
            return min(tokens, fresh.length)
        return tokens

    def release(self, pin: int) -> None:
        """Lets a path go, if it is kept."""
        lease = self._leases.pop(pin, None)
        if lease is not None:
            lease.release()

    def lapse(self) -> None:
        """All paths are let go."""
        for pin in list(self._leases):
            self.release(pin)

    def give_way(self, size: int) -> bool:
        """Makes `size` more bytes evictable, the paths that were moved least recently first.

        Returns:
            False where that would not be enough, or turned out not to be: running requests hold the same.
        """
        if not self._leases or size > self._bytes():
            return False
        wanted = self._trie.evictable_bytes + size
        while self._leases and self._trie.evictable_bytes < wanted:
            self.release(next(iter(self._leases)))
        return self._trie.evictable_bytes >= wanted

    def set_budget(self, budget: int) -> None:
        """Another budget for the whole model, in bytes."""
        self._limit = budget // SHARE
        self._fit()
        if self._bytes() > self._limit:
            self.lapse()

    def _fit(self, keep: int | None = None) -> None:
        while len(self._leases) > (keep is not None) and self._bytes() > self._limit:
            self.release(next(iter(self._leases)))

    def _bytes(self) -> int:
        """Of all edges on pinned paths, each counted once."""
        seen: set[int] = set()
        total = 0
        for lease in self._leases.values():
            node: Node | None = lease.node
            while node is not None and node.parent is not None and id(node) not in seen:
                seen.add(id(node))
                total += node.nbytes
                node = node.parent
        return total

    def _shorten(self, lease: Lease) -> None:
        """Moves a lease up its path until what it holds is allowed."""
        held = length = 0
        place = self._trie.root
        for node in lease.node.path():
            held += node.nbytes
            if held > self._limit:
                break
            place, length = node, length + len(node.tokens)
        lease.move(place, length)
