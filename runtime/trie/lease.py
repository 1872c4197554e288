"""Leases: who reads a path keeps it."""

from __future__ import annotations

from typing import Protocol

from runtime.trie.node import Node


class Pins(Protocol):
    """Counts the leases of a path; the trie."""

    def pin(self, node: Node) -> None:
        """One more."""

    def unpin(self, node: Node) -> None:
        """One less."""

    def repin(self, old: Node, new: Node) -> None:
        """One less there, one more here."""


class Lease:
    """Pins a path: nothing on it is evicted until `release`. Use as a context manager, or release in `finally`.

    Args:
        trie: Counts it.
        node: The place.
        length: Tokens from the root to there.
        matched: Tokens of the path that were held when it was looked up, whether or not one can go on after them.
    """

    __slots__ = ("_trie", "length", "matched", "node")

    def __init__(self, trie: Pins, node: Node, length: int, matched: int = 0) -> None:
        self._trie, self.node, self.length, self.matched = trie, node, length, max(matched, length)
        trie.pin(node)

    def move(self, node: Node, length: int) -> None:
        """Holds another place instead."""
        self._trie.repin(self.node, node)
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
