"""Leases pin paths, the oldest unleased leaf is evicted first, and every byte is counted once."""

from __future__ import annotations

import tracemalloc

import pytest

from runtime.kv.trie import Trie
from tests.runtime.kv.toys import BYTES, Toy, ToyOps, check, held, ids, put, walk


def test_eviction_is_leaf_first_and_least_recently_used() -> None:
    # given a stem with three tails, read again in another order
    trie = Trie(ToyOps(), 1000)
    for tail in ([5], [6], [7]):
        put(trie, [1, 2, *tail])
    for tail in ([6], [5], [7]):
        trie.lookup([("base", ids([1, 2, *tail]))]).release()
    # when they are evicted one by one, then the least recently read goes first and the stem last
    gone = []
    while trie.bytes:
        trie.evict(1)
        gone.append([held(trie, [1, 2, tail]) == 3 for tail in (5, 6, 7)])
        check(trie)
    assert gone == [[True, False, True], [False, False, True], [False] * 3, [False] * 3]
    assert trie.evicted_bytes == 5 * BYTES


def test_a_read_makes_a_path_the_most_recently_used() -> None:
    trie = Trie(ToyOps(), 4 * BYTES)
    put(trie, [1, 2])
    put(trie, [3, 4])
    trie.lookup([("base", ids([1, 2]))]).release()
    put(trie, [5, 6])
    assert [held(trie, p) for p in ([1, 2], [3, 4], [5, 6])] == [2, 0, 2]


def test_a_lease_pins_its_ancestors_but_not_its_descendants() -> None:
    trie = Trie(ToyOps(), 1000)
    put(trie, [1, 2, 3, 4])
    put(trie, [1, 2, 8])
    lease = trie.lookup([("base", ids([1, 2]))])
    assert lease.length == 2
    assert trie.evict(1000) == 3 * BYTES
    assert held(trie, [1, 2, 3]) == 2
    with lease:
        assert lease.length >= 0
    assert lease.length < 0
    lease.release()  # a second release does nothing
    assert trie.leased_bytes == 0


def test_an_item_larger_than_the_budget_evicts_nothing() -> None:
    trie = Trie(ToyOps(), 5 * BYTES)
    put(trie, [1, 2, 3])
    with trie.lookup([("base", ids([7]))]) as lease:
        done = trie.insert(lease, "base", ids([7, 8, 9, 10, 11, 12]), Toy((7, 8, 9, 10, 11, 12)))
    assert (done.already, done.stored, done.refused) == (0, 0, 6)
    assert held(trie, [1, 2, 3]) == 3
    assert trie.evicted_bytes == 0


def test_tokens_that_cannot_fit_beside_leases_are_refused_and_the_lease_ends_at_the_stored_part() -> None:
    trie = Trie(ToyOps(), 5 * BYTES)
    put(trie, [1, 2, 3])
    with trie.lookup([("base", ids([1, 2, 3]))]):
        other = trie.lookup([("base", ids([]))])
        done = trie.insert(other, "base", ids([1, 2, 3, 4, 5, 6]), Toy((1, 2, 3, 4, 5, 6)))
        assert (done.already, done.stored, done.refused) == (3, 0, 3)
        assert other.length == 3
        assert walk(other.node) == (1, 2, 3)
        other.release()
    assert trie.leased_bytes == 0
    check(trie)


def test_clear_leaves_leased_paths_to_their_holders() -> None:
    # given a leased path and an unleased one
    trie = Trie(ToyOps(), 1000)
    put(trie, [1, 2, 3])
    put(trie, [4, 5])
    lease = trie.lookup([("base", ids([1, 2]))])
    # when everything is cleared, then no path is found any more, but the lease can still be read
    trie.clear()
    assert held(trie, [1, 2, 3]) == held(trie, [4]) == 0
    assert lease.node.payload.tokens == (1, 2)
    assert (trie.bytes, trie.leased_bytes) == (2 * BYTES, 2 * BYTES)
    # and nothing can be inserted below the detached path
    assert trie.insert(lease, "base", ids([3]), Toy((3,))).refused == 1
    # while new paths are stored as before
    put(trie, [1, 2, 9])
    assert held(trie, [1, 2, 9]) == 3
    lease.release()
    assert (trie.bytes, trie.leased_bytes) == (3 * BYTES, 0)
    assert trie.evict(1000) == 3 * BYTES


def test_a_smaller_budget_evicts_down_to_the_leased_bytes() -> None:
    trie = Trie(ToyOps(), 1000)
    put(trie, [1, 2, 3])
    put(trie, [4, 5, 6])
    with trie.lookup([("base", ids([1, 2, 3]))]):
        trie.budget = 0
        trie.evict(trie.bytes)
        assert trie.bytes == trie.leased_bytes == 3 * BYTES
    assert trie.evict(1) == 3 * BYTES


@pytest.mark.parametrize("recurrent", [False, True])
def test_the_queue_of_leaves_stays_as_small_as_the_trie(recurrent: bool) -> None:
    # given one path that is read over and over, then the queue does not grow, and everything can still be evicted
    trie = Trie(ToyOps(recurrent=recurrent), 10**6)
    put(trie, [1, 2, 3])
    put(trie, [1, 2, 4])
    tracemalloc.start()
    try:
        for _ in range(9000):
            trie.lookup([("base", ids([1, 2, 3]))]).release()
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 9000 * 64  # one queue entry takes more
    trie.evict(10**6)
    assert trie.bytes == 0


def test_counts_move_to_the_leased_side_and_back() -> None:
    # given two paths over one stem
    trie = Trie(ToyOps(), 100 * BYTES)
    put(trie, [1, 2, 3, 4])
    put(trie, [1, 2, 8])

    def sides() -> tuple[int, int, int]:
        free = trie.budget - trie.bytes
        assert trie.leased_bytes + trie.evictable_bytes + free == trie.budget
        return trie.leased_bytes // BYTES, trie.evictable_bytes // BYTES, free // BYTES

    assert sides() == (0, 5, 95)
    # when leases are taken (twice on one path), moved and released in another order, then each byte is on one side
    first, second = (trie.lookup([("base", ids([1, 2, 3, 4]))]) for _ in range(2))
    assert sides() == (4, 1, 95)
    other = trie.lookup([("base", ids([1, 2, 8]))])
    assert sides() == (5, 0, 95)
    first.release()
    assert sides() == (5, 0, 95)
    trie.insert(other, "base", ids([9]), Toy((9,)))
    assert sides() == (6, 0, 94)
    second.release()
    assert sides() == (4, 2, 94)
    other.move(trie.root, 0)
    assert sides() == (0, 6, 94)
    other.release()
    assert sides() == (0, 6, 94)
    check(trie)


def test_the_same_tokens_in_two_namespaces_are_leased_and_evicted_separately() -> None:
    trie = Trie(ToyOps(), 100 * BYTES)
    put(trie, [1, 2, 3], "base")
    put(trie, [1, 2, 3], "adapter")
    with trie.lookup([("adapter", ids([1, 2, 3]))]):
        assert trie.evict(1000) == 3 * BYTES
        assert (held(trie, [1, 2, 3], "base"), held(trie, [1, 2, 3], "adapter")) == (0, 3)
        assert trie.leased_bytes == 3 * BYTES
    assert trie.evict(1000) == 3 * BYTES


def test_a_split_under_two_leases_keeps_both_places() -> None:
    # given a lease at the end of an edge, when another path branches off in the middle
    trie = Trie(ToyOps(), 100 * BYTES)
    put(trie, [1, 2, 3, 4, 5])
    deep = trie.lookup([("base", ids([1, 2, 3, 4, 5]))])
    shallow = trie.lookup([("base", ids([1, 2, 9]))])
    # then both leases keep their places, and each releases its own part
    assert (walk(deep.node), walk(shallow.node)) == ((1, 2, 3, 4, 5), (1, 2))
    assert [node.pins for node in deep.node.path()] == [2, 1]
    deep.release()
    assert (trie.leased_bytes, trie.evictable_bytes) == (2 * BYTES, 3 * BYTES)
    assert trie.evict(1000) == 3 * BYTES
    shallow.release()
    assert trie.evict(1000) == 2 * BYTES


def test_a_hold_pins_without_splitting_edges_or_updating_timestamps() -> None:
    trie = Trie(ToyOps(), 1000)
    put(trie, [1, 2, 3, 4])
    put(trie, [5, 6])
    edges, clock = trie.edges, trie.clock
    with trie.hold(trie.walk([("base", ids([1, 2, 9]))])) as lease:
        assert (trie.edges, trie.clock) == (edges, clock)
        assert (lease.length, trie.leased_bytes) == (4, 4 * BYTES)  # the whole edge
        assert trie.evict(1000) == 2 * BYTES
        # when another lookup splits the edge, all of it stays
        trie.lookup([("base", ids([1, 2]))]).release()
        assert (trie.edges, trie.evict(1000)) == (edges, 0)
    check(trie)
    assert trie.evict(1000) == 4 * BYTES
    with trie.hold(trie.walk([("base", ids([1]))])) as nothing:
        assert (nothing.length, trie.leases) == (0, 0)
