"""The token tree of a pack: parents, depths and branches of its slots, in numpy.

A *branch* is a chain of slots; a token opens a new branch unless it follows the newest slot of its parent's branch.
A slot sees a few branches, each up to some slot. numpy compares them over the whole pack at once, without a walk over
single ancestors. A `ForwardStep` describes the tokens that one forward adds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.adapters.stacks import Stack, TokenStacks
from runtime.backends.base import ROOT
from runtime.errors import InvalidRequestError

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Float32 = npt.NDArray[np.float32]
State = Any  # recurrent state after one token: a library's arrays, immutable once stored

_NO_BRANCH = -1


@dataclass(frozen=True, slots=True)
class Ragged:
    """New tokens as consecutive chains, each of which sees only its own path."""

    lengths: Int64  # (chains,) new tokens of each
    paths: Sequence[Int64]  # the slots before each chain; they may include new slots of another chain


@dataclass(slots=True)
class ForwardStep:
    """One forward: new tokens, the slots of their keys and values, and what they see."""

    tokens: Int64  # (n,)
    slots: Int64  # (n,) ascending
    positions: Int64  # (n,) depths in the tree
    want: Int64  # indices into tokens
    path: Int64 | None = None  # a chain's slots before these tokens; None: all slots in order (in place, or a tree)
    mask: Bool | None = None  # a tree's (n, slots in use): what each sees; None: causal over the path
    ragged: Ragged | None = None  # in place of a mask
    state: State | None = None  # recurrent state to start from; None: from nothing
    read: str | None = None  # one of the backend's `readings`: the output in place of logits, (len(want), ...)
    stacks: TokenStacks | None = None  # of each token; None: no adapters


def merged(steps: Sequence[ForwardStep]) -> ForwardStep:
    """Several forwards as one: their tokens in order, each with its own adapters."""
    start, tokens, slots, positions, want = 0, [], [], [], []
    stacks = list[TokenStacks | None]()
    for step in steps:
        tokens.append(step.tokens)
        slots.append(step.slots)
        positions.append(step.positions)
        want.append(step.want + start)
        start += len(step.tokens)
        stacks.append(step.stacks)
    joint = None
    if any(stacks):
        of, table = list[Int64](), list[Stack]()
        for own, step in zip(stacks, steps, strict=True):
            own = own or TokenStacks.uniform((), len(step.tokens))
            of.append(own.of + len(table))
            table += own.table
        joint = TokenStacks(np.concatenate(of), tuple(table))
    return ForwardStep(
        np.concatenate(tokens), np.concatenate(slots), np.concatenate(positions), np.concatenate(want), stacks=joint
    )


@dataclass(slots=True)
class Undo:
    """What `SlotTree.append` changed, for `SlotTree.rollback`."""

    size: int
    linear: bool
    branches: int
    tips: tuple[tuple[int, int], ...]  # (branch, its newest slot before)


class SlotTree:
    """The shape of a pack. Slots are numbered in the order of their creation, so a parent precedes its children."""

    __slots__ = ("_branch", "_depth", "_forks", "_parent", "_tips", "depths", "linear", "size")

    def __init__(self) -> None:
        self.size = 0
        self.linear = True  # all slots form one chain 0, 1, 2, ...
        self._parent = np.empty(64, np.int64)
        self._depth = np.empty(64, np.int64)
        self._branch = np.empty(64, np.int64)
        self._forks: list[tuple[int, int]] = []  # per branch: the branch it leaves and the slot it leaves at
        self._tips: list[int] = []  # per branch: its newest slot
        self.depths = self._depth[:0]  # (size,) number of tokens before each slot on its path; a view, replaced by each change

    def parent(self, slot: int) -> int:
        """The slot that `slot` follows, or ROOT."""
        return int(self._parent[slot])

    def parents(self, first: int) -> Int64:
        """``(size - first,)``: `parent` of each slot from `first` on."""
        return self._parent[first : self.size].copy()

    def append(self, parents: Int64) -> Undo:
        """Adds ``len(parents)`` slots; returns the argument of the `rollback` that removes them.

        Raises:
            InvalidRequestError: A parent that does not exist yet.
        """
        base, n = self.size, len(parents)
        if n == 1:  # the case of each decoded token, where numpy's calls take longer than their work
            known = ROOT <= parents[0] < base
        else:
            known = n > 0 and parents.min() >= ROOT and bool((parents < base + np.arange(n)).all())
        if not known:
            raise InvalidRequestError(f"parents must be ROOT or earlier slots of a pack of {base}: {parents[:8].tolist()}")
        undo_tips: dict[int, int] = {}
        undo = (base, self.linear, len(self._forks))
        if base + n > len(self._parent):
            self._reserve(base + n)
        self._parent[base : base + n] = parents
        for first, last in [(0, 1)] if n == 1 else runs(parents, base):
            start, stop, parent = base + first, base + last, int(parents[first])
            self.linear = self.linear and parent == start - 1
            above = _NO_BRANCH if parent == ROOT else int(self._branch[parent])
            if above != _NO_BRANCH and self._tips[above] == parent:
                branch = above
                undo_tips.setdefault(branch, parent)
                self._tips[branch] = stop - 1
            else:
                branch = len(self._forks)
                self._forks.append((above, parent))
                self._tips.append(stop - 1)
            depth = 0 if parent == ROOT else int(self._depth[parent]) + 1
            self._branch[start:stop] = branch
            self._depth[start:stop] = depth if stop - start == 1 else np.arange(depth, depth + stop - start)
        self.size, self.depths = base + n, self._depth[: base + n]
        return Undo(*undo, tuple(undo_tips.items()))

    def rollback(self, undo: Undo) -> None:
        """Undoes the newest `append`."""
        self.size, self.linear, self.depths = undo.size, undo.linear, self._depth[: undo.size]
        del self._forks[undo.branches :], self._tips[undo.branches :]
        for branch, tip in undo.tips:
            if branch < undo.branches:
                self._tips[branch] = tip

    def truncate(self, size: int) -> None:
        """Keeps the first `size` slots.

        Raises:
            InvalidRequestError: There are fewer.
        """
        if not 0 <= size <= self.size:
            raise InvalidRequestError(f"a pack of {self.size} slots cannot be cut back to {size}")
        touched = np.unique(self._branch[size : self.size]).tolist()
        self.size, self.depths = size, self._depth[:size]
        self.linear = self.linear or not size or np.array_equal(self._parent[:size], np.arange(-1, size - 1))
        for branch in reversed(touched):  # branches are numbered by their first slot, so removed ones come last
            left = np.flatnonzero(self._branch[:size] == branch)
            if left.size:
                self._tips[branch] = int(left[-1])
            else:
                del self._forks[branch:], self._tips[branch:]

    def retained(self, slots: Int64) -> SlotTree:
        """A tree of only `slots`, numbered from 0 on in their order.

        Raises:
            InvalidRequestError: Not ascending, unknown, or without one of their ancestors.
        """
        tree = SlotTree()
        if not len(slots):
            return tree
        if slots[0] < 0 or slots[-1] >= self.size or (np.diff(slots) <= 0).any():
            raise InvalidRequestError(f"slots must be ascending and of a pack of {self.size}: {slots[:8].tolist()}")
        old = self._parent[slots]
        parents = np.where(old == ROOT, ROOT, np.searchsorted(slots, old))
        if not np.array_equal(slots[parents[parents != ROOT]], old[parents != ROOT]):
            raise InvalidRequestError("slots can be retained with all their ancestors only")
        tree.append(parents)
        return tree

    def visible(self, first: int) -> Bool:
        """``(size - first, size)``: the slots that each slot from `first` on sees: its ancestors and itself."""
        branches, which = np.unique(self._branch[first : self.size], return_inverse=True)
        lineages = self._lineages(branches.tolist())
        if len(branches) == len(which):  # one new slot per branch: nothing on its branch comes after it
            return lineages[which]
        slots = np.arange(self.size)
        mask: Bool = lineages[which] & (slots <= slots[first:, None])
        return mask

    def within(self, mask: Bool, first: int, window: int) -> Bool:
        """The part of a `visible` mask that lies within a sliding window of `window` positions, itself included."""
        depths = self.depths
        return mask & (depths[first:, None] - depths < window)

    def path(self, slot: int) -> Int64:
        """The slots from the root down to `slot`, ascending; empty for ROOT."""
        if slot == ROOT:
            return np.empty(0, np.int64)
        if self.linear:
            return np.arange(slot + 1)
        return np.flatnonzero(self._lineages([int(self._branch[slot])])[0, : slot + 1])

    def paths(self, slots: Sequence[int]) -> list[Int64]:
        """`path` of each of `slots`."""
        if self.linear:
            return [self.path(slot) for slot in slots]
        lineages = iter(self._lineages([int(self._branch[slot]) for slot in slots if slot != ROOT]))
        return [self.path(slot) if slot == ROOT else np.flatnonzero(next(lineages)[: slot + 1]) for slot in slots]

    def check_chain(self, slots: Int64) -> None:
        """Raises InvalidRequestError unless each of `slots` is the parent of the next."""
        held = len(slots) > 0 and slots.min() >= 0 and slots.max() < self.size
        if not held or not np.array_equal(self._parent[slots[1:]], slots[:-1]):
            raise InvalidRequestError(f"not a chain of slots of a pack of {self.size}: {slots[:8].tolist()}")

    def check_chains(self, chains: Sequence[Int64]) -> None:
        """`check_chain` of each, at once."""
        slots, starts = np.concatenate(chains), np.cumsum([0, *(len(chain) for chain in chains[:-1])])
        held = all(map(len, chains)) and slots.min() >= 0 and slots.max() < self.size
        if held:
            follows = self._parent[slots[1:]] == slots[:-1]
            follows[starts[1:] - 1] = True
            held = bool(follows.all())
        if not held:  # find the first bad chain
            for chain in chains:
                self.check_chain(chain)

    def _lineages(self, branches: Sequence[int]) -> Bool:
        """``(len(branches), size)``: the slots on the path of each branch's newest slot."""
        limits = np.full((len(branches), len(self._forks)), -1)  # per branch: its last slot on the path
        for row, branch in zip(limits, branches, strict=True):
            row[branch] = self.size
            above, slot = self._forks[branch]
            while above != _NO_BRANCH:
                row[above] = slot
                above, slot = self._forks[above]
        reached: Bool = np.take(limits, self._branch[: self.size], axis=1) >= np.arange(self.size)
        return reached

    def _reserve(self, size: int) -> None:
        capacity = max(size, 2 * len(self._parent))
        for name in ("_parent", "_depth", "_branch"):
            grown: npt.NDArray[Any] = np.empty(capacity, np.int64)
            grown[: self.size] = getattr(self, name)[: self.size]
            setattr(self, name, grown)


def consecutive(slots: Int64) -> bool:
    """Whether ascending slots are consecutive."""
    return int(slots[-1]) - int(slots[0]) == len(slots) - 1


def runs(parents: Int64, base: int) -> Iterator[tuple[int, int]]:
    """Cuts a call of `forward` into runs (start, stop), in which each token follows the one before it in the call."""
    breaks = np.flatnonzero(parents[1:] != base + np.arange(len(parents) - 1)) + 1
    edges = [0, *breaks.tolist(), len(parents)]
    yield from itertools.pairwise(edges)


def segments(parents: Int64, base: int) -> list[Int64]:
    """Cuts a call into chains of token indices; a token with two children ends its chain.

    Chains are in order of their first token, so each follows a slot that is computed before it.
    """
    inside = parents[parents >= base] - base
    children = np.bincount(inside, minlength=len(parents)) if len(inside) else np.zeros(len(parents), np.int64)
    chain_of: dict[int, list[int]] = {}  # by newest token
    chains: list[list[int]] = []
    for j, parent in enumerate((parents - base).tolist()):
        if parent >= 0 and children[parent] == 1:
            chain = chain_of.pop(parent)
        else:
            chain = []
            chains.append(chain)
        chain.append(j)
        chain_of[j] = chain
    return [np.asarray(chain, np.int64) for chain in chains]


def count_chains(parents: Int64) -> int:
    """The number of `segments` of a call, from parents relative to its first token (negative: before the call)."""
    inside = parents[parents >= 0]
    children = np.bincount(inside, minlength=1)
    return int(len(parents) - np.count_nonzero(children[inside] == 1))
