"""Long paths and many branches."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.kv.trie import Trie
from tests.runtime.kv.toys import BYTES, Toy, ToyOps, held, put


class CountingOps(ToyOps):
    """Payloads are ranges, so that long ones cost nothing to split."""

    def split(self, payload: Toy, n: int) -> tuple[Toy, Toy]:
        return Toy(payload.tokens[:n]), Toy(payload.tokens[n:])


def test_a_path_of_a_hundred_thousand_tokens_is_stored_matched_and_evicted() -> None:
    # given a path that was stored in runs of 64, deeper than any recursion could go
    trie = Trie(CountingOps(), 10**9)
    path = (np.arange(100_000) % 50_000).astype(np.int32)
    lease = trie.lookup([("base", path[:0])])
    for start in range(0, len(path), 64):
        part = path[start : start + 64]
        trie.insert(lease, "base", part, Toy(tuple(part.tolist())))
    assert lease.length == 100_000
    lease.release()
    # then all of it is found, a branch is found up to where it leaves, and eviction goes leaf by leaf
    assert trie.match([("base", path)]) == 100_000
    with trie.lookup([("base", np.append(path[:77_777], 50_001).astype(np.int32))]) as lease:
        assert lease.length == 77_777
    assert trie.evict(1000 * BYTES) >= 1000 * BYTES
    assert 98_900 < trie.match([("base", path)]) < 99_001
    trie.clear()
    assert trie.bytes == 0


def test_one_edge_of_a_hundred_thousand_tokens_is_stored_and_split() -> None:
    trie = Trie(CountingOps(), 10**9)
    path = tuple(range(100_000))
    put(trie, path)
    put(trie, (*path[:50_000], 7))
    assert trie.bytes == 100_001 * BYTES
    assert len(list(trie.nodes())) == 3


@pytest.mark.slow
def test_ten_thousand_branches_cost_one_stem_and_their_tails() -> None:
    trie = Trie(ToyOps(), 10**9)
    stem = list(range(300))
    for branch in range(10_000):
        put(trie, [*stem, 1000 + branch, branch])
    assert trie.bytes == (300 + 2 * 10_000) * BYTES
    assert len(list(trie.nodes())) == 10_001
    assert trie.evict(10_000 * BYTES) == 10_000 * BYTES
    assert held(trie, [*stem, 1000]) == 300
    assert held(trie, [*stem, 1000 + 9_999, 9_999]) == 302
