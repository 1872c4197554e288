"""Lookup, insertion and splits: exactly the stored paths are found."""

from __future__ import annotations

from runtime.kv.trie import Trie
from tests.runtime.kv.toys import BYTES, STATE, Toy, ToyOps, check, held, ids, put, scored, walk


def test_lookup_ends_inside_an_edge_and_splits_it() -> None:
    trie = Trie(ToyOps(), 1000)
    put(trie, [1, 2, 3, 4, 5], scores=scored([1, 2, 3, 4, 5]))
    # when another path branches off after three tokens
    lease = trie.lookup([("base", ids([1, 2, 3, 9]))])
    # then the lease ends exactly there, and payloads and scores are split with the edge
    assert lease.length == 3
    assert walk(lease.node) == (1, 2, 3)
    (lower,) = lease.node.children.values()
    assert lower.payload.tokens == (4, 5)
    assert lower.scores is not None
    assert lower.scores.rank.tolist() == [5, 6]
    assert trie.bytes == 5 * BYTES + scored([1] * 5).nbytes
    check(trie)


def test_match_neither_splits_edges_nor_updates_timestamps() -> None:
    trie = Trie(ToyOps(), 1000)
    put(trie, [1, 2, 3, 4])
    before = [(walk(n), n.stamp) for n in trie.nodes()]
    assert [held(trie, p) for p in ([1, 2, 9], [1, 2, 3, 4, 5], [7], [])] == [2, 4, 0, 0]
    assert [(walk(n), n.stamp) for n in trie.nodes()] == before


def test_a_split_keeps_the_lease_of_the_whole_edge() -> None:
    # given a lease at the end of an edge, when the edge is split by another path
    trie = Trie(ToyOps(), 1000)
    put(trie, [1, 2, 3, 4, 5])
    lease = trie.lookup([("base", ids([1, 2, 3, 4, 5]))])
    put(trie, [1, 2, 9])
    # then the lease keeps its place and both parts are pinned
    assert walk(lease.node) == (1, 2, 3, 4, 5)
    assert trie.leased_bytes == 5 * BYTES
    assert trie.evict(1000) == BYTES
    assert held(trie, [1, 2, 3, 4, 5]) == 5
    lease.release()
    assert trie.leased_bytes == 0
    assert trie.evict(1000) == 5 * BYTES


def test_insert_reports_the_tokens_already_stored_and_stores_only_the_rest() -> None:
    trie = Trie(ToyOps(), 1000)
    put(trie, [1, 2, 3])
    with trie.lookup([("base", ids([]))]) as lease:
        done = trie.insert(lease, "base", ids([1, 2, 3, 4, 5]), Toy((1, 2, 3, 4, 5)))
        assert (done.already, done.stored, done.refused) == (3, 2, 0)
        assert lease.length == 5
        assert walk(lease.node) == (1, 2, 3, 4, 5)
    assert trie.bytes == 5 * BYTES
    check(trie)


def test_scores_fill_gaps_and_are_not_overwritten() -> None:
    # given a path of which only the second half is scored
    trie = Trie(ToyOps(), 1000)
    half = scored([1, 2, 3, 4])
    half.rank[:2] = 0
    put(trie, [1, 2, 3, 4], scores=half)
    # when the same path comes with all scores, some different
    full = scored([1, 2, 3, 4])
    full.logprob[3] = -99
    with trie.lookup([("base", ids([]))]) as lease:
        trie.insert(lease, "base", ids([1, 2, 3, 4]), Toy((1, 2, 3, 4)), full)
        node = lease.node
    # then the gaps are filled and the known scores stay
    assert node.scores is not None
    assert node.scores.rank.tolist() == [2, 3, 4, 5]
    assert node.scores.logprob.tolist() == [-1, -2, -3, -4]
    check(trie)


def test_scores_are_added_to_kv_without_any_if_they_fit_into_the_budget() -> None:
    size = scored([1, 2]).nbytes
    trie = Trie(ToyOps(), 2 * BYTES + size)
    put(trie, [1, 2])
    (node,) = trie.nodes()
    trie.set_scores(node, scored([1, 2]))
    assert trie.bytes == 2 * BYTES + size
    # a wider table does not fit: the KV stays, the scores stay as they were
    trie.set_scores(node, scored([1, 2], k=50))
    assert node.scores is not None
    assert node.scores.top_ids.shape == (2, 2)
    assert trie.bytes == 2 * BYTES + size


def test_namespaces_do_not_share_paths() -> None:
    trie = Trie(ToyOps(), 1000)
    put(trie, [1, 2, 3], "base")
    assert held(trie, [1, 2, 3], "adapter") == 0
    put(trie, [1, 2, 3, 4], "adapter")
    assert held(trie, [1, 2, 3, 4], "base") == 3
    # an adapter that is activated after two tokens branches from the base model's path, beside the base's own third token
    path = [("base", ids([1, 2])), ("adapter", ids([3, 8]))]
    with trie.lookup(path) as lease:
        assert lease.length == 2
        trie.insert(lease, "adapter", ids([3, 8]), Toy((3, 8)))
    assert trie.match(path) == 4
    assert held(trie, [1, 2, 3, 8], "base") == 3
    check(trie)


def test_a_checkpoint_can_be_resumed_only_at_its_end() -> None:
    trie = Trie(ToyOps(recurrent=True), 1000)
    put(trie, [1, 2, 3, 4])
    put(trie, [1, 2, 3, 4, 5, 6])
    # a path that branches inside the second edge is resumed from the first edge's end
    with trie.lookup([("base", ids([1, 2, 3, 4, 5, 9]))]) as lease:
        assert lease.length == 4
    # with `exact`, all stored tokens count, resumable or not
    with trie.lookup([("base", ids([1, 2, 3, 4, 5, 9]))], exact=True) as lease:
        assert lease.length == 5
    with trie.lookup([("base", ids([1, 2, 9]))]) as lease:
        assert lease.length == 0
    assert trie.bytes == 6 * BYTES + 2 * STATE
    check(trie)


def test_a_missing_checkpoint_is_filled_in() -> None:
    # given an edge that was split where it has no checkpoint
    trie = Trie(ToyOps(recurrent=True), 1000)
    put(trie, [1, 2, 3, 4])
    trie.lookup([("base", ids([1, 2, 9]))]).release()
    assert trie.lookup([("base", ids([1, 2]))]).length == 0
    # when a request computes exactly to that place
    with trie.lookup([("base", ids([]))]) as lease:
        done = trie.insert(lease, "base", ids([1, 2]), Toy((1, 2)))
        assert (done.already, done.stored) == (2, 0)
    # then the place can be resumed, and its bytes are counted
    with trie.lookup([("base", ids([1, 2, 9]))]) as lease:
        assert lease.length == 2
    assert trie.bytes == 4 * BYTES + 2 * STATE
    check(trie)
