"""What was let go is told from what was never there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.kv.eviction_log import LIMIT, EvictionLog, Lost, place, prefix_digests, step
from runtime.kv.trie import Node, Trie
from tests.runtime.kv.toys import BYTES, ToyOps, ids, put

paths = st.lists(st.integers(0, 3), min_size=1, max_size=8).map(tuple)


def root() -> Node:
    return Node(None, ids(()), None, None, None)


@given(paths, st.integers(0, 1 << 70), st.integers(0, 9))
def test_digests_come_in_one_sum_or_one_by_one(path: tuple[int, ...], above: int, depth: int) -> None:
    above %= 1 << 64
    at_once = prefix_digests("base", depth, above, ids(path)).tolist()
    for at, token in enumerate(path):
        above = step("base", depth + at, above, token)
        assert above == at_once[at]


@pytest.mark.slow
@given(st.lists(st.tuples(paths, st.sampled_from(["a", "b"])), min_size=1, max_size=12), st.lists(paths, max_size=20))
def test_it_knows_what_was_evicted_and_nothing_else(
    kept: list[tuple[tuple[int, ...], str]], asked: list[tuple[int, ...]]
) -> None:
    # given paths that were held, cut at each other's branches, when everything is evicted
    trie = Trie(ToyOps(), 1 << 20)
    held = set()
    for path, namespace in kept:
        put(trie, path, namespace)
        held |= {(namespace, path[:n]) for n in range(1, len(path) + 1)}
    trie.evict(1 << 20)
    # then each of their prefixes is known for evicted, under its own namespace, and no other path is
    for path in [*asked, *(path for path, _ in kept)]:
        for namespace in ("a", "b"):
            for n in range(1, len(path) + 1):
                why = trie.eviction_log.why([(namespace, ids(path[:n]))], trie.eviction_log.clock)
                assert why == (Lost.EVICTED if (namespace, path[:n]) in held else Lost.NO)


def test_the_latest_reason_up_to_a_time_counts() -> None:
    record, node = EvictionLog(), root()
    record.note(node, "base", ids((1, 2)), Lost.REFUSED)
    early = record.clock
    record.note(node, "base", ids((1, 2)), Lost.EVICTED)
    record.note(node, "base", ids((1,)), Lost.CLEARED)
    assert record.why([("base", ids((1, 2)))], record.clock) == Lost.EVICTED
    assert record.why([("base", ids((1,)))], record.clock) == Lost.CLEARED
    assert record.why([("base", ids((1,)))], early) == Lost.REFUSED
    assert record.why([("base", ids((1,)))], 0) == Lost.NO


def test_clearing_is_a_reason_of_its_own() -> None:
    trie = Trie(ToyOps(), 1 << 20)
    put(trie, (1, 2, 3))
    put(trie, (1, 2, 4))
    trie.clear()
    assert {trie.eviction_log.why([("base", ids(p))], 99) for p in ((1,), (1, 2), (1, 2, 3), (1, 2, 4))} == {Lost.CLEARED}
    assert trie.cleared_bytes == 4 * BYTES


def test_the_record_is_bounded_and_the_oldest_goes() -> None:
    record, node = EvictionLog(limit=10), root()
    for first in range(8):
        record.note(node, "base", ids((first, 7, 7)), Lost.EVICTED)
    assert [record.why([("base", ids((first,)))], 99) for first in range(8)] == [Lost.NO] * 5 + [Lost.EVICTED] * 3
    record.note(node, "base", ids(range(50, 100)), Lost.EVICTED)  # longer than the record: its first tokens are kept
    assert record.why([("base", ids((50,)))], 99) == Lost.EVICTED
    assert record.why([("base", ids(range(50, 61)))], 99) == Lost.NO


def test_a_hundred_thousand_tokens_are_noted_at_once() -> None:
    trie = Trie(ToyOps(), 1 << 30)
    put(trie, range(LIMIT + 1000))
    trie.evict(1)
    assert trie.eviction_log.why([("base", ids(range(LIMIT)))], 99) == Lost.EVICTED


def test_an_edge_knows_its_place_after_a_cut() -> None:
    trie = Trie(ToyOps(), 1 << 20)
    put(trie, (1, 2, 3, 4))
    (node,) = trie.nodes()
    assert place(node)[0] == 4
    put(trie, (1, 2, 9))
    for each in trie.nodes():
        walked = tuple(token for above in each.path() for token in above.tokens.tolist())
        assert place(each) == (len(walked), int(prefix_digests("base", 0, 0, ids(walked))[-1]))
    assert np.array_equal(node.tokens, (3, 4))
