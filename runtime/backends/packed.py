"""The half of a backend that is the same for every library: packs, chains and trees, recurrent state.

A library's backend inherits `PackedBackend` and says how one `Step` goes through its model.

Three ways to push tokens, chosen per call:
- *in place*: the pack is one chain and grows at its end (a chat, its decode, its prefill): buffers are handed to the
  library as they are, no mask of ours, the library's normal use of a cache;
- *tree*: everything else, in one forward, with a mask that lets each token see its ancestors and itself;
- *chains*: recurrent models, and any model whose tree numbers failed the self-test: one forward per chain of new
  tokens over a gathered copy of its path.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import psutil

from runtime.backends.base import Payload
from runtime.backends.sized import P, SizedBackend, State, WorkingPack, state_size
from runtime.backends.tree import ROOT, Bool, Int64, segments
from runtime.errors import ContextOverflowError, InvalidRequestError

__all__ = ["Float32", "PackedBackend", "State", "Step", "WorkingPack", "as_ids", "chain_parents"]

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
    """

    tree: bool = True
    overlaps: bool = False
    recurrent: bool = False
    stepwise: bool = False

    @abstractmethod
    def open_pack(self) -> P:
        """An empty pack."""

    @abstractmethod
    def push(self, pack: P, step: Step) -> tuple[Float32, State | None]:
        """One forward: the wanted raw logits ``(len(want), vocab) float32`` and the recurrent state after it."""

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
    def logits_uncached(self, ids: Sequence[int]) -> Float32:
        """``(vocab,)`` raw logits after `ids` by the library's own plain forward."""

    def free_bytes(self) -> int:
        """The machine's free memory; devices with their own say otherwise."""
        return int(psutil.virtual_memory().available)

    def set_kv_budget(self, nbytes: int) -> None:  # most devices have no limits to set
        """Tells how many bytes of KV may be held in all."""

    def size(self, pack: P) -> int:
        """Slots in use."""
        return pack.tree.size

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

    def forward(self, pack: P, tokens: Int64, parents: Int64, want: Int64) -> tuple[Int64, Float32]:
        """Pushes new tokens through the model; see `runtime.backends.base.Backend.forward`.

        A call that fails leaves the pack as it was.

        Raises:
            InvalidRequestError: Ids outside the vocabulary, unknown parents, or a parent without recurrent state.
            ContextOverflowError: A path longer than the context.
            MemoryBudgetError: The device ran out of memory.
        """
        slots, logits = self.begin(pack, tokens, parents, want)
        return slots, logits()

    def begin(self, pack: P, tokens: Int64, parents: Int64, want: Int64) -> tuple[Int64, Callable[[], Float32]]:
        """`forward` in two halves; see `runtime.backends.base.Backend.begin`."""
        tokens, parents, want = (np.asarray(a, np.int64) for a in (tokens, parents, want))
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
            step = Step(tokens, slots, positions, want)
            if self.recurrent or not (in_place or self.tree):
                logits = self._chains(pack, step, parents, base)
                return lambda: logits
            return self.launch(pack, replace(step, mask=None if in_place else pack.tree.visible(base)))

        waiting = guarded(start)
        return slots, lambda: guarded(waiting)

    def _chains(self, pack: P, step: Step, parents: Int64, base: int) -> Float32:
        """One forward per chain; states live on at the end of each chain, and where children may still come."""
        logits = np.empty((len(step.want), self.info.vocab_size), np.float32)
        extended: set[int] = set()
        for chain in segments(parents, base):
            parent = int(parents[chain[0]])
            if not self.resumable(pack, parent):
                raise InvalidRequestError(f"slot {parent} holds no recurrent state: continue from a checkpoint before it")
            rows = np.flatnonzero(np.isin(step.want, chain))
            state = self._chain(pack, step, chain, parent, rows, logits)
            if self.recurrent:
                pack.states[int(step.slots[chain[-1]])] = state
                self.state_bytes = self.state_bytes or state_size([state])
                extended.add(parent)
        for slot in extended - pack.kept:
            pack.states.pop(slot, None)
        return logits

    def _chain(self, pack: P, step: Step, chain: Int64, parent: int, rows: Int64, logits: Float32) -> State | None:
        """Pushes one chain (indices into the call), writes its wanted rows, returns the state at its end."""
        path = pack.tree.path(parent)
        state = pack.states.get(parent)
        wanted = np.searchsorted(chain, step.want[rows])
        for start, stop in self._pieces(len(chain), fresh=parent == ROOT):
            part = chain[start:stop]
            inside = (wanted >= start) & (wanted < stop)
            slots = step.slots[part]
            got, state = self.push(
                pack,
                Step(
                    tokens=step.tokens[part],
                    slots=slots,
                    positions=step.positions[part],
                    want=wanted[inside] - start,
                    path=None if len(path) == slots[0] and _consecutive(slots) else path,
                    state=state,
                ),
            )
            logits[rows[inside]] = got
            path = np.concatenate([path, slots])
        return state

    def _pieces(self, n: int, *, fresh: bool) -> list[tuple[int, int]]:
        """How a chain of `n` tokens is cut: not at all, or one by one after a kept state."""
        if not self.stepwise or fresh:
            return [(0, n)]
        return [(i, i + 1) for i in range(n)]

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
