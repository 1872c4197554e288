"""A log of removed prefixes: it distinguishes a path that was evicted from one that was never computed.

The digest of a prefix is the sum of one pseudo-random number per (namespace, position, token), as in Zobrist hashing: one
cumulative sum gives the digests of all prefixes of an edge, starting from the digest of its parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from runtime.records import Int32

if TYPE_CHECKING:
    from runtime.kv.trie import Namespace, Node, Span

UInt64 = npt.NDArray[np.uint64]
LIMIT = 65_536  # the latest removed tokens; about 1 MiB
_WORD = (1 << 64) - 1


class Lost(IntEnum):
    """Why the KV of a computed token is not in memory."""

    NO = 0  # it was never computed
    EVICTED = 1
    CLEARED = 2
    REFUSED = 3  # no room to keep it


class EvictionLog:
    """A ring buffer of the digests of removed prefixes, each with its reason and time."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._digests: UInt64 = np.zeros(limit, np.uint64)
        self._reasons = np.zeros(limit, np.uint8)
        self._times = np.zeros(limit, np.int64)
        self._next = 0
        self.clock = 0

    def note(self, node: Node, namespace: Namespace, tokens: Int32, why: Lost) -> None:
        """Records that `tokens` under `node` were removed; at most the first `LIMIT` of them."""
        depth, above = place(node)
        self.clock += 1
        if len(tokens) == 1:  # the commonest leaf: one step of a stream
            self._digests[self._next] = step(namespace, depth, above, int(tokens[0]))
            self._reasons[self._next], self._times[self._next] = why, self.clock
            self._next = (self._next + 1) % len(self._digests)
            return
        digests = prefix_digests(namespace, depth, above, tokens[: len(self._digests)])
        at = (self._next + np.arange(len(digests))) % len(self._digests)
        self._digests[at], self._reasons[at], self._times[at] = digests, why, self.clock
        self._next = int(self._next + len(digests)) % len(self._digests)

    def why(self, prefix: Sequence[Span], before: int) -> Lost:
        """Why the last token of a path was removed, by the entries up to time `before`; `Lost.NO` without an entry."""
        depth, digest = 0, 0
        for namespace, tokens in prefix:
            if len(tokens):
                digest = int(prefix_digests(namespace, depth, digest, tokens)[-1])
                depth += len(tokens)
        found = np.flatnonzero((self._digests == np.uint64(digest)) & (self._times > 0) & (self._times <= before))
        if not len(found):
            return Lost.NO
        return Lost(int(self._reasons[found[self._times[found].argmax()]]))


def place(node: Node) -> tuple[int, int]:
    """The number of tokens from the root to the end of a node, and their digest; computed once per node."""
    missing: list[Node] = []
    above: Node | None = node
    while above is not None and above.mark is None and above.parent is not None:
        missing.append(above)
        above = above.parent
    depth, digest = (0, 0) if above is None or above.mark is None else above.mark
    for each in reversed(missing):
        digest = int(prefix_digests(each.namespace, depth, digest, each.tokens)[-1])
        depth += len(each.tokens)
        each.mark = depth, digest
    return depth, digest


def prefix_digests(namespace: Namespace, depth: int, above: int, tokens: Int32) -> UInt64:
    """``(len(tokens),)`` digests of the prefixes that end with each of `tokens`, which follow `depth` others."""
    positions = np.arange(depth, depth + len(tokens)).astype(np.uint64) + np.uint64(hash(namespace) & _WORD)
    sums: UInt64 = np.cumsum(_mixed(tokens.astype(np.uint64) ^ _mixed(positions)), dtype=np.uint64) + np.uint64(above)
    return sums


def step(namespace: Namespace, depth: int, above: int, token: int) -> int:
    """`prefix_digests` of a single token, in Python integers."""
    return (above + _mixed_word(token ^ _mixed_word((depth + hash(namespace)) & _WORD))) & _WORD


def _mixed_word(word: int) -> int:
    word = (word + 0x9E3779B97F4A7C15) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def _mixed(words: UInt64) -> UInt64:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
