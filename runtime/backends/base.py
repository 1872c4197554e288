"""What the runtime asks of a backend, and nothing more.

A backend owns a loaded model. It works on *packs*: a pack is a growing tree of tokens (*slots*) whose keys and values
sit in working buffers with room to grow. One chat is a chain of slots; many queries over one prefix are a tree; so is a
batch of unrelated rows (a forest: several slots with parent -1).
Everything here runs on the engine's owner thread, in and out go numpy arrays and plain Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from runtime.adapters.adapter import Adapter, ModuleShape
from runtime.adapters.stacks import TokenStacks
from runtime.backends.stored import Stored
from runtime.info import ModelInfo
from runtime.numerics.ranking import RankedRows, RankRequest
from runtime.records import Scores

Payload = Any  # immutable, contiguous, evaluated KV of consecutive tokens; only its backend looks inside
Pack = Any  # a backend's working tree; only its backend looks inside
ROOT = -1  # the parent of a first token


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes that something will take, known before it is done. The activations of one call are not KV and not counted."""

    held: int  # more (or fewer) that are held afterwards
    moment: int  # more that live at the worst moment on the way, old and new copies together


@dataclass(slots=True, eq=False)
class Part:
    """What one pack contributes to a forward over several: the arguments of `Backend.forward`."""

    pack: Pack
    tokens: npt.NDArray[np.int64]  # (n,); of a forward that is only prepared not yet known, and zeros
    parents: npt.NDArray[np.int64]  # (n,)
    want: npt.NDArray[np.int64]  # ascending indices into `tokens`
    stacks: TokenStacks | None = None


NORMALISED_HEAD = 32  # likeliest entries of a row that stays which cross with what normalises it: most look-ups ask for no more


class NormalisedRows(NamedTuple):
    """What makes log-probabilities of n rows of logits that stay where they are, and the first of the rows."""

    rows: npt.NDArray[np.float32]  # (whole, vocab), the first ones, raw
    tops: npt.NDArray[np.float32]  # (n,) and the next three: see `runtime.numerics.scoring.normalisers`
    log_totals: npt.NDArray[np.float32]
    masses: npt.NDArray[np.float64]
    finite: npt.NDArray[np.bool_]
    # of each row that does not cross: the likeliest ids and their log-probabilities, falling
    heads: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]


class DeviceLogits(Protocol):
    """Raw logits ``(n, vocab)`` of a forward that stay where they were computed; what is asked for crosses to the host."""

    nbytes: int

    def __len__(self) -> int:
        """Rows."""

    def rows(self, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Some rows ``(len(chosen), vocab)``, the caller's own."""

    def score(
        self, chosen: npt.NDArray[np.int64], targets: npt.NDArray[np.int32], k: int
    ) -> tuple[Scores, npt.NDArray[np.bool_]]:
        """What some rows say of the tokens that followed, computed on the device: O(k) numbers cross for each.

        Returns:
            The scores of `targets` ``(len(chosen),)`` with `k` alternatives, falling, ties by id; and which rows held
            numbers only: the others' scores mean nothing.
        """

    def take(self, chosen: npt.NDArray[np.int64]) -> DeviceLogits:
        """Some rows, in memory of their own."""

    def entries(self, row: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """``(len(ids),)`` of one row."""

    def normalised(self, chosen: npt.NDArray[np.int64], whole: int) -> NormalisedRows:
        """Of some rows; the first `whole` of them cross."""

    def ranked(self, request: RankRequest) -> RankedRows:
        """The distributions of all rows, computed on the device: of each about `request.width` of the likeliest cross."""


class ForwardInterrupted(Exception):
    """A forward was given up between two layers; the packs are as they were before."""


class Backend(Protocol):
    """A model behind the runtime. Not thread-safe: one owner thread calls everything."""

    info: ModelInfo
    slot_bytes: int  # of a pack's buffers, per slot
    state_bytes: int  # of one recurrent state; 0 where there is none
    forwards: int  # calls of the model since load, failed ones too
    chunk_tokens: int  # of a prompt that go into one forward, at most, where no option says so
    speed: float  # tokens per second to begin with, from the forward at load
    layer_calls: int  # of its layers, where the library says; read by any thread
    interruptible: bool  # whether a forward asks `interrupted` between two layers
    interrupted: Callable[[], bool] | None  # True ends the forward with `ForwardInterrupted`; set by the caller, for one
    pushed: int  # tokens that it was called with, padding included
    lent: int  # bytes that copies may take in the middle of a `forward`; fewer than `copy_cost`: in more calls of the model
    together: bool  # whether one forward may run over several packs (`begin`)
    overlaps: bool  # whether a forward that was begun computes while the caller does something else
    apart: bool  # whether many small attentions cost less than one with a mask: else unrelated short texts share a pack
    batch_rows: int  # that go through the model together, where no option says so
    growth: int  # slots that a pack grows by at least, where there is room
    unified: bool  # whether the device's memory is the host's
    on_device: bool  # whether logits can stay where they are computed (`forward_on_device`); needs `together`
    readings: frozenset[str]  # what `extend` can read of a forward in place of logits

    def open_pack(self) -> Pack:
        """An empty pack."""

    def load(self, pack: Pack, payload: Payload, parent: int, skip: int = 0) -> npt.NDArray[np.int64]:
        """Copies cached tokens into the pack, all but the first `skip`, as a chain hanging under slot `parent` (or ROOT).

        Returns:
            Their slots, ``(n - skip,) int64``, in order. For recurrent layers only the last is resumable.

        Raises:
            MemoryBudgetError: The device ran out of memory. The pack holds no more slots than before.
        """

    def forward(
        self,
        pack: Pack,
        tokens: npt.NDArray[np.int64],
        parents: npt.NDArray[np.int64],
        want: npt.NDArray[np.int64],
        stacks: TokenStacks | None = None,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
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

    def hidden_states(self, tokens: npt.NDArray[np.int64], stacks: TokenStacks | None = None) -> npt.NDArray[np.float32]:
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

    def extend(
        self, pack: Pack, tokens: npt.NDArray[np.int64], read: str, stacks: TokenStacks | None = None
    ) -> npt.NDArray[np.float32]:
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

    def compute(self, parts: Sequence[Part], request: RankRequest | None = None) -> Any:
        """`forward` over several packs where `together` holds.

        Over several: projections over all tokens, attention per pack over its own keys.

        Args:
            parts: Of each pack.
            request: Of a backend that says `on_device`: the logits stay there, ranked.

        Returns:
            The wanted raw logits ``(sum of len(part.want), vocab) float32``, in the order of `parts`; with a request
            `RankedRows`.

        Raises:
            MemoryBudgetError: And what else `forward` raises; then every pack is as it was.
        """

    def begin(self, parts: Sequence[Part], request: RankRequest | None = None) -> Callable[[], Any]:
        """`compute` in two halves. Where `overlaps` is False the first half does all the work.

        Returns:
            What waits for the answer; called once, before a pack is touched. Either half may raise as `forward` does; then
            every pack is as it was.
        """

    def prepare(
        self, parts: Sequence[Part], request: RankRequest | None = None
    ) -> Callable[[npt.NDArray[np.int64]], Callable[[], Any]] | None:
        """What a `begin` needs to do before it needs the tokens; the packs stay as they are.

        Args:
            parts: Of the forward.
            request: Of the same.

        Returns:
            The rest of it, called with all tokens, concatenated, once, while the packs are still as they were; or dropped.
            None: nothing of it can be done before.
        """

    def forward_on_device(self, parts: Sequence[Part]) -> DeviceLogits:
        """`compute` without the wait, for a backend that says `on_device`; one part will do.

        Raises:
            MemoryBudgetError: And what else `forward` raises; then every pack is as it was.
        """

    def copy_cost(self, pack: Pack, parents: npt.NDArray[np.int64]) -> int:
        """Bytes that a `forward` with these parents would copy for a moment, to push its chains side by side."""

    def size(self, pack: Pack) -> int:
        """Slots in use."""

    def sound(self, pack: Pack) -> npt.NDArray[np.bool_]:
        """``(size,)`` the slots whose keys, values and recurrent state are numbers; reads all of them."""

    def truncate(self, pack: Pack, size: int) -> None:
        """Drops the newest slots, at no cost: the first `size` stay, the buffers keep their capacity."""

    def resumable(self, pack: Pack, slot: int) -> bool:
        """Whether a token may be appended under `slot` (always, but for recurrent state that was not kept there)."""

    def capacity(self, pack: Pack) -> int:
        """Slots that the pack's buffers have room for."""

    def resize(self, pack: Pack, capacity: int) -> None:
        """Gives the buffers room for exactly `capacity` slots, never fewer than are in use; one buffer after the other.

        Without it `forward` and `load` grow the buffers on their own, by doubling.

        Raises:
            MemoryBudgetError: The device ran out of memory. The pack holds what it held.
        """

    def resize_cost(self, pack: Pack, capacity: int) -> Cost:
        """What `resize` will take, to the byte."""

    def retain(self, pack: Pack, slots: npt.NDArray[np.int64], places: npt.NDArray[np.int64]) -> None:
        """Drops every slot but `slots` (ascending, with all their ancestors), which are then numbered from 0 on.

        Done in place: the buffers keep their capacity. Of the recurrent states those at `places` stay.
        """

    def retain_cost(self, pack: Pack, n: int) -> Cost:
        """What `retain` of `n` slots will need on the way."""

    def take_cost(self, pack: Pack, slots: npt.NDArray[np.int64]) -> Cost:
        """What `take` will need, to the byte."""

    def take(self, pack: Pack, slots: npt.NDArray[np.int64]) -> Payload:
        """An immutable copy of a chain of slots, with no reference to the pack's buffers."""

    def take_many(self, pack: Pack, chains: Sequence[npt.NDArray[np.int64]]) -> list[Payload]:
        """`take` of several chains in one go, each payload on its own. Needs at most three times their bytes meanwhile."""

    def split(self, payload: Payload, n: int) -> tuple[Payload, Payload]:
        """The first `n` tokens and the rest, each contiguous and on its own. Needs `payload_bytes` once more."""

    def payload_bytes(self, payload: Payload) -> int:
        """Bytes the payload holds."""

    def payload_resumable(self, payload: Payload) -> bool:
        """Whether generation can go on after the payload's last token (False: recurrent state is missing there)."""

    def pack_bytes(self, pack: Pack) -> int:
        """Bytes that the pack holds: its buffers, and its objects where they count beside them."""

    def close(self, pack: Pack) -> None:
        """Frees the pack."""

    def export(self, payload: Payload, start: int = 0, stop: int | None = None) -> Stored:
        """Tokens `start` to `stop` (None: the end) as plain arrays (bfloat16 as uint16), for disk.

        They may share the payload's memory, and are not written to.

        The recurrent state comes along where the last token does. See `runtime.backends.stored` for what is what.
        """

    def restore(self, tensors: Stored) -> Payload:
        """The inverse of `export`. The arrays are the payload's from now on: they are not written to.

        Raises:
            SnapshotFormatError: They are not what this backend writes.
        """

    def logits_uncached(self, ids: Sequence[int], stacks: TokenStacks | None = None) -> npt.NDArray[np.float32]:
        """``(vocab,)`` raw logits after `ids`, computed by the library's own plain forward, no cache of ours."""

    def adapter_targets(self) -> Mapping[str, ModuleShape]:
        """The linear modules that an adapter may change: path -> (in, out).

        Raises:
            UnsupportedFeatureError: This backend, or this model, takes no adapters.
        """

    def load_adapter(self, adapter: Adapter) -> int:
        """Brings an adapter's weights in, beside the base's, which stay as they are; the bytes they hold.

        Its modules are some of `adapter_targets`, by those paths. One that is loaded already is left as it is.

        Raises:
            AdapterError: The model does not compute with a module that it changes.
            MemoryBudgetError: The device ran out of memory; nothing was loaded.
        """

    def unload_adapter(self, digest: str) -> None:
        """Frees an adapter's weights: from now on the model is as it was before. Unknown ones are no error."""

    def free_bytes(self) -> int:
        """Bytes that are free, once the weights are in place, where KV is to live: on the device, or in the machine.

        The KV budget is a share of it when none is given. Never negative.
        """

    def freed(self, nbytes: int) -> None:
        """So many bytes of KV were let go. Above a threshold the device gets the memory back, not at every call."""

    def reclaim(self) -> None:
        """Gives memory that is free but still held by the library back to the device, at once."""

    def set_kv_budget(self, nbytes: int) -> None:
        """Tells how many bytes of KV may be held in all, so that a device with limits of its own can set them once."""

    def unload(self) -> None:
        """Frees the model."""
