"""The half of a backend that is the same for every library: packs, chains and trees, recurrent state.

A library's backend inherits `PackedBackend` and says how one `Step` goes through its model.

Three ways to push tokens, chosen per call:
- *in place*: the pack is one chain and grows at its end (a chat, its decode, its prefill): buffers are handed to the
  library as they are, no mask of ours, the library's normal use of a cache;
- *tree*: everything else, in one forward, with a mask that lets each token see its ancestors and itself;
- *chains*: recurrent models, and any model whose tree numbers failed the self-test: chains of new tokens as rows of
  one forward (`runtime.backends.buckets`), each over a gathered copy of its path.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import psutil

from runtime.adapters.adapter import Adapter, ModuleShape
from runtime.adapters.stacks import TokenStacks
from runtime.backends.base import Payload
from runtime.backends.buckets import Bucket, Row, aligned, alike, levels, pieces
from runtime.backends.sized import P, SizedBackend, State, WorkingPack, shapes_of, state_size
from runtime.backends.tree import ROOT, Bool, Int64, count_chains, segments
from runtime.errors import ContextOverflowError, InvalidRequestError, UnsupportedFeatureError

__all__ = ["Float32", "PackedBackend", "State", "Step", "WorkingPack", "as_ids", "chain_parents", "joined", "steps_of"]

Float32 = npt.NDArray[np.float32]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """One forward: new tokens, where their keys and values go, what they see."""

    tokens: Int64  # (n,)
    slots: Int64  # (n,) ascending
    positions: Int64  # (n,) depths in the tree
    want: Int64  # indices into tokens
    path: Int64 | None = None  # a chain's slots before these tokens; None: all slots in order (in place, or a tree)
    mask: Bool | None = None  # a tree's (n, slots in use): who sees whom; None: causal over the path
    state: State | None = None  # recurrent state to start from; None: from nothing
    hidden: bool = False  # hidden states are wanted in place of logits
    stacks: TokenStacks | None = None  # of each token; None: the base alone

    @property
    def past(self) -> int:
        """How many tokens precede the new ones in the buffers that the model sees."""
        return int(self.slots[0]) if self.path is None else len(self.path)


class PackedBackend(SizedBackend[P]):
    """Packs over one model. Owner thread only.

    Attributes:
        tree: Whether a branching call may go through the model in one forward.
        overlaps: Whether a forward that was begun computes while the caller does something else.
        stepwise: Whether a kept recurrent state takes only one token at a time (a library's limit, found at load).
        buckets: Whether chains may share a forward as its rows; else each has one of its own.
        ragged: Whether rows of one forward may have pasts of different length.
        forwards: Calls of the model, since load; those that failed too.
        pushed: Tokens that it was called with, padding included.
    """

    tree: bool = True
    overlaps: bool = False
    recurrent: bool = False
    stepwise: bool = False
    buckets: bool = True
    ragged: bool = True
    forwards: int = 0
    pushed: int = 0

    @abstractmethod
    def open_pack(self) -> P:
        """An empty pack."""

    @abstractmethod
    def push(self, pack: P, step: Step) -> tuple[Float32, State | None]:
        """One forward: the wanted raw logits ``(len(want), vocab) float32`` and the recurrent state after it.

        Where the step says `hidden`: the wanted rows of the last layer after its norm, ``(len(want), hidden) float32``.
        """

    def push_rows(self, pack: P, bucket: Bucket) -> tuple[Float32, Sequence[State | None]]:
        """One forward of chains side by side: the wanted raw logits as in `push`, and each row's state after it.

        Row by row where the library knows no better.
        """
        return joined(self.push(pack, step) for step in steps_of(bucket))

    @abstractmethod
    def load(self, pack: P, payload: Payload, parent: int, skip: int = 0) -> Int64:
        """Copies cached tokens into the pack; their slots."""

    @abstractmethod
    def take(self, pack: P, slots: Int64) -> Payload:
        """An immutable copy of a chain of slots."""

    def take_many(self, pack: P, chains: Sequence[Int64]) -> list[Payload]:
        """Copies of several chains; a library that can gathers them all at once."""
        return [self.take(pack, slots) for slots in chains]

    @abstractmethod
    def close(self, pack: P) -> None:
        """Frees the pack."""

    @abstractmethod
    def logits_uncached(self, ids: Sequence[int], stacks: TokenStacks | None = None) -> Float32:
        """``(vocab,)`` raw logits after `ids` by the library's own plain forward."""

    @abstractmethod
    def hidden_states(self, tokens: Int64, stacks: TokenStacks | None = None) -> Float32:
        """``(rows, length, hidden)`` by the library's own plain forward; see `runtime.backends.base.Backend`."""

    def adapter_targets(self) -> Mapping[str, ModuleShape]:
        """The linear modules that an adapter may change; a backend that takes adapters says which."""
        raise UnsupportedFeatureError(f"the {self.info.backend} backend takes no adapters; use hf or mlx")

    def load_adapter(self, adapter: Adapter) -> int:  # noqa: ARG002  # the Protocol's signature
        """Brings an adapter's weights in."""
        raise UnsupportedFeatureError(f"the {self.info.backend} backend takes no adapters; use hf or mlx")

    def unload_adapter(self, digest: str) -> None:
        """Frees an adapter's weights; where none can be loaded there is nothing to do."""

    def free_bytes(self) -> int:
        """The machine's free memory; devices with their own say otherwise."""
        return int(psutil.virtual_memory().available)

    def set_kv_budget(self, nbytes: int) -> None:  # most devices have no limits to set
        """Tells how many bytes of KV may be held in all."""

    def size(self, pack: P) -> int:
        """Slots in use."""
        return pack.tree.size

    def finite_slots(self, pack: P) -> Bool:
        """``(size,)`` the slots whose keys and values are numbers; libraries whose packs hold some look there."""
        return np.ones(pack.tree.size, np.bool_)

    def finite(self, array: Any) -> bool:
        """Whether a library's array holds numbers only."""
        return bool(np.isfinite(array).all())

    def sound(self, pack: P) -> Bool:
        """See `runtime.backends.base.Backend.sound`."""
        sound = self.finite_slots(pack)
        for slot, state in pack.states.items():
            parts = state if isinstance(state, tuple) else (state,)
            sound[slot] &= all(self.finite(part) for part in parts if part is not None)
        return sound

    def count(self, tokens: int) -> None:
        """The model is about to be called with so many tokens."""
        self.forwards += 1
        self.pushed += tokens

    @property
    def chained(self) -> bool:
        """Whether a branching call goes through the model as chains."""
        return self.recurrent or not self.tree

    def copy_cost(self, pack: P, parents: Int64) -> int:
        """See `runtime.backends.base.Backend.copy_cost`: as if all chains were as long as the longest can be."""
        if not (self.chained and self.buckets):
            return 0
        base, chains = pack.tree.size, count_chains(parents - pack.tree.size)
        if chains < 2:
            return 0
        above = parents[(parents >= 0) & (parents < base)]
        past = int(pack.tree.depths[above].max()) + 1 if len(above) else 0
        return chains * self.row_bytes(past + len(parents) - chains + 1)

    def truncate(self, pack: P, size: int) -> None:
        """Drops the newest slots: the first `size` stay."""
        pack.tree.truncate(size)
        pack.states = {slot: state for slot, state in pack.states.items() if slot < size}
        pack.kept = {slot for slot in pack.kept if slot < size}

    def resumable(self, pack: P, slot: int) -> bool:
        """Whether a token may be appended under `slot`."""
        return not self.recurrent or slot == ROOT or slot in pack.states

    def launch(self, pack: P, step: Step) -> Callable[[], Float32]:
        """Begins one forward without recurrent state; what is returned waits for its logits ``(len(want), vocab)``.

        A library that computes beside the caller says so in `overlaps` and overrides this.
        """
        logits, _ = self.push(pack, step)
        return lambda: logits

    def forward(
        self, pack: P, tokens: Int64, parents: Int64, want: Int64, stacks: TokenStacks | None = None
    ) -> tuple[Int64, Float32]:
        """Pushes new tokens through the model; see `runtime.backends.base.Backend.forward`.

        A call that fails leaves the pack as it was.

        Raises:
            InvalidRequestError: Ids outside the vocabulary, unknown parents, or a parent without recurrent state.
            ContextOverflowError: A path longer than the context.
            MemoryBudgetError: The device ran out of memory.
        """
        slots, logits = self.begin(pack, tokens, parents, want, stacks)
        return slots, logits()

    def begin(
        self, pack: P, tokens: Int64, parents: Int64, want: Int64, stacks: TokenStacks | None = None
    ) -> tuple[Int64, Callable[[], Float32]]:
        """`forward` in two halves; see `runtime.backends.base.Backend.begin`."""
        tokens, parents, want = (np.asarray(a, np.int64) for a in (tokens, parents, want))
        return self._append(pack, tokens, parents, want, stacks, hidden=False)

    def extend_hidden(self, pack: P, tokens: Int64, stacks: TokenStacks | None = None) -> Float32:
        """Appends to a chain; hidden states ``(n, hidden)``. See `runtime.backends.base.Backend.extend_hidden`."""
        tokens, size = np.asarray(tokens, np.int64), pack.tree.size
        parents = chain_parents(size, len(tokens), size - 1 if size else ROOT)
        return self._append(pack, tokens, parents, np.arange(len(tokens)), stacks, hidden=True)[1]()

    def _append(
        self, pack: P, tokens: Int64, parents: Int64, want: Int64, stacks: TokenStacks | None, *, hidden: bool
    ) -> tuple[Int64, Callable[[], Float32]]:
        self._check_ids(tokens)
        in_place = pack.tree.extends(parents)
        undo = pack.tree.append(parents)
        base, n = undo.size, len(tokens)
        slots = np.arange(base, base + n)

        def guarded(act: Callable[[], T]) -> T:
            try:
                return act()
            except BaseException:
                pack.tree.rollback(undo)
                for slot in [s for s in pack.states if s >= base]:
                    del pack.states[slot]
                raise

        def start() -> Callable[[], Float32]:
            positions = pack.tree.depths[base:].copy()
            self._check_context(positions)
            step = Step(tokens, slots, positions, want, hidden=hidden, stacks=stacks)
            if self.recurrent or (self.chained and not in_place):
                logits = self._chains(pack, step, parents, base)
                return lambda: logits
            return self.launch(pack, replace(step, mask=None if in_place else pack.tree.visible(base)))

        waiting = guarded(start)
        return slots, lambda: guarded(waiting)

    def _chains(self, pack: P, step: Step, parents: Int64, base: int) -> Float32:
        """Chains side by side where they may be; states live on at each one's end, and where children may still come."""
        width = self.info.hidden_size if step.hidden else self.info.vocab_size
        logits = np.empty((len(step.want), width), np.float32)
        answer = np.full(len(step.tokens), -1)  # the row of `logits` of each token; -1: not wanted
        answer[step.want] = np.arange(len(step.want))
        extended: set[int] = set()
        shared = self.buckets and step.stacks is None and not step.hidden  # under adapters each chain goes alone
        for level in levels(segments(parents, base), parents, base):
            rows = self._rows(pack, level, [int(parents[chain[0]]) for chain in level])
            for group in alike(rows, ragged=self.ragged) if shared else ([row] for row in rows):
                for start, stop, reaching in pieces(group, stepwise=self.stepwise):
                    for part in self._uniform(step, group[0].chain, start, stop):
                        for few in self._bounded(reaching):
                            self._push_rows(pack, step, few, part, answer, logits)
            if self.recurrent:
                pack.states.update((int(step.slots[row.chain[-1]]), row.state) for row in rows)
                self.state_bytes = self.state_bytes or state_size([rows[0].state])
                self.state_shapes = self.state_shapes or shapes_of(rows[0].state)
                extended.update(row.parent for row in rows)
        for slot in extended - pack.kept:
            pack.states.pop(slot, None)
        return logits

    def _rows(self, pack: P, chains: Sequence[Int64], parents: Sequence[int]) -> list[Row]:
        """The chains of a level, each with what it goes on from."""
        for parent in parents:
            if not self.resumable(pack, parent):
                raise InvalidRequestError(f"slot {parent} holds no recurrent state: continue from a checkpoint before it")
        paths = pack.tree.paths(parents) if self.looks_back(pack) else [np.empty(0, np.int64)] * len(parents)
        return [
            Row(chain, parent, len(path), path, pack.states.get(parent))
            for chain, parent, path in zip(chains, parents, paths, strict=True)
        ]

    def _uniform(self, step: Step, chain: Int64, start: int, stop: int) -> Iterator[slice]:
        """A part of a chain by the adapters of its tokens: some modules of recurrent layers see one token at a time."""
        runs = [(0, stop - start)] if step.stacks is None else step.stacks.part(chain[start:stop]).runs()
        for number, (first, last) in enumerate(runs):
            width = 1 if self.stepwise and number else last - first
            yield from (slice(start + at, start + at + width) for at in range(first, last, width))

    def _bounded(self, rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
        """Rows by rows, so that the copies of a forward stay within what was lent."""
        longest = max(len(row.path) + len(row.chain) for row in rows)
        at_once = max(self.lent // max(self.row_bytes(longest), 1), 1)
        for start in range(0, len(rows), at_once):
            yield rows[start : start + at_once]

    def _push_rows(self, pack: P, step: Step, rows: Sequence[Row], part: slice, answer: Int64, logits: Float32) -> None:
        """Pushes a part of some chains, writes its wanted rows, and moves each row on."""
        indices = np.stack([row.chain[part] for row in rows])  # (rows, width)
        wanted = answer[indices].ravel()
        want = np.flatnonzero(wanted >= 0)
        tokens, slots, positions = step.tokens[indices], step.slots[indices], step.positions[indices]
        states: Sequence[State | None]
        if len(rows) == 1:
            in_place = not self.looks_back(pack) or (len(rows[0].path) == slots[0, 0] and _consecutive(slots[0]))
            path = None if in_place else rows[0].path
            stacks = None if step.stacks is None else step.stacks.part(indices[0])
            alone = Step(
                tokens[0], slots[0], positions[0], want, path=path, state=rows[0].state, hidden=step.hidden, stacks=stacks
            )
            got, state = self.push(pack, alone)
            states = [state]
        else:
            kept = [row.state for row in rows] if rows[0].state is not None else None
            got, states = self.push_rows(pack, Bucket(tokens, slots, positions, want, *aligned(rows), kept))
        logits[wanted[want]] = got
        for row, state, added in zip(rows, states, slots, strict=True):
            row.state = state
            if self.looks_back(pack):
                row.path = np.concatenate([row.path, added])

    def _check_ids(self, tokens: Int64) -> None:
        if len(tokens) and (tokens.min() < 0 or tokens.max() >= self.info.vocab_size):
            bad = tokens[(tokens < 0) | (tokens >= self.info.vocab_size)][0]
            raise InvalidRequestError(f"token id {bad} is outside the vocabulary of {self.info.vocab_size:,}")

    def _check_context(self, positions: Int64) -> None:
        deepest = int(positions.max()) + 1
        if deepest > self.info.context_length:
            new = min(len(positions), deepest)
            raise ContextOverflowError("forward", deepest - new, new, self.info.context_length)

    def _adopt(self, pack: P, slots: Int64, state: State | None) -> None:
        """After a payload was loaded: its checkpoint, if it brings one, stays at its last slot."""
        if state is not None:
            pack.states[int(slots[-1])] = state
            pack.kept.add(int(slots[-1]))

    def _checkpoint(self, pack: P, slots: Int64) -> State | None:
        """For a payload that ends at ``slots[-1]``: the state there, which is kept from now on."""
        state = pack.states.get(int(slots[-1]))
        if state is not None:
            pack.kept.add(int(slots[-1]))
        return state


def steps_of(bucket: Bucket) -> Iterator[Step]:
    """The rows of a bucket as forwards of their own."""
    width = bucket.tokens.shape[1]
    for row, (tokens, slots, positions) in enumerate(zip(bucket.tokens, bucket.slots, bucket.positions, strict=True)):
        path = bucket.path[row] if bucket.missing is None else bucket.path[row, bucket.missing[row] :]
        want = bucket.want[bucket.want // width == row] % width
        yield Step(tokens, slots, positions, want, path=path, state=bucket.states[row] if bucket.states else None)


def joined(answers: Iterable[tuple[Float32, State | None]]) -> tuple[Float32, Sequence[State | None]]:
    """The answers to `steps_of` a bucket as the answer to it."""
    logits, states = zip(*answers, strict=True)
    return np.concatenate(logits), states


def chain_parents(base: int, n: int, parent: int) -> Int64:
    """The parents of `n` new slots from `base` on that hang as one chain under `parent`."""
    parents = np.arange(base - 1, base - 1 + n)
    parents[0] = parent
    return parents


def as_ids(ids: Sequence[int]) -> Int64:
    """Token ids as an array."""
    return np.asarray(ids, np.int64).reshape(-1)


def _consecutive(slots: Int64) -> bool:
    return int(slots[-1]) - int(slots[0]) == len(slots) - 1
