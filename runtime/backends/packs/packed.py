"""The interface of a backend, and its part that is common to all libraries: packs, chains, trees, state.

A backend owns a loaded model. It works on *packs*: a pack is a growing tree of tokens (*slots*) whose keys and values
lie in working buffers with room to grow. One chat is a chain of slots; many queries over one prefix are a tree; so is a
batch of unrelated rows (a forest: several slots with parent -1). Arguments and results are numpy arrays and plain Python.
A library's backend inherits `PackedBackend` and computes one `ForwardStep` with its model.

Three ways to push tokens, chosen per call:
- *in place*: the pack is one chain and grows at its end (prefill and decode of a chat): the library uses the buffers as
  its normal cache, without a mask of ours;
- *tree*: everything else, in one forward, with a mask that lets each token see its ancestors and itself;
- *chains*: recurrent models, and any model whose tree failed the self-test: chains of new tokens as rows of one forward
  (`Bucket`). Attention layers beside recurrent ones attend to the pack's buffers through a tree's mask, or to a gathered
  copy of each row's path where that is cheaper or the first way failed the self-test.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import numpy as np
import psutil

from runtime.adapters.adapter import Adapter, ModuleShape
from runtime.adapters.stacks import TokenStacks
from runtime.backends.base import ROOT, Cost, PackTokens, Payload
from runtime.backends.packs.chains import (
    UNBOUNDED,
    Bucket,
    ChainRow,
    SplitCall,
    compatible_groups,
    joined,
    levels,
    padded_paths,
    spans,
    steps_of,
    worth_sharing,
)
from runtime.backends.packs.logits import DeviceLogits
from runtime.backends.packs.tree import (
    Bool,
    Float32,
    ForwardStep,
    Int64,
    Ragged,
    SlotTree,
    State,
    Undo,
    consecutive,
    count_chains,
    segments,
)
from runtime.backends.stored import Shape, StateShapes, Stored
from runtime.errors import ContextOverflowError, InvalidRequestError, UnsupportedFeatureError
from runtime.info import ModelInfo
from runtime.numerics.ranking import RankedRows, RankRequest
from runtime.options.load import BATCH_ROWS, CHUNK_TOKENS

GROWTH = 32  # slots
MOVED_SLOTS = 256  # moved at a time within a pack
RETURN_BYTES = 64 << 20  # of freed KV, after which memory is returned to the device

_Size = Annotated[int, msgspec.Meta(gt=0, lt=1 << 40)]


class FirstForward(msgspec.Struct, frozen=True):
    """The result of pushing one token through the whole model, as saved for later loads.

    Attributes:
        seconds: Its duration.
        shapes, state_shapes, state_bytes: The attributes of `PackedBackend` with these names.
    """

    seconds: Annotated[float, msgspec.Meta(gt=0, lt=1e6)]
    shapes: tuple[tuple[_Size, _Size, _Size], ...]
    state_shapes: tuple[tuple[_Size, ...] | None, ...] | None
    state_bytes: Annotated[int, msgspec.Meta(ge=0, lt=1 << 60)]


# Bytes of the Python objects of a pack and its workspace, without its layers and buffers; measured with CPython 3.11.
# They count where many short texts have nothing in common.
PACK_BYTES = 5_500


class WorkingPack(ABC):
    """The token tree and recurrent states of a pack; a library's pack adds buffers."""

    def __init__(self) -> None:
        self.tree = SlotTree()
        self.states: dict[int, State] = {}  # by slot
        self.kept: set[int] = set()  # slots whose state is kept after children were computed

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Slots that every buffer has room for."""


P = TypeVar("P", bound=WorkingPack)
T = TypeVar("T")


class PackedBackend(ABC, Generic[P]):
    """Packs over one model. Not thread-safe: one owner thread calls everything.

    Each layer of a pack has one buffer of keys and one of values. They are resized one after the other: at the peak all are
    new and one exists twice.

    Attributes:
        overlaps: Whether a forward that was begun computes while the caller does something else.
        chunk_tokens: Default limit of the prompt tokens in one forward.
        apart: Whether many small attentions cost less than one with a mask; else unrelated short texts share a pack.
        batch_rows: Default limit of the rows in one forward.
        growth: Least number of slots that a pack grows by, where there is memory.
        unified: Whether device and host share their memory.
        on_device: Whether logits can stay on the device (`forward_on_device`); needs `together`.
        readings: Names of the outputs that `extend` can read in place of logits.
        tree: Whether a branching call may be one forward.
        stepwise: Whether a recurrent state takes only one token at a time (a library's limit, found at load).
        buckets: Whether chains may be rows of one forward; else each has a forward of its own.
        ragged: Whether rows of one forward may have pasts of different length.
        shares: Whether rows may attend to the pack's buffers through masks, instead of copies of their paths.
        masked_per_copy, reach: See `runtime.backends.packs.chains.worth_sharing`.
        together: Whether one forward may run over several packs (`begin`).
        forwards: Calls of the model since load, failed ones included.
        speed: Initial estimate of tokens per second, lowered where the forward at load was slow.
        layer_calls: Calls of the model's layers, where the library lets them be counted; read by any thread.
        interruptible: Whether a forward calls `interrupted` between two layers.
        interrupted: Called between layers; True ends the forward with `ForwardInterrupted`. Set by the caller for one
            forward; None: not called.
        pushed: Tokens in these calls of the model, padding included.
        info: Facts about the model.
        shapes: Shapes of the attention layers, once known.
        slot_bytes: Bytes of a pack's buffers per slot.
        widest_bytes: Bytes of the largest of these buffers per slot.
        state_bytes: Bytes of one recurrent state; 0 without one.
        state_shapes: Shapes of its parts, once known; None for a missing part.
        lent: Bytes that the copies of one forward may take: paths and states of the chains that share it. If less than
            `copy_cost`, the chains take more forwards.
    """

    info: ModelInfo
    overlaps: bool = False
    chunk_tokens: int = CHUNK_TOKENS
    apart: bool = True
    batch_rows: int = BATCH_ROWS
    growth: int = GROWTH
    unified: bool = True
    on_device: bool = False
    readings: frozenset[str] = frozenset()
    tree: bool = True
    recurrent: bool = False
    stepwise: bool = False
    buckets: bool = True
    ragged: bool = True
    shares: bool = False
    together: bool = False
    reach: int = UNBOUNDED
    masked_per_copy: float = 2.0  # a copy is one read and one write beyond the read that both ways need
    forwards: int = 0
    speed: float = 400.0
    layer_calls: int = 0
    interruptible: bool = False
    interrupted: Callable[[], bool] | None = None
    pushed: int = 0
    shapes: tuple[Shape, ...] = ()
    slot_bytes: int = 0
    widest_bytes: int = 0
    state_bytes: int = 0
    state_shapes: StateShapes | None = None
    lent: int = UNBOUNDED
    _freed: int = 0

    @abstractmethod
    def open_pack(self) -> P:
        """An empty pack."""

    def learn_unread(self, found: FirstForward) -> None:  # nothing to do for a backend that knows its sizes
        """Sets the layers' shapes from an earlier load's result, without a forward."""

    @staticmethod
    def computing() -> AbstractContextManager[None]:  # none is needed to call numpy
        """The context of calls to the library; turns its out-of-memory errors into `MemoryBudgetError`."""
        return nullcontext()

    def load(self, pack: P, payload: Payload, parent: int, skip: int = 0) -> Int64:
        """Copies cached tokens into the pack, all but the first `skip`, as a chain that follows slot `parent` (or ROOT).

        Returns:
            Their slots, ``(n - skip,) int64``, in order. For recurrent layers only the last is resumable.

        Raises:
            MemoryBudgetError: The device ran out of memory. The pack holds no more slots than before.
        """
        base, n = pack.tree.size, payload.n - skip
        undo = pack.tree.append(chain_parents(base, n, parent))
        try:
            with self.computing():
                self.put(pack, payload, base, skip)
        except BaseException:
            pack.tree.rollback(undo)
            raise
        if payload.state is not None:  # belongs to the last slot
            pack.states[base + n - 1] = payload.state
            pack.kept.add(base + n - 1)
        return np.arange(base, base + n)

    @abstractmethod
    def put(self, pack: P, payload: Payload, start: int, skip: int) -> None:
        """Writes a payload without its first `skip` tokens into the buffers at `start`."""

    @abstractmethod
    def take(self, pack: P, slots: Int64) -> Payload:
        """An immutable copy of a chain of slots, with no reference to the pack's buffers."""

    def take_many(self, pack: P, chains: Sequence[Int64]) -> list[Payload]:
        """`take` of several chains, as separate payloads. Needs at most three times their bytes meanwhile."""
        return [self.take(pack, slots) for slots in chains]

    def split(self, payload: Payload, n: int) -> tuple[Payload, Payload]:
        """The first `n` tokens and the rest, each contiguous in memory of its own. Needs `payload_bytes` once more."""
        with self.computing():
            head, tail = payload.split(n)
            return head, tail

    def payload_bytes(self, payload: Payload) -> int:
        return int(payload.nbytes)

    def payload_resumable(self, payload: Payload) -> bool:
        """Whether tokens may follow the payload's last one (False: the recurrent state there is missing)."""
        return not self.recurrent or payload.state is not None

    @abstractmethod
    def pack_bytes(self, pack: P) -> int:
        """Bytes that the pack holds: its buffers, and its objects where they count beside them."""

    @abstractmethod
    def close(self, pack: P) -> None:
        """Frees the pack."""

    def export(self, payload: Payload, start: int = 0, stop: int | None = None) -> Stored:
        """Tokens `start` to `stop` (None: the end) as plain arrays (bfloat16 as uint16), for disk.

        They may share the payload's memory and must not be written to. The recurrent state is included with the last token.
        `runtime.backends.stored` describes the format.
        """
        with self.computing():
            arrays: Stored = payload.export(start, payload.n if stop is None else stop)
            return arrays

    @abstractmethod
    def restore(self, tensors: Stored) -> Payload:
        """The inverse of `export`. The payload may keep the arrays: they must not be written to afterwards.

        Raises:
            SnapshotFormatError: The arrays are not of this backend's format.
        """

    @abstractmethod
    def unload(self) -> None:
        """Frees the model."""

    @abstractmethod
    def logits_uncached(self, ids: Sequence[int], stacks: TokenStacks | None = None) -> Float32:
        """``(vocab,)`` raw logits after `ids`, computed by the library's plain forward without our cache."""

    @abstractmethod
    def hidden_states(self, tokens: Int64, stacks: TokenStacks | None = None) -> Float32:
        """The last layer's output for each token, after the final norm, by the library's plain forward; stores no KV.

        Args:
            tokens: ``(rows, length)`` ids; shorter rows are padded on the right, which no earlier token sees.
            stacks: The adapters, the same for all tokens; None: no adapters.

        Returns:
            ``(rows, length, hidden) float32``.

        Raises:
            UnsupportedFeatureError: The library gives no hidden states of this architecture.
            MemoryBudgetError: The device ran out of memory.
        """

    def adapter_targets(self) -> Mapping[str, ModuleShape]:
        """The linear modules that an adapter may change: path -> (in, out).

        Raises:
            UnsupportedFeatureError: This backend, or this model, takes no adapters.
        """
        raise UnsupportedFeatureError(f"the {self.info.backend} backend takes no adapters; use hf or mlx")

    def load_adapter(self, adapter: Adapter) -> int:  # noqa: ARG002  # of backends that take adapters
        """Loads an adapter's weights beside the base's, which do not change; returns their bytes.

        Its modules are among the paths of `adapter_targets`. An adapter that is loaded already is not loaded again.

        Raises:
            AdapterError: The model does not compute with a module that it changes.
            MemoryBudgetError: The device ran out of memory; nothing was loaded.
        """
        raise UnsupportedFeatureError(f"the {self.info.backend} backend takes no adapters; use hf or mlx")

    def unload_adapter(self, digest: str) -> None:
        """Frees an adapter's weights and restores the model. An unknown digest is no error."""

    def free_bytes(self) -> int:
        """Free bytes for KV after the weights are loaded, in the machine or on its device; never negative.

        The default KV budget is a share of it.
        """
        return int(psutil.virtual_memory().available)

    def set_kv_budget(self, nbytes: int) -> None:  # most devices have no limits to set
        """Announces the limit of all KV in bytes, for devices with memory limits to set."""

    def size(self, pack: P) -> int:
        return pack.tree.size

    def finite_slots(self, pack: P) -> Bool:
        """``(size,)`` whether the keys and values of each slot are finite; overridden where packs hold any."""
        return np.ones(pack.tree.size, np.bool_)

    def finite(self, array: Any) -> bool:
        """Whether all numbers of a library's array are finite."""
        return bool(np.isfinite(array).all())

    def broken_weights(self) -> str | None:
        """The name of a weight tensor that is not finite; None: no such tensor, or the library cannot look."""
        return None

    def sound(self, pack: P) -> Bool:
        """``(size,)`` whether the keys, values and recurrent state of each slot are finite; reads all of them."""
        sound = self.finite_slots(pack)
        for slot, state in pack.states.items():
            sound[slot] &= all(self.finite(part) for part in _state_parts(state) if part is not None)
        return sound

    def truncate(self, pack: P, size: int) -> None:
        """Drops all but the first `size` slots; the buffers keep their capacity."""
        pack.tree.truncate(size)
        pack.states = {slot: state for slot, state in pack.states.items() if slot < size}
        pack.kept = {slot for slot in pack.kept if slot < size}

    def ragged_chains(self, pack: P, base: int, parents: Int64) -> Ragged | None:  # noqa: ARG002  # for overrides
        """The newest slots as chains with separate attentions, where these cost less than one with a mask; else None."""
        return None

    def ready(
        self,
        packs: Sequence[P],  # noqa: ARG002  # for overrides
        steps: Sequence[ForwardStep],  # noqa: ARG002  # for overrides
        request: RankRequest | None,  # noqa: ARG002  # for overrides
    ) -> Callable[[Int64], Callable[[], Float32 | RankedRows]] | None:
        """The part of `launch` that needs no tokens; the result is called with the tokens and does the rest.

        Does not change the packs' buffers. None: nothing can be done in advance, as in most libraries.
        """
        return None

    def launch(
        self,
        packs: Sequence[P],
        steps: Sequence[ForwardStep],
        request: RankRequest | None = None,  # noqa: ARG002  # for libraries with `on_device`
    ) -> Callable[[], Float32 | RankedRows]:
        """Begins one forward without recurrent state; the result waits for its logits ``(wanted, vocab)``.

        With a request the logits stay on the device and the result is their ranking. Takes several packs where `together`
        holds; computes while the caller goes on, where `overlaps` holds.
        """
        ((pack, step),) = zip(packs, steps, strict=True)
        logits, _ = self.push(pack, step)
        return lambda: logits

    def launch_on_device(
        self,
        packs: Sequence[P],  # noqa: ARG002  # for overrides
        steps: Sequence[ForwardStep],  # noqa: ARG002  # for overrides
    ) -> DeviceLogits:
        """`launch` with logits that stay on the device; for libraries with `on_device`."""
        raise UnsupportedFeatureError(f"the {self.info.backend} backend computes logits for the host")

    def forward(
        self, pack: P, tokens: Int64, parents: Int64, want: Int64, stacks: TokenStacks | None = None
    ) -> tuple[Int64, Float32]:
        """Pushes new tokens through the model, in one forward where the architecture allows it.

        Args:
            pack: Grows by these tokens.
            tokens: ``(n,)`` ids, parents before children.
            parents: ``(n,)`` the slot that each follows: ROOT, a slot of the pack, or ``pack size before the call + j``
                for the j-th token of this call.
            want: Ascending indices into `tokens` of the logits to return.
            stacks: The loaded adapters of each token; None: no adapters.

        Returns:
            The new slots ``(n,)`` (always ``size before + arange(n)``) and the raw logits
            ``(len(want), vocab) float32``, which the caller may write to.

        Raises:
            InvalidRequestError: Ids outside the vocabulary, unknown parents, a parent that is not `resumable`.
            AdapterError: A stack names an adapter that is not loaded.
            ContextOverflowError: A path longer than `info.context_length`.
            MemoryBudgetError: The device ran out of memory. After any error the pack is unchanged.
        """
        base = pack.tree.size
        tokens, parents, want = np.asarray(tokens, np.int64), np.asarray(parents, np.int64), np.asarray(want, np.int64)
        return np.arange(base, base + len(tokens)), self.compute([PackTokens(pack, tokens, parents, want, stacks)])

    def compute(self, parts: Sequence[PackTokens], request: RankRequest | None = None, *, read: str | None = None) -> Any:
        """`forward` over several packs, where `together` holds: projections over all tokens, attention within each pack.

        Args:
            parts: The tokens of each pack.
            request: For a backend with `on_device`: the logits stay on the device, and their ranking is returned.
            read: One of `readings`, returned in place of logits.

        Returns:
            The wanted raw logits ``(sum of len(part.want), vocab) float32``, in the order of `parts`; with a request
            `RankedRows`.

        Raises:
            MemoryBudgetError: And other errors of `forward`; after any of them every pack is unchanged.
        """
        undos: list[tuple[P, Undo]] = []
        try:
            packs, steps, by_chains = self._appended(parts, undos, read)
            return (self._chains if by_chains else self.launch)(packs, steps, request)()
        except BaseException:
            _undo(undos)
            raise

    def begin(self, parts: Sequence[PackTokens], request: RankRequest | None = None) -> Callable[[], Any]:
        """`compute` in two halves. Where `overlaps` is False the first half does all the work.

        Returns:
            A function that waits for the result; to be called once, before any pack is used again. Either half may raise the
            errors of `forward`; then every pack is unchanged.
        """
        undos: list[tuple[P, Undo]] = []
        try:
            packs, steps, by_chains = self._appended(parts, undos)
            return partial(_awaited, (self._chains if by_chains else self.launch)(packs, steps, request), undos)
        except BaseException:
            _undo(undos)
            raise

    def forward_on_device(self, parts: Sequence[PackTokens]) -> DeviceLogits:
        """`compute` without waiting, for a backend with `on_device`, with one part or more.

        Raises:
            MemoryBudgetError: And other errors of `forward`; after any of them every pack is unchanged.
        """
        undos: list[tuple[P, Undo]] = []
        try:
            packs, steps, _ = self._appended(parts, undos)
            return self.launch_on_device(packs, steps)
        except BaseException:
            _undo(undos)
            raise

    def prepare(
        self, parts: Sequence[PackTokens], request: RankRequest | None = None
    ) -> Callable[[Int64], Callable[[], Any]] | None:
        """The part of `begin` that needs no tokens; does not change the packs.

        Returns:
            The rest of `begin`, to be called at most once with all tokens, concatenated, before any pack changes. None: nothing
            can be done in advance.
        """
        undos: list[tuple[P, Undo]] = []
        try:
            packs, steps, by_chains = self._appended(parts, undos)
            launch = None if by_chains else self.ready(packs, steps, request)
        finally:
            _undo(undos)
        if launch is None:
            return None

        def begin(tokens: Int64) -> Callable[[], Any]:
            if tokens.min() < 0 or tokens.max() >= self.info.vocab_size:
                raise self._outside(tokens)
            undos = [(part.pack, part.pack.tree.append(part.parents)) for part in parts]
            try:
                return partial(_awaited, launch(tokens), undos)
            except BaseException:
                _undo(undos)
                raise

        return begin

    def _appended(
        self, parts: Sequence[PackTokens], undos: list[tuple[P, Undo]], read: str | None = None
    ) -> tuple[list[P], list[ForwardStep], bool]:
        """Adds the tokens of each part to its pack's tree, and the data to undo that to `undos`.

        Returns:
            The packs, their steps, and whether these are computed chain by chain.
        """
        packs, steps, ids = list[P](), list[ForwardStep](), list[Int64]()
        for part in parts:
            pack: P = part.pack
            undo = pack.tree.append(part.parents)
            undos.append((pack, undo))
            packs.append(pack)
            ids.append(part.tokens)
            positions = pack.tree.depths[undo.size :].copy()
            deepest = 1 + int(positions[0] if len(positions) == 1 else positions.max())
            if deepest > self.info.context_length:
                new = min(len(positions), deepest)
                raise ContextOverflowError("forward", deepest - new, new, self.info.context_length)
            mask = ragged = None
            if self.tree and not (self.recurrent or pack.tree.linear):  # else one chain, or computed chain by chain
                ragged = self.ragged_chains(pack, undo.size, part.parents) if self.on_device else None
                mask = pack.tree.visible(undo.size) if ragged is None else None
            slots = np.arange(undo.size, undo.size + len(part.tokens))
            step = ForwardStep(
                part.tokens, slots, positions, part.want, mask=mask, ragged=ragged, read=read, stacks=part.stacks
            )
            steps.append(step)
        tokens = np.concatenate(ids)
        if tokens.min() < 0 or tokens.max() >= self.info.vocab_size:
            raise self._outside(tokens)
        return packs, steps, self.recurrent or not (self.tree or packs[0].tree.linear)

    def extend(self, pack: P, tokens: Int64, read: str, stacks: TokenStacks | None = None) -> Float32:
        """Appends to a pack that is empty or one chain, and reads another output of each new token in place of its logits.

        Args:
            pack: Grows by these tokens.
            tokens: ``(n,)`` ids.
            read: One of `readings`.
            stacks: See `forward`.

        Returns:
            ``(n, ...) float32``, which the caller may write to; `runtime.backends.hf.readings` has the shape of each reading.

        Raises:
            UnsupportedFeatureError: The backend has no such reading, or not for this architecture.
            ContextOverflowError, MemoryBudgetError: After any error the pack is unchanged.
        """
        if read not in self.readings:
            found = ", ".join(sorted(self.readings)) or "nothing"
            raise UnsupportedFeatureError(f"the {self.info.backend} backend does not read {read!r} of a model, but {found}")
        size = pack.tree.size
        parents = chain_parents(size, len(tokens), size - 1 if size else ROOT)
        part = PackTokens(pack, np.asarray(tokens, np.int64), parents, np.arange(len(tokens)), stacks)
        answer: Float32 = self.compute([part], read=read)
        return answer

    def _outside(self, tokens: Int64) -> InvalidRequestError:
        bad = tokens[(tokens < 0) | (tokens >= self.info.vocab_size)][0]
        return InvalidRequestError(f"token id {bad} is outside the vocabulary of {self.info.vocab_size:,}")

    def _checkpoint(self, pack: P, slots: Int64) -> State | None:
        """The recurrent state of ``slots[-1]``, for a payload that ends there; it is kept from now on."""
        state = pack.states.get(int(slots[-1]))
        if state is not None:
            pack.kept.add(int(slots[-1]))
        return state

    # ---- chains side by side ------------------------------------------------------------------------------------------------

    @abstractmethod
    def push(self, pack: P, step: ForwardStep) -> tuple[Float32, State | None]:
        """One forward: the wanted raw logits ``(len(want), vocab) float32`` and the recurrent state after it.

        With ``step.read`` that output in place of logits, ``(len(want), ...) float32``.
        """

    def push_rows(self, pack: P, bucket: Bucket) -> tuple[Float32, Sequence[State | None]]:
        """One forward of chains side by side: the wanted raw logits as in `push`, and each row's state after it.

        By default one forward for each row.
        """
        return joined(self.push(pack, step) for step in steps_of(bucket))

    @property
    def chained(self) -> bool:
        """Whether a branching call is computed as chains."""
        return self.recurrent or not self.tree

    def copy_cost(self, pack: P, parents: Int64) -> int:
        """Bytes that a `forward` with these parents would copy meanwhile, to push its chains side by side.

        An upper bound: all chains are taken to be as long as the longest can be.
        """
        if not (self.chained and self.buckets):
            return 0
        base, chains = pack.tree.size, count_chains(parents - pack.tree.size)
        if chains < 2:
            return 0
        above, longest = parents[(parents >= 0) & (parents < base)], len(parents) - chains + 1
        if self.shares:
            undo = pack.tree.append(parents)
            shared = self._attends_in_place(pack, segments(parents, base), parents)
            pack.tree.rollback(undo)
            if shared:
                fresh = int((parents == ROOT).sum())
                return fresh * self.row_bytes(longest) + (chains - fresh) * self.row_bytes(0)
        past = int(pack.tree.depths[above].max()) + 1 if len(above) else 0
        return chains * self.row_bytes(past + longest)

    def resumable(self, pack: P, slot: int) -> bool:
        """Whether a token may follow `slot`: always, unless a recurrent state was not kept there."""
        return not self.recurrent or slot == ROOT or slot in pack.states

    def count(self, tokens: int) -> None:
        """Counts a call of the model with `tokens` tokens; called before it."""
        self.forwards += 1
        self.pushed += tokens

    def _attends_in_place(self, pack: P, chains: Sequence[Int64], parents: Int64) -> bool:
        """Whether the rows of a call, whose slots are in the tree already, attend to the pack's buffers in place."""
        if not self.shares or not self.looks_back(pack):
            return False
        heads = np.array([(parents[chain[0]], len(chain)) for chain in chains])  # the slot that each follows, and its length
        heads = heads[heads[:, 0] != ROOT]
        pasts = pack.tree.depths[heads[:, 0]] + 1
        return worth_sharing(pasts, heads[:, 1], pack.tree.size, masked_per_copy=self.masked_per_copy, reach=self.reach)

    def _chains(
        self,
        packs: Sequence[P],
        steps: Sequence[ForwardStep],
        request: RankRequest | None = None,  # noqa: ARG002  # of models that take a tree in one forward
    ) -> Callable[[], Float32]:
        """`launch` for chains, which are computed side by side where possible.

        Stores the recurrent state at the end of each chain; drops those of the slots that chains follow, except `kept` ones.
        """
        ((pack, step),) = zip(packs, steps, strict=True)
        base = int(step.slots[0])
        parents = pack.tree.parents(base)
        chains = segments(parents, base)
        call = SplitCall(step, shared=self._attends_in_place(pack, chains, parents))
        extended: set[int] = set()
        together = self.buckets and step.stacks is None and step.read is None  # with adapters each chain has its own forward
        for level in levels(chains, parents, base):
            rows = self._rows(pack, level, [int(parents[chain[0]]) for chain in level])
            for group in self._groups(rows, shared=call.shared) if together else ([row] for row in rows):
                for start, stop, reaching in spans(group, stepwise=self.stepwise):
                    for part in self._adapter_runs(step, group[0].chain, start, stop):
                        for few in self._batches(call, reaching):
                            self._push_rows(pack, call, few, part)
            if self.recurrent:
                pack.states.update((int(step.slots[row.chain[-1]]), row.state) for row in rows)
                self.state_bytes = self.state_bytes or state_size([rows[0].state])
                self.state_shapes = self.state_shapes or shapes_of(rows[0].state)
                extended.update(row.parent for row in rows)
        for slot in extended - pack.kept:
            pack.states.pop(slot, None)
        answers = call.answers
        assert answers is not None  # there is at least one token
        return lambda: answers

    def _rows(self, pack: P, chains: Sequence[Int64], parents: Sequence[int]) -> list[ChainRow]:
        """The chains of a level, each with the past that it follows."""
        for parent in parents:
            if not self.resumable(pack, parent):
                raise InvalidRequestError(f"slot {parent} holds no recurrent state: continue from a checkpoint before it")
        depths, back = pack.tree.depths, self.looks_back(pack)
        return [
            ChainRow(chain, parent, int(depths[parent]) + 1 if back and parent != ROOT else 0, parent, pack.states.get(parent))
            for chain, parent in zip(chains, parents, strict=True)
        ]

    def _groups(self, rows: Sequence[ChainRow], *, shared: bool) -> Iterator[list[ChainRow]]:
        """Groups of rows that may share a forward; without copies the lengths of their pasts do not matter."""
        apart = [row for row in rows if row.fresh or not shared]
        yield from compatible_groups(apart, ragged=self.ragged)
        if len(apart) < len(rows):
            yield [row for row in rows if not row.fresh]

    def _adapter_runs(self, step: ForwardStep, chain: Int64, start: int, stop: int) -> Iterator[slice]:
        """Cuts a part of a chain where the adapters change; with `stepwise` the runs after the first into single tokens."""
        runs = [(0, stop - start)] if step.stacks is None else step.stacks.part(chain[start:stop]).runs()
        for number, (first, last) in enumerate(runs):
            width = 1 if self.stepwise and number else last - first
            yield from (slice(start + at, start + at + width) for at in range(first, last, width))

    def _batches(self, call: SplitCall, rows: Sequence[ChainRow]) -> Iterator[Sequence[ChainRow]]:
        """Batches of rows whose copies fit into `lent` bytes."""
        copied = 0 if call.attends_in_place(rows) else max(row.past + len(row.chain) for row in rows)
        at_once = max(self.lent // max(self.row_bytes(copied), 1), 1)
        for start in range(0, len(rows), at_once):
            yield rows[start : start + at_once]

    def _push_rows(self, pack: P, call: SplitCall, rows: Sequence[ChainRow], part: slice) -> None:
        """Pushes a part of some chains, enters its wanted results, and advances each row."""
        indices = np.stack([row.chain[part] for row in rows])  # (rows, width)
        wanted = call.answer[indices].ravel()
        want = np.flatnonzero(wanted >= 0)
        got, states = self._computed(pack, call, rows, indices, want)
        call.written[indices] = True
        call.write(wanted[want], got)
        for row, state, index in zip(rows, states, indices[:, -1], strict=True):
            row.state, row.tip = state, int(call.step.slots[index])

    def _computed(
        self, pack: P, call: SplitCall, rows: Sequence[ChainRow], indices: Int64, want: Int64
    ) -> tuple[Float32, Sequence[State | None]]:
        """One forward of rows ``(rows, width)``: the wanted results, and each row's state after it."""
        step = call.step
        tokens, slots, positions = step.tokens[indices], step.slots[indices], step.positions[indices]
        if len(rows) == 1 and (alone := self._as_step(pack, call, rows[0], indices[0])) is not None:
            got, state = self.push(pack, replace(alone, want=want))
            return got, [state]
        kept = [row.state for row in rows] if rows[0].state is not None else None
        if call.attends_in_place(rows):
            shared = call.view(pack.tree, indices)
            nothing = np.empty((len(rows), 0), np.int64)
            got, states = self.push_rows(pack, Bucket(tokens, slots, positions, want, nothing, None, kept, shared))
            if np.isfinite(got).all():
                return got, states
            # a NaN in one row has spoilt others through weights of 0: computes again over copies
        paths = pack.tree.paths([row.tip for row in rows]) if self.looks_back(pack) else [slots[0, :0]] * len(rows)
        return self.push_rows(pack, Bucket(tokens, slots, positions, want, *padded_paths(paths), kept))

    def _as_step(self, pack: P, call: SplitCall, row: ChainRow, indices: Int64) -> ForwardStep | None:
        """A part of one chain as a forward of its own, with an empty `want`; None where it has to be a row of a bucket."""
        step = call.step
        slots, positions = step.slots[indices], step.positions[indices]
        stacks = None if step.stacks is None else step.stacks.part(indices)
        none = indices[:0]
        alone = ForwardStep(step.tokens[indices], slots, positions, none, state=row.state, read=step.read, stacks=stacks)
        follows = consecutive(slots)
        if not self.looks_back(pack) or (follows and positions[0] == slots[0]):  # in place: all earlier slots are its path
            return alone
        if call.attends_in_place([row]):
            if stacks is None:
                return None
            if follows and call.written[: indices[0]].all():
                return replace(alone, mask=call.view(pack.tree, indices[None]).mask[0])
        return replace(alone, path=pack.tree.path(row.tip))

    # ---- bytes and buffers --------------------------------------------------------------------------------------------------

    def capacity(self, pack: P) -> int:
        return pack.capacity

    @abstractmethod
    def resize(self, pack: P, capacity: int) -> None:
        """Gives the buffers room for exactly `capacity` slots, never fewer than are in use; one buffer after the other.

        Without such a call `forward` and `load` double the buffers as needed.

        Raises:
            MemoryBudgetError: The device ran out of memory. The slots in use are unchanged.
        """

    @abstractmethod
    def gather(self, pack: P, slots: Int64, start: int) -> None:
        """Moves the rows of `slots` (ascending, none before `start`) to `start` and the places after it, in every buffer.

        Moves `MOVED_SLOTS` at a time; only the first allocation of scratch memory may fail, before anything has moved.
        """

    def learn_sizes(self, shapes: tuple[Shape, ...], itemsize: int) -> None:
        """Sets the sizes of a slot, from the attention layers' shapes and the bytes of one number."""
        self.shapes = shapes
        buffers = [heads * width * itemsize for heads, *widths in shapes for width in widths]
        self.slot_bytes, self.widest_bytes = sum(buffers), max(buffers, default=0)

    def resize_cost(self, pack: P, capacity: int) -> Cost:
        """The exact cost of `resize`.

        At the peak of growing, all buffers are new and one old one remains; of shrinking, all are old and one is new.
        """
        before = pack.capacity
        if before == UNBOUNDED:
            return Cost(0, 0)
        held = (capacity - before) * self.slot_bytes
        return Cost(held, max(held, 0) + min(before, capacity) * self.widest_bytes)

    def retain_cost(self, pack: P, n: int) -> Cost:  # noqa: ARG002  # the same for all packs
        """The cost of `retain` of `n` slots, which moves some rows of one buffer at a time."""
        return Cost(0, min(n, MOVED_SLOTS) * self.widest_bytes)

    def take_cost(self, pack: P, slots: Int64) -> Cost:
        """The exact cost of `take`; overridden where a library copies twice."""
        state = self.state_bytes if int(slots[-1]) in pack.states else 0
        held = len(slots) * self.info.kv_bytes_per_token + state
        return Cost(held, held)

    def looks_back(self, pack: P) -> bool:
        """Whether the pack has keys and values that some layer attends to."""
        return pack.capacity != UNBOUNDED

    def row_bytes(self, length: int) -> int:
        """Bytes copied for a chain that shares a forward: its path of `length` tokens in one layer, and its state."""
        return 2 * self.widest_bytes * length + self.state_bytes

    def retain(self, pack: P, slots: Int64, places: Int64) -> None:
        """Drops every slot but `slots` (ascending, with all their ancestors), which are then numbered from 0 on.

        Works in place: the buffers keep their capacity. Recurrent states are kept only at `places`.
        """
        slots = np.asarray(slots, np.int64)
        tree = pack.tree.retained(slots)
        moved = np.flatnonzero(slots != np.arange(len(slots)))
        if len(moved):
            self.gather(pack, slots[moved[0] :], int(moved[0]))
        number = {old: new for new, old in enumerate(slots.tolist())}
        wanted = set(places.tolist())
        pack.tree = tree
        pack.states = {number[slot]: state for slot, state in pack.states.items() if slot in wanted}
        pack.kept = {number[slot] for slot in pack.kept & wanted}

    def freed(self, nbytes: int) -> None:
        """Counts freed bytes of KV; returns memory to the device when `RETURN_BYTES` are reached."""
        self._freed += nbytes
        if self._freed >= RETURN_BYTES:
            self._freed = 0
            self.reclaim()

    def reclaim(self) -> None:  # nothing to do for most devices
        """Returns memory that the library caches to the device at once."""


Backend = PackedBackend[Any]  # for callers that do not look into packs


def _undo(undos: Sequence[tuple[WorkingPack, Undo]]) -> None:
    """Restores every pack after a failed forward."""
    for pack, undo in reversed(undos):
        pack.tree.rollback(undo)
        for slot in [s for s in pack.states if s >= undo.size]:
            del pack.states[slot]


def _awaited(waiting: Callable[[], T], undos: Sequence[tuple[WorkingPack, Undo]]) -> T:
    try:
        return waiting()
    except BaseException:
        _undo(undos)
        raise


def chain_parents(base: int, n: int, parent: int) -> Int64:
    """The parents of `n` new slots from `base` on that form one chain after `parent`."""
    parents = np.arange(base - 1, base - 1 + n)
    parents[0] = parent
    return parents


def as_ids(ids: Sequence[int]) -> Int64:
    """Token ids as an array."""
    return np.asarray(ids, np.int64).reshape(-1)


def shapes_of(state: State) -> StateShapes:
    """The shapes of a recurrent state's parts."""
    return tuple(None if part is None else tuple(part.shape) for part in _state_parts(state))


def state_size(states: Iterable[State]) -> int:
    """Bytes of recurrent states: arrays, or tuples of arrays some of which may be missing."""
    return sum(int(part.nbytes) for state in states for part in _state_parts(state) if part is not None)


def _state_parts(state: State) -> tuple[Any, ...]:
    return state if isinstance(state, tuple) else (state,)
