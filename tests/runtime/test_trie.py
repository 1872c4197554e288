"""The trie against a naive model: a dictionary of paths, and the rules of leases, age and bytes one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.records import Int32, Scores
from runtime.scoring import empty_scores
from runtime.trie import Lease, Node, Trie

BYTES = 10  # of one token in the toy payloads
SCORE = 16  # of one token's scores without alternatives
STATE = 7  # of one recurrent checkpoint
Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Toy:
    """A payload that is its own tokens, so that a wrong cut shows; `state` is a checkpoint after the last of them."""

    tokens: Path
    state: bool = True


class ToyOps:
    """Payloads by length. A recurrent one can go on only where it has a checkpoint, which stays at its end."""

    def __init__(self, *, recurrent: bool = False) -> None:
        self.recurrent = recurrent

    def split(self, payload: Toy, n: int) -> tuple[Toy, Toy]:
        assert 0 < n < len(payload.tokens)
        return Toy(payload.tokens[:n], not self.recurrent), Toy(payload.tokens[n:], payload.state)

    def payload_bytes(self, payload: Toy) -> int:
        return BYTES * len(payload.tokens) + (STATE if self.recurrent and payload.state else 0)

    def payload_resumable(self, payload: Toy) -> bool:
        return payload.state


def ids(path: Sequence[int]) -> Int32:
    return np.array(path, np.int32)


def scored(path: Sequence[int], k: int = 2) -> Scores:
    """Numbers that name their token, so that a wrong cut shows."""
    made = empty_scores(len(path), k)
    made.logprob[:] = [-token for token in path]
    made.rank[:] = [token + 1 for token in path]
    return made


def put(trie: Trie, path: Sequence[int], namespace: str = "base", scores: Scores | None = None) -> None:
    """Looks a path up, hangs the rest under it, and lets it go."""
    with trie.lookup([(namespace, ids(path))]) as lease:
        rest = path[lease.length :]
        if rest:
            trie.insert(lease, namespace, ids(rest), Toy(tuple(rest)), None if scores is None else scores[lease.length :])


def held(trie: Trie, path: Sequence[int], namespace: str = "base") -> int:
    return trie.match([(namespace, ids(path))])


def walk(node: Node) -> Path:
    return tuple(token for each in node.path() for token in each.tokens.tolist())


def check(trie: Trie) -> None:
    """What holds at all times."""
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


# ---- reading and writing --------------------------------------------------------------------------------------------


def test_lookup_ends_inside_an_edge_and_splits_it() -> None:
    trie = Trie(ToyOps(), 1000)
    put(trie, [1, 2, 3, 4, 5], scores=scored([1, 2, 3, 4, 5]))
    # when another path leaves the edge after three tokens
    lease = trie.lookup([("base", ids([1, 2, 3, 9]))])
    # then the lease stands exactly there, and payloads and scores are cut with the edge
    assert lease.length == 3
    assert walk(lease.node) == (1, 2, 3)
    (lower,) = lease.node.children.values()
    assert lower.payload.tokens == (4, 5)
    assert lower.scores is not None
    assert lower.scores.rank.tolist() == [5, 6]
    assert trie.bytes == 5 * BYTES + scored([1] * 5).nbytes
    check(trie)


def test_match_neither_splits_nor_touches() -> None:
    trie = Trie(ToyOps(), 1000)
    put(trie, [1, 2, 3, 4])
    before = [(walk(n), n.stamp) for n in trie.nodes()]
    assert [held(trie, p) for p in ([1, 2, 9], [1, 2, 3, 4, 5], [7], [])] == [2, 4, 0, 0]
    assert [(walk(n), n.stamp) for n in trie.nodes()] == before
    assert (trie.hits, trie.misses) == (0, 1)


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


def test_insert_returns_what_was_there_and_stores_only_the_rest() -> None:
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
    # then the gaps are filled and what was known stays
    assert node.scores is not None
    assert node.scores.rank.tolist() == [2, 3, 4, 5]
    assert node.scores.logprob.tolist() == [-1, -2, -3, -4]
    check(trie)


def test_scores_come_to_kv_that_had_none_within_the_budget() -> None:
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


def test_namespaces_do_not_meet() -> None:
    trie = Trie(ToyOps(), 1000)
    put(trie, [1, 2, 3], "base")
    assert held(trie, [1, 2, 3], "adapter") == 0
    put(trie, [1, 2, 3, 4], "adapter")
    assert held(trie, [1, 2, 3, 4], "base") == 3
    # an adapter that is activated after two tokens hangs under the base model's path, beside the base's own third
    path = [("base", ids([1, 2])), ("adapter", ids([3, 8]))]
    with trie.lookup(path) as lease:
        assert lease.length == 2
        trie.insert(lease, "adapter", ids([3, 8]), Toy((3, 8)))
    assert trie.match(path) == 4
    assert held(trie, [1, 2, 3, 8], "base") == 3
    check(trie)


# ---- leases and eviction --------------------------------------------------------------------------------------------


def test_eviction_is_leaf_first_and_least_recently_used() -> None:
    # given a stem with three tails, read again in another order
    trie = Trie(ToyOps(), 1000)
    for tail in ([5], [6], [7]):
        put(trie, [1, 2, *tail])
    for tail in ([6], [5], [7]):
        trie.lookup([("base", ids([1, 2, *tail]))]).release()
    # when one after the other goes, then it is the one read longest ago, and the stem last
    gone = []
    while trie.bytes:
        trie.evict(1)
        gone.append([held(trie, [1, 2, tail]) == 3 for tail in (5, 6, 7)])
        check(trie)
    assert gone == [[True, False, True], [False, False, True], [False] * 3, [False] * 3]
    assert trie.evicted_bytes == 5 * BYTES


def test_a_read_refreshes() -> None:
    trie = Trie(ToyOps(), 4 * BYTES)
    put(trie, [1, 2])
    put(trie, [3, 4])
    trie.lookup([("base", ids([1, 2]))]).release()
    put(trie, [5, 6])
    assert [held(trie, p) for p in ([1, 2], [3, 4], [5, 6])] == [2, 0, 2]


def test_a_lease_pins_its_ancestors_but_not_what_hangs_below() -> None:
    trie = Trie(ToyOps(), 1000)
    put(trie, [1, 2, 3, 4])
    put(trie, [1, 2, 8])
    lease = trie.lookup([("base", ids([1, 2]))])
    assert lease.length == 2
    assert trie.evict(1000) == 3 * BYTES
    assert held(trie, [1, 2, 3]) == 2
    with lease:
        assert lease.held
    assert not lease.held
    lease.release()  # once more does nothing
    assert trie.leased_bytes == 0


def test_an_item_larger_than_the_budget_flushes_nothing() -> None:
    trie = Trie(ToyOps(), 5 * BYTES)
    put(trie, [1, 2, 3])
    with trie.lookup([("base", ids([7]))]) as lease:
        done = trie.insert(lease, "base", ids([7, 8, 9, 10, 11, 12]), Toy((7, 8, 9, 10, 11, 12)))
    assert (done.already, done.stored, done.refused) == (0, 0, 6)
    assert held(trie, [1, 2, 3]) == 3
    assert trie.evicted_bytes == 0


def test_what_cannot_fit_beside_leases_is_refused_and_the_lease_ends_where_the_trie_does() -> None:
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
    # given a held path and a free one
    trie = Trie(ToyOps(), 1000)
    put(trie, [1, 2, 3])
    put(trie, [4, 5])
    lease = trie.lookup([("base", ids([1, 2]))])
    # when everything is cleared, then nothing is found any more, but the holder still reads
    trie.clear()
    assert held(trie, [1, 2, 3]) == held(trie, [4]) == 0
    assert lease.node.payload.tokens == (1, 2)
    assert (trie.bytes, trie.leased_bytes) == (2 * BYTES, 2 * BYTES)
    # and it cannot hang anything where nobody would find it
    assert trie.insert(lease, "base", ids([3]), Toy((3,))).refused == 1
    # while others start anew
    put(trie, [1, 2, 9])
    assert held(trie, [1, 2, 9]) == 3
    lease.release()
    assert (trie.bytes, trie.leased_bytes) == (3 * BYTES, 0)
    assert trie.evict(1000) == 3 * BYTES


def test_a_smaller_budget_evicts_down_to_what_is_leased() -> None:
    trie = Trie(ToyOps(), 1000)
    put(trie, [1, 2, 3])
    put(trie, [4, 5, 6])
    with trie.lookup([("base", ids([1, 2, 3]))]):
        trie.set_budget(0)
        assert trie.bytes == trie.leased_bytes == 3 * BYTES
    assert trie.evict(1) == 3 * BYTES


# ---- recurrent state ------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_valid_at_its_end_alone() -> None:
    trie = Trie(ToyOps(recurrent=True), 1000)
    put(trie, [1, 2, 3, 4])
    put(trie, [1, 2, 3, 4, 5, 6])
    # a path that leaves inside the second edge goes on from the first edge's end
    with trie.lookup([("base", ids([1, 2, 3, 4, 5, 9]))]) as lease:
        assert lease.length == 4
    # with `exact`, the tokens that are held count, resumable or not
    with trie.lookup([("base", ids([1, 2, 3, 4, 5, 9]))], exact=True) as lease:
        assert lease.length == 5
    with trie.lookup([("base", ids([1, 2, 9]))]) as lease:
        assert lease.length == 0
    assert trie.bytes == 6 * BYTES + 2 * STATE
    check(trie)


def test_a_checkpoint_that_was_missing_is_filled_in() -> None:
    # given an edge that was split where it has no checkpoint
    trie = Trie(ToyOps(recurrent=True), 1000)
    put(trie, [1, 2, 3, 4])
    trie.lookup([("base", ids([1, 2, 9]))]).release()
    assert trie.lookup([("base", ids([1, 2]))]).length == 0
    # when somebody computes exactly to that place
    with trie.lookup([("base", ids([]))]) as lease:
        done = trie.insert(lease, "base", ids([1, 2]), Toy((1, 2)))
        assert (done.already, done.stored) == (2, 0)
    # then the place can be resumed, and its bytes are counted
    with trie.lookup([("base", ids([1, 2, 9]))]) as lease:
        assert lease.length == 2
    assert trie.bytes == 4 * BYTES + 2 * STATE
    check(trie)


# ---- sizes ----------------------------------------------------------------------------------------------------------


class CountingOps(ToyOps):
    """Payloads are ranges, so that long ones cost nothing to cut."""

    def split(self, payload: Toy, n: int) -> tuple[Toy, Toy]:
        return Toy(payload.tokens[:n]), Toy(payload.tokens[n:])


def test_a_path_of_a_hundred_thousand_tokens() -> None:
    # given a path that came in runs of 64, deeper than any recursion could go
    trie = Trie(CountingOps(), 10**9)
    path = (np.arange(100_000) % 50_000).astype(np.int32)
    lease = trie.lookup([("base", path[:0])])
    for start in range(0, len(path), 64):
        part = path[start : start + 64]
        trie.insert(lease, "base", part, Toy(tuple(part.tolist())))
    assert lease.length == 100_000
    lease.release()
    # then it is found whole, also where it is left, and goes leaf by leaf
    assert trie.match([("base", path)]) == 100_000
    with trie.lookup([("base", np.append(path[:77_777], 50_001).astype(np.int32))]) as lease:
        assert lease.length == 77_777
    assert trie.evict(1000 * BYTES) >= 1000 * BYTES
    assert 98_900 < trie.match([("base", path)]) < 99_001
    trie.clear()
    assert trie.bytes == 0


def test_one_edge_of_a_hundred_thousand_tokens() -> None:
    trie = Trie(CountingOps(), 10**9)
    path = tuple(range(100_000))
    put(trie, path)
    put(trie, (*path[:50_000], 7))
    assert trie.bytes == 100_001 * BYTES
    assert len(list(trie.nodes())) == 3


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


# ---- any order of operations ----------------------------------------------------------------------------------------

paths = st.lists(st.integers(0, 2), max_size=7)
names = st.sampled_from(["base", "adapter"])


class TrieMachine(RuleBasedStateMachine):
    """Random operations beside a dictionary: (namespace, path) -> whether one can go on there.

    The model knows which paths must be held (leased ones) and which may be (stored, perhaps evicted since).
    """

    recurrent = False

    @initialize(budget=st.sampled_from([100, 300, 1000]))
    def open(self, budget: int) -> None:
        self.trie = Trie(ToyOps(recurrent=self.recurrent), budget)
        self.stored: dict[tuple[str, Path], bool] = {}  # every prefix ever stored: is it a checkpoint
        self.leases: list[tuple[str, Path, Lease]] = []

    def present(self, name: str, path: Path) -> bool:
        return self.trie.match([(name, ids(path))]) == len(path)

    def longest(self, name: str, path: Path) -> int:
        """The longest prefix that is there and can be resumed, worked out one prefix at a time."""
        return max(
            (n for n in range(1, len(path) + 1) if self.present(name, path[:n]) and self.resumable(name, path[:n])), default=0
        )

    def resumable(self, name: str, path: Path) -> bool:
        if not self.recurrent:
            return True
        node = self.trie.root
        at = 0
        while at < len(path):
            node = node.children[name, path[at]]
            at += len(node.tokens)
        return at == len(path) and node.payload.state

    @rule(name=names, path=paths)
    def look(self, name: str, path: list[int]) -> None:
        expected = self.longest(name, tuple(path))
        lease = self.trie.lookup([(name, ids(path))])
        assert lease.length == expected
        assert walk(lease.node) == tuple(path[:expected])
        self.leases.append((name, tuple(path[:expected]), lease))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), path=st.lists(st.integers(0, 2), min_size=1, max_size=6))
    def grow(self, data: st.DataObject, path: list[int]) -> None:
        at = data.draw(st.integers(0, len(self.leases) - 1))
        name, start, lease = self.leases[at]
        before, detached = self.trie.bytes, not lease.node.attached
        done = self.trie.insert(lease, name, ids(path), Toy(tuple(path)), scored(path, 0))
        assert done.already + done.stored + done.refused == len(path)
        if detached:
            assert done.refused == len(path)
            assert self.trie.bytes == before
            return
        reached = start + tuple(path[: done.already + done.stored])
        assert lease.length == len(reached)
        assert walk(lease.node) == reached
        if done.refused:  # only where it cannot fit beside what is leased
            assert (BYTES + SCORE) * done.refused + STATE > self.trie.budget - self.trie.leased_bytes
        for n in range(len(start) + 1, len(reached) + 1):
            self.stored[name, reached[:n]] = True
        self.leases[at] = (name, reached, lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))[2].release()

    @rule(size=st.integers(1, 200))
    def evict(self, size: int) -> None:
        evictable = self.trie.evictable_bytes
        leaves = {id(n): n.stamp for n in self.trie.nodes() if not n.children and not n.pins}
        freed = self.trie.evict(size)
        assert freed >= min(size, evictable)
        left = [s for i, s in leaves.items() if i in {id(n) for n in self.trie.nodes()}]
        went = [s for i, s in leaves.items() if i not in {id(n) for n in self.trie.nodes()}]
        assert not left or not went or max(went) <= min(left)  # the oldest leaves first

    @rule()
    def clear(self) -> None:
        self.trie.clear()
        assert list(self.trie.nodes()) == []

    @rule(budget=st.sampled_from([0, 100, 300, 1000]))
    def resize(self, budget: int) -> None:
        self.trie.set_budget(budget)
        assert self.trie.bytes <= max(budget, self.trie.leased_bytes)

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "trie"):
            return
        check(self.trie)
        for name, path, lease in self.leases:
            if lease.node.attached:  # what is leased is there
                assert self.present(name, path)
            assert all(node.payload is not None for node in lease.node.path())
        attached = sum(n.nbytes for n in self.trie.nodes())
        cut_off = {id(n): n.nbytes for _, _, lease in self.leases for n in lease.node.path() if not n.attached}
        assert self.trie.bytes == attached + sum(cut_off.values())
        pinned = {id(n): n.nbytes for _, _, lease in self.leases for n in lease.node.path()}
        assert self.trie.leased_bytes == sum(pinned.values())
        for node in self.trie.nodes():  # nothing is there that was never stored
            assert (node.namespace, walk(node)) in self.stored

    def teardown(self) -> None:
        for _, _, lease in getattr(self, "leases", []):
            lease.release()
        if hasattr(self, "trie"):
            assert self.trie.leased_bytes == 0
            self.trie.evict(10**9)
            assert self.trie.bytes == 0
            assert list(self.trie.nodes()) == []


class RecurrentTrieMachine(TrieMachine):
    """The same with payloads that can be resumed at checkpoints only."""

    recurrent = True


TestAnyOrder = TrieMachine.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyOrderRecurrent = RecurrentTrieMachine.TestCase
TestAnyOrderRecurrent.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("recurrent", [False, True])
def test_the_queue_of_leaves_stays_as_small_as_the_trie(recurrent: bool) -> None:
    # given one path that is read over and over, then everything can still be evicted
    trie = Trie(ToyOps(recurrent=recurrent), 10**6)
    put(trie, [1, 2, 3])
    put(trie, [1, 2, 4])
    for _ in range(9000):
        trie.lookup([("base", ids([1, 2, 3]))]).release()
    assert len(trie._heap) < 5000
    trie.evict(10**6)
    assert trie.bytes == 0
