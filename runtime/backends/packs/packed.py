"""The half of a backend that is the same for every library: packs, chains and trees, recurrent state.

A library's backend inherits `PackedBackend` and says how one `Step` goes through its model.

Three ways to push tokens, chosen per call:
- *in place*: the pack is one chain and grows at its end (a chat, its decode, its prefill): buffers are handed to the
  library as they are, no mask of ours, the library's normal use of a cache;
- *tree*: everything else, in one forward, with a mask that lets each token see its ancestors and itself;
- *chains*: recurrent models, and any model whose tree numbers failed the self-test: chains of new tokens as rows of
  one forward (`runtime.backends.packs.chains`). Attention layers beside recurrent ones are shown the pack's own buffers, with a
  mask as a tree has it, or a gathered copy of each row's path where that is cheaper or the first way failed the self-test.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import psutil

from runtime.adapters.adapter import Adapter, ModuleShape
from runtime.adapters.stacks import TokenStacks
from runtime.backends.base import DeviceLogits, Part, Payload
from runtime.backends.packs.chains import ChainedBackend
from runtime.backends.packs.sized import FirstForward, P, State, WorkingPack
from runtime.backends.packs.step import Float32, Ragged, Step, joined, steps_of
from runtime.backends.packs.tree import ROOT, Bool, Int64, Undo
from runtime.errors import ContextOverflowError, InvalidRequestError, UnsupportedFeatureError
from runtime.options.load import BATCH_ROWS, CHUNK_TOKENS

__all__ = ["Float32", "PackedBackend", "State", "Step", "WorkingPack", "as_ids", "chain_parents", "joined", "steps_of"]

T = TypeVar("T")
GROWTH = 32  # slots


class PackedBackend(ChainedBackend[P]):
    """Packs over one model. Owner thread only.

    Attributes:
        overlaps: Whether a forward that was begun computes while the caller does something else.
        chunk_tokens: Of a prompt that go into one forward, at most, where no option says so.
        apart: Whether many small attentions cost less than one with a mask.
        batch_rows: That go through the model together, where no option says so.
        growth: Slots that a pack grows by at least, where there is room.
        unified: Whether the device's memory is the host's.
        on_device: Whether logits can stay where they are computed.
        readings: What `extend` can read of a forward in place of logits.
    """

    overlaps: bool = False
    chunk_tokens: int = CHUNK_TOKENS
    apart: bool = True
    batch_rows: int = BATCH_ROWS
    growth: int = GROWTH
    unified: bool = True
    on_device: bool = False
    readings: frozenset[str] = frozenset()

    @abstractmethod
    def open_pack(self) -> P:
        """An empty pack."""

    def learn_unread(self, found: FirstForward) -> None:  # a backend that knows its sizes has nothing to learn
        """Learns the layers' shapes from an earlier load instead of from a forward."""

    @abstractmethod
    def load(self, pack: P, payload: Payload, parent: int, skip: int = 0) -> Int64:
        """Copies cached tokens into the pack; their slots."""

    @abstractmethod
    def take(self, pack: P, slots: Int64) -> Payload:
        """An immutable copy of a chain of slots."""

    def take_many(self, pack: P, chains: Sequence[Int64]) -> list[Payload]:
        """Copies of several chains; a library that can gathers them all at once."""
        return [self.take(pack, slots) for slots in chains]

    def payload_resumable(self, payload: Payload) -> bool:
        """Whether a path can go on from its end."""
        return not self.recurrent or payload.state is not None

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

    def broken_weights(self) -> str | None:
        """The name of a tensor that holds something else than finite numbers, where a library can look."""
        return None

    def sound(self, pack: P) -> Bool:
        """See `runtime.backends.base.Backend.sound`."""
        sound = self.finite_slots(pack)
        for slot, state in pack.states.items():
            parts = state if isinstance(state, tuple) else (state,)
            sound[slot] &= all(self.finite(part) for part in parts if part is not None)
        return sound

    def truncate(self, pack: P, size: int) -> None:
        """Drops the newest slots: the first `size` stay."""
        pack.tree.truncate(size)
        pack.states = {slot: state for slot, state in pack.states.items() if slot < size}
        pack.kept = {slot for slot in pack.kept if slot < size}

    def ragged_chains(self, pack: P, base: int, parents: Int64) -> Ragged | None:  # noqa: ARG002  # for who can
        """The newest slots of the tree as chains that attend apart, where that costs less than one attention with a mask."""
        return None

    def ready(self, pack: P, step: Step) -> Callable[[Int64], Callable[[], Float32]] | None:  # noqa: ARG002  # for who can
        """`launch` as far as it goes without tokens: called with them, it does the rest. The pack's buffers stay as they are.

        None where nothing of it can be done before, as in most libraries.
        """
        return None

    def launch(self, pack: P, step: Step) -> Callable[[], Float32]:
        """Begins one forward without recurrent state; what is returned waits for its logits ``(len(want), vocab)``.

        A library that computes beside the caller says so in `overlaps` and overrides this.
        """
        logits, _ = self.push(pack, step)
        return lambda: logits

    def launch_together(
        self,
        packs: Sequence[P],  # noqa: ARG002  # for who can
        steps: Sequence[Step],  # noqa: ARG002  # the same
    ) -> Callable[[], Float32]:
        """`launch` over several packs; for libraries that say `together`."""
        raise UnsupportedFeatureError(f"the {self.info.backend} backend computes one pack at a time")

    def launch_on_device(
        self,
        packs: Sequence[P],  # noqa: ARG002  # for who can
        steps: Sequence[Step],  # noqa: ARG002  # the same
    ) -> DeviceLogits:
        """`launch_together` whose logits stay; for libraries that say `on_device`."""
        raise UnsupportedFeatureError(f"the {self.info.backend} backend computes logits for the host")

    def ready_together(
        self,
        packs: Sequence[P],  # noqa: ARG002  # for who can
        steps: Sequence[Step],  # noqa: ARG002  # the same
    ) -> Callable[[Int64], Callable[[], Float32]] | None:
        """`ready` over several packs."""
        return None

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
        self,
        pack: P,
        tokens: Int64,
        parents: Int64,
        want: Int64,
        stacks: TokenStacks | None = None,
        *,
        read: str | None = None,
    ) -> tuple[Int64, Callable[[], Float32]]:
        """`forward` in two halves; see `runtime.backends.base.Backend.begin`."""
        tokens, parents, want = np.asarray(tokens, np.int64), np.asarray(parents, np.int64), np.asarray(want, np.int64)
        self._check_ids(tokens)
        in_place = pack.tree.extends(parents)
        chains = self.recurrent or (self.chained and not in_place)
        undo = pack.tree.append(parents)

        def start() -> Callable[[], Float32]:
            step = self._step(pack, undo.size, tokens, want, stacks, None if in_place or chains else parents, read=read)
            if chains:
                logits = self._chains(pack, step, parents, undo.size)
                return lambda: logits
            return self.launch(pack, step)

        waiting = self._guarded(pack, undo, start)
        return np.arange(undo.size, undo.size + len(tokens)), partial(self._guarded, pack, undo, waiting)

    def prepare(
        self, pack: P, parents: Int64, stacks: TokenStacks | None = None
    ) -> Callable[[Int64], tuple[Int64, Callable[[], Float32]]] | None:
        """The half of `begin` that needs no tokens; see `runtime.backends.base.Backend.prepare`."""
        n, in_place = len(parents), pack.tree.extends(parents)
        if self.chained and (self.recurrent or not in_place):
            return None
        undo = pack.tree.append(parents)
        try:
            step = self._step(pack, undo.size, np.zeros(n, np.int64), np.arange(n), stacks, None if in_place else parents)
            launch = self.ready(pack, step)
        finally:
            pack.tree.rollback(undo)
        if launch is None:
            return None

        def begin(tokens: Int64) -> tuple[Int64, Callable[[], Float32]]:
            self._check_ids(tokens)
            undo = pack.tree.append(parents)
            waiting = self._guarded(pack, undo, lambda: launch(tokens))
            return step.slots, lambda: self._guarded(pack, undo, waiting)

        return begin

    def begin_together(self, parts: Sequence[Part]) -> Callable[[], Float32]:
        """One forward over several packs; see `runtime.backends.base.Backend.begin_together`."""
        undos: list[tuple[P, Undo]] = []
        waiting = self._guarded_all(undos, lambda: self.launch_together(*self._appended(parts, undos)))
        return partial(self._guarded_all, undos, waiting)

    def forward_on_device(self, parts: Sequence[Part]) -> DeviceLogits:
        """One forward whose logits stay; see `runtime.backends.base.Backend.forward_on_device`."""
        undos: list[tuple[P, Undo]] = []
        return self._guarded_all(undos, lambda: self.launch_on_device(*self._appended(parts, undos)))

    def prepare_together(self, parts: Sequence[Part]) -> Callable[[Int64], Callable[[], Float32]] | None:
        """The half of it that needs no tokens; see `runtime.backends.base.Backend.prepare_together`."""
        undos: list[tuple[P, Undo]] = []
        try:
            launch = self.ready_together(*self._appended(parts, undos))
        finally:
            _undo(undos)
        if launch is None:
            return None

        def begin(tokens: Int64) -> Callable[[], Float32]:
            self._check_ids(tokens)
            undos = [(part.pack, part.pack.tree.append(part.parents)) for part in parts]
            waiting = self._guarded_all(undos, lambda: launch(tokens))
            return lambda: self._guarded_all(undos, waiting)

        return begin

    def _appended(self, parts: Sequence[Part], undos: list[tuple[P, Undo]]) -> tuple[list[P], list[Step]]:
        """Adds the tokens of each part to its pack's tree, which `undos` can take back: the packs and their steps."""
        packs, steps = list[P](), list[Step]()
        for part in parts:
            tree = part.pack.tree
            self._check_ids(part.tokens)
            in_place = tree.extends(part.parents)
            undo = tree.append(part.parents)
            undos.append((part.pack, undo))
            packs.append(part.pack)
            branching = None if in_place else part.parents
            steps.append(self._step(part.pack, undo.size, part.tokens, part.want, part.stacks, branching))
        return packs, steps

    def _guarded_all(self, undos: list[tuple[P, Undo]], act: Callable[[], T]) -> T:
        """What fails leaves every pack as it was."""
        try:
            return act()
        except BaseException:
            _undo(undos)
            raise

    def extend(self, pack: P, tokens: Int64, read: str, stacks: TokenStacks | None = None) -> Float32:
        """Appends to a chain and reads something of each token; see `runtime.backends.base.Backend.extend`."""
        if read not in self.readings:
            found = ", ".join(sorted(self.readings)) or "nothing"
            raise UnsupportedFeatureError(f"the {self.info.backend} backend does not read {read!r} of a model, but {found}")
        size = pack.tree.size
        parents = chain_parents(size, len(tokens), size - 1 if size else ROOT)
        return self.begin(pack, tokens, parents, np.arange(len(tokens)), stacks, read=read)[1]()

    def _step(
        self,
        pack: P,
        base: int,
        tokens: Int64,
        want: Int64,
        stacks: TokenStacks | None,
        branching: Int64 | None,
        *,
        read: str | None = None,
    ) -> Step:
        """A forward over the newest slots of the tree, from `base` on; `branching`: parents, unless it is one chain."""
        positions = pack.tree.depths[base:].copy()
        self._check_context(positions)
        ragged = None if branching is None else self.ragged_chains(pack, base, branching)
        mask = pack.tree.visible(base) if branching is not None and ragged is None else None
        slots = np.arange(base, base + len(tokens))
        return Step(tokens, slots, positions, want, mask=mask, ragged=ragged, read=read, stacks=stacks)

    def _guarded(self, pack: P, undo: Undo, act: Callable[[], T]) -> T:
        """What fails leaves the pack as it was."""
        try:
            return act()
        except BaseException:
            pack.tree.rollback(undo)
            for slot in [s for s in pack.states if s >= undo.size]:
                del pack.states[slot]
            raise

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


def _undo(undos: Sequence[tuple[WorkingPack, Undo]]) -> None:
    for pack, undo in reversed(undos):
        pack.tree.rollback(undo)


def chain_parents(base: int, n: int, parent: int) -> Int64:
    """The parents of `n` new slots from `base` on that hang as one chain under `parent`."""
    parents = np.arange(base - 1, base - 1 + n)
    parents[0] = parent
    return parents


def as_ids(ids: Sequence[int]) -> Int64:
    """Token ids as an array."""
    return np.asarray(ids, np.int64).reshape(-1)
