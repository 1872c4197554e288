"""What the runtime asks of a backend, and the half of it that is the same for every library: packs, chains, trees, state.

A backend owns a loaded model. It works on *packs*: a pack is a growing tree of tokens (*slots*) whose keys and values
sit in working buffers with room to grow. One chat is a chain of slots; many queries over one prefix are a tree; so is a
batch of unrelated rows (a forest: several slots with parent -1). In and out go numpy arrays and plain Python.
A library's backend inherits `PackedBackend` and says how one `Step` goes through its model.

Three ways to push tokens, chosen per call:
- *in place*: the pack is one chain and grows at its end (a chat, its decode, its prefill): buffers are handed to the
  library as they are, no mask of ours, the library's normal use of a cache;
- *tree*: everything else, in one forward, with a mask that lets each token see its ancestors and itself;
- *chains*: recurrent models, and any model whose tree numbers failed the self-test: chains of new tokens as rows of
  one forward (`Bucket`). Attention layers beside recurrent ones are shown the pack's own buffers, with a
  mask as a tree has it, or a gathered copy of each row's path where that is cheaper or the first way failed the self-test.
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
from runtime.backends.base import ROOT, Cost, Part, Payload
from runtime.backends.packs.chains import (
    UNBOUNDED,
    Bucket,
    Call,
    Row,
    aligned,
    alike,
    joined,
    levels,
    pieces,
    steps_of,
    worth_sharing,
)
from runtime.backends.packs.logits import DeviceLogits
from runtime.backends.packs.tree import (
    Bool,
    Float32,
    Int64,
    Ragged,
    SlotTree,
    State,
    Step,
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
MOVED_SLOTS = 256  # that are moved at a time within a pack
RETURN_BYTES = 64 << 20  # of freed KV after which the device gets its memory back

_Size = Annotated[int, msgspec.Meta(gt=0, lt=1 << 40)]


class FirstForward(msgspec.Struct, frozen=True):
    """What one token through the whole model told at an earlier load.

    Attributes:
        seconds: How long it took.
        shapes, state_shapes, state_bytes: As of `PackedBackend`.
    """

    seconds: Annotated[float, msgspec.Meta(gt=0, lt=1e6)]
    shapes: tuple[tuple[_Size, _Size, _Size], ...]
    state_shapes: tuple[tuple[_Size, ...] | None, ...] | None
    state_bytes: Annotated[int, msgspec.Meta(ge=0, lt=1 << 60)]


# What the objects of a pack and of its workspace take beside those of its layers and the buffers, as CPython 3.11 was measured.
# It is seen where many short texts have nothing in common.
PACK_BYTES = 5_500


class WorkingPack(ABC):
    """The tree and the recurrent states of a pack; a library's pack adds its buffers."""

    def __init__(self) -> None:
        self.tree = SlotTree()
        self.states: dict[int, State] = {}  # by slot
        self.kept: set[int] = set()  # slots whose state outlives their children

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Slots that every buffer has room for."""


P = TypeVar("P", bound=WorkingPack)
T = TypeVar("T")


class PackedBackend(ABC, Generic[P]):
    """Packs over one model. Not thread-safe: one owner thread calls everything.

    Keys and values of a pack stand in one buffer each per layer. Buffers are resized one after the other, so that at the worst
    moment all of them are new and one is there twice.

    Attributes:
        overlaps: Whether a forward that was begun computes while the caller does something else.
        chunk_tokens: Of a prompt that go into one forward, at most, where no option says so.
        apart: Whether many small attentions cost less than one with a mask: else unrelated short texts share a pack.
        batch_rows: That go through the model together, where no option says so.
        growth: Slots that a pack grows by at least, where there is room.
        unified: Whether the device's memory is the host's.
        on_device: Whether logits can stay where they are computed (`forward_on_device`); needs `together`.
        readings: What `extend` can read of a forward in place of logits.
        tree: Whether a branching call may go through the model in one forward.
        stepwise: Whether a kept recurrent state takes only one token at a time (a library's limit, found at load).
        buckets: Whether chains may share a forward as its rows; else each has one of its own.
        ragged: Whether rows of one forward may have pasts of different length.
        shares: Whether they may look into the pack's own buffers, each through a mask, instead of copies of their paths.
        vain, reach: See `runtime.backends.packs.chains.worth_sharing`.
        together: Whether one forward may run over several packs (`begin`).
        forwards: Calls of the model, since load; those that failed too.
        speed: Tokens per second to begin with: a guess, but where the forward at load was slow.
        layer_calls: Calls of its layers, where the library lets them be counted; read by any thread.
        interruptible: Whether a forward asks `interrupted` between two layers.
        interrupted: True ends the forward with `ForwardInterrupted`; set by the caller, for one. None: it is not asked.
        pushed: Tokens that it was called with, padding included.
        info: What is known of the model.
        shapes: Of the attention layers, once known.
        slot_bytes: Of a pack's buffers, per slot.
        widest_bytes: Of the largest single buffer among them, per slot.
        state_bytes: Of one recurrent state; 0 where there is none.
        state_shapes: Of its parts, once known; None for a part that is not there.
        lent: Bytes that the copies of one forward may take: paths and states of the chains that share it. Fewer than
            `copy_cost`: in more calls of the model.
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
    vain: float = 2.0  # a copy is read and written beside the one reading that both ways have
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

    def learn_unread(self, found: FirstForward) -> None:  # a backend that knows its sizes has nothing to learn
        """Learns the layers' shapes from an earlier load instead of from a forward."""

    @staticmethod
    def computing() -> AbstractContextManager[None]:  # none is needed to call numpy
        """The context in which the library is called: its out-of-memory errors become ours."""
        return nullcontext()

    def load(self, pack: P, payload: Payload, parent: int, skip: int = 0) -> Int64:
        """Copies cached tokens into the pack, all but the first `skip`, as a chain hanging under slot `parent` (or ROOT).

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
        if payload.state is not None:  # its checkpoint stays at its last slot
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
        """`take` of several chains, each payload on its own. Needs at most three times their bytes meanwhile."""
        return [self.take(pack, slots) for slots in chains]

    def split(self, payload: Payload, n: int) -> tuple[Payload, Payload]:
        """The first `n` tokens and the rest, each contiguous and on its own. Needs `payload_bytes` once more."""
        with self.computing():
            head, tail = payload.split(n)
            return head, tail

    def payload_bytes(self, payload: Payload) -> int:
        """Bytes the payload holds."""
        return int(payload.nbytes)

    def payload_resumable(self, payload: Payload) -> bool:
        """Whether generation can go on after the payload's last token (False: recurrent state is missing there)."""
        return not self.recurrent or payload.state is not None

    @abstractmethod
    def pack_bytes(self, pack: P) -> int:
        """Bytes that the pack holds: its buffers, and its objects where they count beside them."""

    @abstractmethod
    def close(self, pack: P) -> None:
        """Frees the pack."""

    def export(self, payload: Payload, start: int = 0, stop: int | None = None) -> Stored:
        """Tokens `start` to `stop` (None: the end) as plain arrays (bfloat16 as uint16), for disk.

        They may share the payload's memory, and are not written to. The recurrent state comes along where the last token does.
        See `runtime.backends.stored` for what is what.
        """
        with self.computing():
            arrays: Stored = payload.export(start, payload.n if stop is None else stop)
            return arrays

    @abstractmethod
    def restore(self, tensors: Stored) -> Payload:
        """The inverse of `export`. The arrays are the payload's from now on: they are not written to.

        Raises:
            SnapshotFormatError: They are not what this backend writes.
        """

    @abstractmethod
    def unload(self) -> None:
        """Frees the model."""

    @abstractmethod
    def logits_uncached(self, ids: Sequence[int], stacks: TokenStacks | None = None) -> Float32:
        """``(vocab,)`` raw logits after `ids`, computed by the library's own plain forward, no cache of ours."""

    @abstractmethod
    def hidden_states(self, tokens: Int64, stacks: TokenStacks | None = None) -> Float32:
        """What the last layer says of each token, after the final norm, by the library's own plain forward; no KV stays.

        Args:
            tokens: ``(rows, length)`` ids; shorter rows are filled up on the right, which no token before sees.
            stacks: The adapters, the same for all tokens; None: the base alone.

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
        """Brings an adapter's weights in, beside the base's, which stay as they are; the bytes they hold.

        Its modules are some of `adapter_targets`, by those paths. One that is loaded already is left as it is.

        Raises:
            AdapterError: The model does not compute with a module that it changes.
            MemoryBudgetError: The device ran out of memory; nothing was loaded.
        """
        raise UnsupportedFeatureError(f"the {self.info.backend} backend takes no adapters; use hf or mlx")

    def unload_adapter(self, digest: str) -> None:
        """Frees an adapter's weights: from now on the model is as it was before. Unknown ones are no error."""

    def free_bytes(self) -> int:
        """Bytes that are free, once the weights are in place, where KV is to live: in the machine, or on its device.

        The KV budget is a share of it when none is given. Never negative.
        """
        return int(psutil.virtual_memory().available)

    def set_kv_budget(self, nbytes: int) -> None:  # most devices have no limits to set
        """Tells how many bytes of KV may be held in all, so that a device with limits of its own can set them once."""

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
        """``(size,)`` the slots whose keys, values and recurrent state are numbers; reads all of them."""
        sound = self.finite_slots(pack)
        for slot, state in pack.states.items():
            sound[slot] &= all(self.finite(part) for part in _state_parts(state) if part is not None)
        return sound

    def truncate(self, pack: P, size: int) -> None:
        """Drops the newest slots, at no cost: the first `size` stay, the buffers keep their capacity."""
        pack.tree.truncate(size)
        pack.states = {slot: state for slot, state in pack.states.items() if slot < size}
        pack.kept = {slot for slot in pack.kept if slot < size}

    def ragged_chains(self, pack: P, base: int, parents: Int64) -> Ragged | None:  # noqa: ARG002  # for libraries that can
        """The newest slots of the tree as chains that attend apart, where that costs less than one attention with a mask."""
        return None

    def ready(
        self,
        packs: Sequence[P],  # noqa: ARG002  # for libraries that can
        steps: Sequence[Step],  # noqa: ARG002  # the same
        request: RankRequest | None,  # noqa: ARG002  # the same
    ) -> Callable[[Int64], Callable[[], Float32 | RankedRows]] | None:
        """`launch` as far as it goes without tokens: called with them, it does the rest.

        The packs' buffers stay as they are. None where nothing of it can be done before, as in most libraries.
        """
        return None

    def launch(
        self,
        packs: Sequence[P],
        steps: Sequence[Step],
        request: RankRequest | None = None,  # noqa: ARG002  # for libraries that say `on_device`
    ) -> Callable[[], Float32 | RankedRows]:
        """Begins one forward without recurrent state; what is returned waits for its logits ``(wanted, vocab)``.

        With a request they stay on the device, ranked. Over several packs in libraries that say `together`. One that computes
        beside the caller says so in `overlaps`.
        """
        ((pack, step),) = zip(packs, steps, strict=True)
        logits, _ = self.push(pack, step)
        return lambda: logits

    def launch_on_device(
        self,
        packs: Sequence[P],  # noqa: ARG002  # for libraries that can
        steps: Sequence[Step],  # noqa: ARG002  # the same
    ) -> DeviceLogits:
        """`launch` whose logits stay; for libraries that say `on_device`."""
        raise UnsupportedFeatureError(f"the {self.info.backend} backend computes logits for the host")

    def forward(
        self, pack: P, tokens: Int64, parents: Int64, want: Int64, stacks: TokenStacks | None = None
    ) -> tuple[Int64, Float32]:
        """Pushes new tokens through the model, all in one go where the architecture allows it.

        Args:
            pack: Where they are appended.
            tokens: ``(n,)`` ids, parents before children.
            parents: ``(n,)`` the slot each follows: ROOT, a slot of the pack, or ``pack size before the call + j``
                for the j-th token of this call.
            want: Ascending indices into `tokens`: the rows whose logits are needed.
            stacks: The loaded adapters that each token is computed under; None: the base alone, for all of them.

        Returns:
            The new slots ``(n,)`` (always ``size before + arange(n)``) and the raw logits
            ``(len(want), vocab) float32``, the caller's own, to be written to.

        Raises:
            InvalidRequestError: Ids outside the vocabulary, unknown parents, a parent that is not `resumable`.
            AdapterError: A stack names an adapter that is not loaded.
            ContextOverflowError: A path longer than `info.context_length`.
            MemoryBudgetError: The device ran out of memory. After any error the pack is as it was before the call.
        """
        base = pack.tree.size
        tokens, parents, want = np.asarray(tokens, np.int64), np.asarray(parents, np.int64), np.asarray(want, np.int64)
        return np.arange(base, base + len(tokens)), self.compute([Part(pack, tokens, parents, want, stacks)])

    def compute(self, parts: Sequence[Part], request: RankRequest | None = None, *, read: str | None = None) -> Any:
        """`forward`, over several packs where `together` holds: projections over all tokens, attention per pack over its keys.

        Args:
            parts: Of each pack.
            request: Of a backend that says `on_device`: the logits stay there, ranked.
            read: One of `readings`, in place of logits.

        Returns:
            The wanted raw logits ``(sum of len(part.want), vocab) float32``, in the order of `parts`; with a request
            `RankedRows`.

        Raises:
            MemoryBudgetError: And what else `forward` raises; then every pack is as it was.
        """
        return self._begin(parts, request, read)()

    def begin(self, parts: Sequence[Part], request: RankRequest | None = None) -> Callable[[], Any]:
        """`compute` in two halves. Where `overlaps` is False the first half does all the work.

        Returns:
            What waits for the answer; called once, before a pack is touched. Either half may raise as `forward` does; then
            every pack is as it was.
        """
        return self._begin(parts, request)

    def _begin(self, parts: Sequence[Part], request: RankRequest | None, read: str | None = None) -> Callable[[], Any]:
        undos: list[tuple[P, Undo]] = []
        try:
            packs, steps, by_chains = self._appended(parts, undos, read)
            return partial(_awaited, (self._chains if by_chains else self.launch)(packs, steps, request), undos)
        except BaseException:
            _undo(undos)
            raise

    def forward_on_device(self, parts: Sequence[Part]) -> DeviceLogits:
        """`compute` without the wait, for a backend that says `on_device`; one part will do.

        Raises:
            MemoryBudgetError: And what else `forward` raises; then every pack is as it was.
        """
        undos: list[tuple[P, Undo]] = []
        try:
            packs, steps, _ = self._appended(parts, undos)
            return self.launch_on_device(packs, steps)
        except BaseException:
            _undo(undos)
            raise

    def prepare(self, parts: Sequence[Part], request: RankRequest | None = None) -> Callable[[Int64], Callable[[], Any]] | None:
        """What a `begin` needs to do before it needs the tokens; the packs stay as they are.

        Returns:
            The rest of it, called with all tokens, concatenated, once, while the packs are still as they were; or dropped.
            None: nothing of it can be done before.
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
        self, parts: Sequence[Part], undos: list[tuple[P, Undo]], read: str | None = None
    ) -> tuple[list[P], list[Step], bool]:
        """Adds the tokens of each part to its pack's tree, which `undos` can take back.

        Returns:
            The packs, their steps, and whether these go through the model chain by chain.
        """
        packs, steps, ids = list[P](), list[Step](), list[Int64]()
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
            if self.tree and not (self.recurrent or pack.tree.linear):  # the whole pack is one chain, or it goes chain by chain
                ragged = self.ragged_chains(pack, undo.size, part.parents) if self.on_device else None
                mask = pack.tree.visible(undo.size) if ragged is None else None
            slots = np.arange(undo.size, undo.size + len(part.tokens))
            step = Step(part.tokens, slots, positions, part.want, mask=mask, ragged=ragged, read=read, stacks=part.stacks)
            steps.append(step)
        tokens = np.concatenate(ids)
        if tokens.min() < 0 or tokens.max() >= self.info.vocab_size:
            raise self._outside(tokens)
        return packs, steps, self.recurrent or not (self.tree or packs[0].tree.linear)

    def extend(self, pack: P, tokens: Int64, read: str, stacks: TokenStacks | None = None) -> Float32:
        """Appends to a pack that is one chain (or empty), and reads something of each new token in place of its logits.

        Args:
            pack: Where they are appended.
            tokens: ``(n,)`` ids.
            read: One of `readings`.
            stacks: As of `forward`.

        Returns:
            ``(n, ...) float32``, the caller's own; `runtime.backends.hf.readings` says which reading has which shape.

        Raises:
            UnsupportedFeatureError: There is no such reading here, or not of this architecture; the reason is named.
            ContextOverflowError, MemoryBudgetError: After any error the pack is as it was.
        """
        if read not in self.readings:
            found = ", ".join(sorted(self.readings)) or "nothing"
            raise UnsupportedFeatureError(f"the {self.info.backend} backend does not read {read!r} of a model, but {found}")
        size = pack.tree.size
        parents = chain_parents(size, len(tokens), size - 1 if size else ROOT)
        part = Part(pack, np.asarray(tokens, np.int64), parents, np.arange(len(tokens)), stacks)
        answer: Float32 = self.compute([part], read=read)
        return answer

    def _outside(self, tokens: Int64) -> InvalidRequestError:
        bad = tokens[(tokens < 0) | (tokens >= self.info.vocab_size)][0]
        return InvalidRequestError(f"token id {bad} is outside the vocabulary of {self.info.vocab_size:,}")

    def _checkpoint(self, pack: P, slots: Int64) -> State | None:
        """For a payload that ends at ``slots[-1]``: the state there, which is kept from now on."""
        state = pack.states.get(int(slots[-1]))
        if state is not None:
            pack.kept.add(int(slots[-1]))
        return state

    # ---- chains side by side ------------------------------------------------------------------------------------------------

    @abstractmethod
    def push(self, pack: P, step: Step) -> tuple[Float32, State | None]:
        """One forward: the wanted raw logits ``(len(want), vocab) float32`` and the recurrent state after it.

        Where the step has a `read`: that in place of logits, ``(len(want), ...) float32``.
        """

    def push_rows(self, pack: P, bucket: Bucket) -> tuple[Float32, Sequence[State | None]]:
        """One forward of chains side by side: the wanted raw logits as in `push`, and each row's state after it.

        Row by row where the library knows no better.
        """
        return joined(self.push(pack, step) for step in steps_of(bucket))

    @property
    def chained(self) -> bool:
        """Whether a branching call goes through the model as chains."""
        return self.recurrent or not self.tree

    def copy_cost(self, pack: P, parents: Int64) -> int:
        """Bytes that a `forward` with these parents would copy for a moment, to push its chains side by side.

        As if all chains were as long as the longest can be.
        """
        if not (self.chained and self.buckets):
            return 0
        base, chains = pack.tree.size, count_chains(parents - pack.tree.size)
        if chains < 2:
            return 0
        above, longest = parents[(parents >= 0) & (parents < base)], len(parents) - chains + 1
        if self.shares:
            undo = pack.tree.append(parents)
            shared = self._looks_in(pack, segments(parents, base), parents)
            pack.tree.rollback(undo)
            if shared:
                fresh = int((parents == ROOT).sum())
                return fresh * self.row_bytes(longest) + (chains - fresh) * self.row_bytes(0)
        past = int(pack.tree.depths[above].max()) + 1 if len(above) else 0
        return chains * self.row_bytes(past + longest)

    def resumable(self, pack: P, slot: int) -> bool:
        """Whether a token may be appended under `slot` (always, but for recurrent state that was not kept there)."""
        return not self.recurrent or slot == ROOT or slot in pack.states

    def count(self, tokens: int) -> None:
        """The model is about to be called with so many tokens."""
        self.forwards += 1
        self.pushed += tokens

    def _looks_in(self, pack: P, chains: Sequence[Int64], parents: Int64) -> bool:
        """Whether the rows of a call, whose slots stand in the tree by now, look into the pack's own buffers."""
        if not self.shares or not self.looks_back(pack):
            return False
        heads = np.array([(parents[chain[0]], len(chain)) for chain in chains])  # the slot that each follows, and its length
        heads = heads[heads[:, 0] != ROOT]
        pasts = pack.tree.depths[heads[:, 0]] + 1
        return worth_sharing(pasts, heads[:, 1], pack.tree.size, vain=self.vain, reach=self.reach)

    def _chains(
        self,
        packs: Sequence[P],
        steps: Sequence[Step],
        request: RankRequest | None = None,  # noqa: ARG002  # of models that take a tree in one forward
    ) -> Callable[[], Float32]:
        """`launch` chain by chain, side by side where they may be.

        Recurrent states live on at each one's end, and where children may still come.
        """
        ((pack, step),) = zip(packs, steps, strict=True)
        base = int(step.slots[0])
        parents = pack.tree.parents(base)
        chains = segments(parents, base)
        call = Call(step, shared=self._looks_in(pack, chains, parents))
        extended: set[int] = set()
        together = self.buckets and step.stacks is None and step.read is None  # under adapters each chain goes alone
        for level in levels(chains, parents, base):
            rows = self._rows(pack, level, [int(parents[chain[0]]) for chain in level])
            for group in self._groups(rows, shared=call.shared) if together else ([row] for row in rows):
                for start, stop, reaching in pieces(group, stepwise=self.stepwise):
                    for part in self._uniform(step, group[0].chain, start, stop):
                        for few in self._bounded(call, reaching):
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

    def _rows(self, pack: P, chains: Sequence[Int64], parents: Sequence[int]) -> list[Row]:
        """The chains of a level, each with what it goes on from."""
        for parent in parents:
            if not self.resumable(pack, parent):
                raise InvalidRequestError(f"slot {parent} holds no recurrent state: continue from a checkpoint before it")
        depths, back = pack.tree.depths, self.looks_back(pack)
        return [
            Row(chain, parent, int(depths[parent]) + 1 if back and parent != ROOT else 0, parent, pack.states.get(parent))
            for chain, parent in zip(chains, parents, strict=True)
        ]

    def _groups(self, rows: Sequence[Row], *, shared: bool) -> Iterator[list[Row]]:
        """Rows that may go side by side: where nothing is copied, however long their pasts are."""
        apart = [row for row in rows if row.fresh or not shared]
        yield from alike(apart, ragged=self.ragged)
        if len(apart) < len(rows):
            yield [row for row in rows if not row.fresh]

    def _uniform(self, step: Step, chain: Int64, start: int, stop: int) -> Iterator[slice]:
        """A part of a chain by the adapters of its tokens: some modules of recurrent layers see one token at a time."""
        runs = [(0, stop - start)] if step.stacks is None else step.stacks.part(chain[start:stop]).runs()
        for number, (first, last) in enumerate(runs):
            width = 1 if self.stepwise and number else last - first
            yield from (slice(start + at, start + at + width) for at in range(first, last, width))

    def _bounded(self, call: Call, rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
        """Rows by rows, so that the copies of a forward stay within what was lent."""
        copied = 0 if call.looks_in(rows) else max(row.past + len(row.chain) for row in rows)
        at_once = max(self.lent // max(self.row_bytes(copied), 1), 1)
        for start in range(0, len(rows), at_once):
            yield rows[start : start + at_once]

    def _push_rows(self, pack: P, call: Call, rows: Sequence[Row], part: slice) -> None:
        """Pushes a part of some chains, writes its wanted rows, and moves each row on."""
        indices = np.stack([row.chain[part] for row in rows])  # (rows, width)
        wanted = call.answer[indices].ravel()
        want = np.flatnonzero(wanted >= 0)
        got, states = self._computed(pack, call, rows, indices, want)
        call.written[indices] = True
        call.write(wanted[want], got)
        for row, state, index in zip(rows, states, indices[:, -1], strict=True):
            row.state, row.tip = state, int(call.step.slots[index])

    def _computed(
        self, pack: P, call: Call, rows: Sequence[Row], indices: Int64, want: Int64
    ) -> tuple[Float32, Sequence[State | None]]:
        """One forward of rows ``(rows, width)``: their wanted answers, and each one's state after it."""
        step = call.step
        tokens, slots, positions = step.tokens[indices], step.slots[indices], step.positions[indices]
        if len(rows) == 1 and (alone := self._alone(pack, call, rows[0], indices[0])) is not None:
            got, state = self.push(pack, replace(alone, want=want))
            return got, [state]
        kept = [row.state for row in rows] if rows[0].state is not None else None
        if call.looks_in(rows):
            shared = call.view(pack.tree, indices)
            nothing = np.empty((len(rows), 0), np.int64)
            got, states = self.push_rows(pack, Bucket(tokens, slots, positions, want, nothing, None, kept, shared))
            if np.isfinite(got).all():
                return got, states
            # what one row holds that is no number reached the others with the weight 0: once more, over copies
        paths = pack.tree.paths([row.tip for row in rows]) if self.looks_back(pack) else [slots[0, :0]] * len(rows)
        return self.push_rows(pack, Bucket(tokens, slots, positions, want, *aligned(paths), kept))

    def _alone(self, pack: P, call: Call, row: Row, indices: Int64) -> Step | None:
        """A part of one chain as a forward of its own, nothing wanted yet; None where it has to be a row all the same."""
        step = call.step
        slots, positions = step.slots[indices], step.positions[indices]
        stacks = None if step.stacks is None else step.stacks.part(indices)
        none = indices[:0]
        alone = Step(step.tokens[indices], slots, positions, none, state=row.state, read=step.read, stacks=stacks)
        follows = consecutive(slots)
        if not self.looks_back(pack) or (follows and positions[0] == slots[0]):  # in place: whatever stands before is its path
            return alone
        if call.looks_in([row]):
            if stacks is None:
                return None
            if follows and call.written[: indices[0]].all():
                return replace(alone, mask=call.view(pack.tree, indices[None]).mask[0])
        return replace(alone, path=pack.tree.path(row.tip))

    # ---- bytes and buffers --------------------------------------------------------------------------------------------------

    def capacity(self, pack: P) -> int:
        """Slots that the pack's buffers have room for."""
        return pack.capacity

    @abstractmethod
    def resize(self, pack: P, capacity: int) -> None:
        """Gives the buffers room for exactly `capacity` slots, never fewer than are in use; one buffer after the other.

        Without it `forward` and `load` grow the buffers on their own, by doubling.

        Raises:
            MemoryBudgetError: The device ran out of memory. The pack holds what it held.
        """

    @abstractmethod
    def gather(self, pack: P, slots: Int64, start: int) -> None:
        """Moves the rows of `slots` (ascending, none before `start`) to `start` and the places after it, in every buffer.

        Some `MOVED_SLOTS` at a time; only the first scratch memory may be refused, before anything has moved.
        """

    def learn_sizes(self, shapes: tuple[Shape, ...], itemsize: int) -> None:
        """From the attention layers' shapes and the bytes of one number."""
        self.shapes = shapes
        buffers = [heads * width * itemsize for heads, *widths in shapes for width in widths]
        self.slot_bytes, self.widest_bytes = sum(buffers), max(buffers, default=0)

    def resize_cost(self, pack: P, capacity: int) -> Cost:
        """What `resize` will take, to the byte.

        Growing: all buffers are new and the last old one is still there. Shrinking: all are old and one is new.
        """
        before = pack.capacity
        if before == UNBOUNDED:
            return Cost(0, 0)
        held = (capacity - before) * self.slot_bytes
        return Cost(held, max(held, 0) + min(before, capacity) * self.widest_bytes)

    def retain_cost(self, pack: P, n: int) -> Cost:  # noqa: ARG002  # the same for all packs
        """What `retain` of `n` slots will need on the way: it moves some rows of one buffer at a time."""
        return Cost(0, min(n, MOVED_SLOTS) * self.widest_bytes)

    def take_cost(self, pack: P, slots: Int64) -> Cost:
        """What `take` will need, to the byte; a library that copies twice on the way says so."""
        state = self.state_bytes if int(slots[-1]) in pack.states else 0
        held = len(slots) * self.info.kv_bytes_per_token + state
        return Cost(held, held)

    def looks_back(self, pack: P) -> bool:
        """Whether any layer attends to what stands in the pack."""
        return pack.capacity != UNBOUNDED

    def row_bytes(self, length: int) -> int:
        """What a chain that shares a forward has copied: its path in one layer, `length` tokens, and its state."""
        return 2 * self.widest_bytes * length + self.state_bytes

    def retain(self, pack: P, slots: Int64, places: Int64) -> None:
        """Drops every slot but `slots` (ascending, with all their ancestors), which are then numbered from 0 on.

        Done in place: the buffers keep their capacity. Of the recurrent states those at `places` stay.
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
        """So many bytes of KV were let go. Above a threshold the device gets the memory back, not at every call."""
        self._freed += nbytes
        if self._freed >= RETURN_BYTES:
            self._freed = 0
            self.reclaim()

    def reclaim(self) -> None:  # most devices hold nothing back
        """Gives memory that is free but still held by the library back to the device, at once."""


Backend = PackedBackend[Any]  # for callers that do not look into packs


def _undo(undos: Sequence[tuple[WorkingPack, Undo]]) -> None:
    """What failed leaves every pack as it was."""
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
    """The parents of `n` new slots from `base` on that hang as one chain under `parent`."""
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
