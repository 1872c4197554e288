"""Toy payloads that name their tokens, and shared helpers of the trie's tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runtime.kv.trie import Node, Trie, Weight
from runtime.numerics.scoring import empty_scores
from runtime.records import Int32, Scores

BYTES = 10  # of one token in the toy payloads
SCORE = 16  # of one token's scores without alternatives
STATE = 7  # of one recurrent checkpoint
Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Toy:
    """A payload that is its own tokens, so that a wrong split shows; `state` is a checkpoint after the last of them."""

    tokens: Path
    state: bool = True


class ToyOps:
    """Payloads by length. A recurrent one can be resumed only at its checkpoint, which stays at its end."""

    def __init__(self, *, recurrent: bool = False) -> None:
        self.recurrent = recurrent

    def split(self, payload: Toy, n: int) -> tuple[Toy, Toy]:
        assert 0 < n < len(payload.tokens)
        return Toy(payload.tokens[:n], not self.recurrent), Toy(payload.tokens[n:], payload.state)

    def weigh(self, payload: Toy) -> Weight:
        nbytes = BYTES * len(payload.tokens) + (STATE if self.recurrent and payload.state else 0)
        return Weight(nbytes, nbytes, payload.state)

    def owner(self, payload: Toy) -> None:
        """Every payload is a copy."""

    cut = split

    def extend(self, payload: Toy, more: Toy) -> bool:  # the Protocol's signature
        return False  # every join would be a copy

    def hold(self, payload: Toy, node: Node) -> None:
        """Nothing is shared."""

    def release(self, payload: Toy) -> None:
        """Nothing is shared."""


def ids(path: Sequence[int]) -> Int32:
    return np.array(path, np.int32)


def scored(path: Sequence[int], k: int = 2) -> Scores:
    """Numbers that name their token, so that a wrong split shows."""
    made = empty_scores(len(path), k)
    made.logprob[:] = [-token for token in path]
    made.rank[:] = [token + 1 for token in path]
    return made


def put(trie: Trie, path: Sequence[int], namespace: str = "base", scores: Scores | None = None) -> None:
    """Looks a path up, inserts the rest below it, and releases the lease."""
    with trie.lookup([(namespace, ids(path))]) as lease:
        rest = path[lease.length :]
        if rest:
            trie.insert(lease, namespace, ids(rest), Toy(tuple(rest)), None if scores is None else scores[lease.length :])


def held(trie: Trie, path: Sequence[int], namespace: str = "base") -> int:
    return trie.match([(namespace, ids(path))])


def walk(node: Node) -> Path:
    return tuple(token for each in node.path() for token in each.tokens.tolist())


def check(trie: Trie) -> None:
    """Checks the invariants of the trie."""
    nodes = list(trie.nodes())
    assert trie.leased_bytes + trie.evictable_bytes + (trie.budget - trie.bytes) == trie.budget
    assert 0 <= trie.leased_bytes <= trie.bytes
    for node in nodes:
        assert node.attached
        assert node.payload.tokens == tuple(node.tokens.tolist())
        assert node.scores is None or len(node.scores) == len(node.tokens)
        for key, child in node.children.items():
            assert key == (child.namespace, int(child.tokens[0]))
            assert child.stamp <= node.stamp
            assert child.pins <= node.pins
