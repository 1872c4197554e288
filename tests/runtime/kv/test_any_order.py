"""The trie against a naive model: a dictionary of paths, under operations in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.kv.trie import Lease, Node, Trie
from tests.runtime.kv.toys import BYTES, SCORE, STATE, Path, Toy, ToyOps, check, ids, scored, walk

paths = st.lists(st.integers(0, 2), max_size=7)
names = st.sampled_from(["base", "adapter"])


class StrictTrie(Trie):
    """Holds every eviction against a naive one: leaf by leaf, the oldest first, until there is enough and not one more."""

    def evict(self, size: int, *, spared: object = None) -> int:
        nodes = list(self.nodes())
        expected = oldest(nodes, size)
        weight = sum(node.nbytes for node in expected)
        freed = super().evict(size, spared=spared)
        assert [node for node in nodes if not node.attached] == [node for node in nodes if node in expected]
        assert freed == weight
        return freed


def oldest(nodes: list[Node], size: int) -> list[Node]:
    """What must go for so many bytes."""
    gone: list[Node] = []
    while sum(node.nbytes for node in gone) < size:
        left = [node for node in nodes if node not in gone]
        leaves = [node for node in left if not node.pins and not any(child in left for child in node.children.values())]
        if not leaves:
            break
        gone.append(min(leaves, key=lambda node: node.stamp))
    return gone


class TrieMachine(RuleBasedStateMachine):
    """Random operations beside a dictionary: (namespace, path) -> whether one can go on there.

    The model knows which paths must be held (leased ones) and which may be (stored, perhaps evicted since).
    """

    recurrent = False

    @initialize(budget=st.sampled_from([100, 300, 1000]))
    def open(self, budget: int) -> None:
        self.trie = StrictTrie(ToyOps(recurrent=self.recurrent), budget)
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
        before, detached, evicted = self.trie.bytes, not lease.node.attached, self.trie.evicted_bytes
        done = self.trie.insert(lease, name, ids(path), Toy(tuple(path)), scored(path, 0))
        assert done.already + done.stored + done.refused == len(path)
        if detached:
            assert done.refused == len(path)
            assert self.trie.bytes == before
            return
        if self.trie.evicted_bytes > evicted:  # only where the budget asks for it
            assert before + (BYTES + SCORE) * len(path) + STATE > self.trie.budget
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

    @rule(size=st.integers(1, 200) | st.integers(1, 7).map(lambda tokens: tokens * (BYTES + SCORE)))
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
        self.trie.budget = budget
        self.trie.evict(self.trie.bytes - budget)
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
