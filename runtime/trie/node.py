"""One edge of the trie, what names it, what it carries, and the leases that keep it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from runtime.records import Int32, Scores

if TYPE_CHECKING:
    from runtime.trie.tree import Trie

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

    def copy_bytes(self, payload: Any) -> int:
        """Bytes that a copy of it takes beside what is held already; 0 of a reference."""

    def owner(self, payload: Any) -> object:
        """Whose memory it refers to; None of a copy."""

    def joined(self, first: Any, second: Any) -> Any | None:
        """Both as one payload, where that needs no copy; else None."""

    def hold(self, payload: Any) -> None:
        """An edge carries it from now on."""

    def release(self, payload: Any) -> None:
        """No edge carries it any more."""


class Node:
    """One edge and the place where it ends. Leases pin the place; `pins` counts the leases at or below it."""

    __slots__ = (
        "attached",
        "children",
        "hits",
        "mark",
        "namespace",
        "nbytes",
        "parent",
        "payload",
        "pins",
        "scores",
        "stamp",
        "tokens",
    )

    def __init__(self, namespace: Namespace, tokens: Int32, payload: Any, scores: Scores | None, parent: Node | None) -> None:
        self.namespace, self.tokens, self.payload, self.scores, self.parent = namespace, tokens, payload, scores, parent
        self.children: dict[Key, Node] = {}
        self.pins = 0
        self.stamp = 0
        self.hits = 0  # lookups that passed here
        self.mark: tuple[int, int] | None = None  # where it ends, once worked out; see `runtime.trie.eviction_log`
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
    """Pins a path: nothing on it is evicted until `release`. Use as a context manager, or release in `finally`.

    Args:
        trie: Counts it.
        node: The place.
        length: Tokens from the root to there.
        matched: Tokens of the path that were held when it was looked up, whether or not one can go on after them.
    """

    __slots__ = ("_trie", "length", "matched", "node")

    def __init__(self, trie: Trie, node: Node, length: int, matched: int = 0) -> None:
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


def common_prefix(a: npt.NDArray[np.integer], b: npt.NDArray[np.integer]) -> int:
    """How many leading tokens, or bytes, two arrays share."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    first = int(differ.argmax()) if n else 0
    return first if n and differ[first] else n


def shared(edge: Int32, ids: Int32, at: int) -> int:
    """How many tokens of an edge ``ids[at:]`` begins with; that the first is one of them is known."""
    return 1 if len(edge) == 1 else common_prefix(edge, ids[at:])  # queries and particles hang in edges of one token
