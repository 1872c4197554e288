"""What packs and payloads of a library's backend will weigh, worked out before anything is allocated.

Keys and values of a pack stand in one buffer each per layer. Buffers are resized one after the other, so that at the
worst moment all of them are new and one is there twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import numpy as np

from runtime.backends.base import Cost
from runtime.backends.packs.tree import Int64, SlotTree
from runtime.backends.stored import Shape, StateShapes
from runtime.info import ModelInfo

State = Any  # recurrent state after one token: a library's arrays, never changed once kept
UNBOUNDED = 1 << 60  # slots: the capacity of a pack without keys and values
MOVED_SLOTS = 256  # that are moved at a time within a pack
RETURN_BYTES = 64 << 20  # of freed KV after which the device gets its memory back


_Size = Annotated[int, msgspec.Meta(gt=0, lt=1 << 40)]


class FirstForward(msgspec.Struct, frozen=True):
    """What one token through the whole model told at an earlier load.

    Attributes:
        seconds: How long it took.
        shapes, state_shapes, state_bytes: As of `SizedBackend`.
    """

    seconds: Annotated[float, msgspec.Meta(gt=0, lt=1e6)]
    shapes: tuple[tuple[_Size, _Size, _Size], ...]
    state_shapes: tuple[tuple[_Size, ...] | None, ...] | None
    state_bytes: Annotated[int, msgspec.Meta(ge=0, lt=1 << 60)]


class WorkingPack:
    """The tree and the recurrent states of a pack; a library's pack adds its buffers."""

    def __init__(self) -> None:
        self.tree = SlotTree()
        self.states: dict[int, State] = {}  # by slot
        self.kept: set[int] = set()  # slots whose state outlives their children


P = TypeVar("P", bound=WorkingPack)


class SizedBackend(ABC, Generic[P]):
    """Bytes and slots of packs. Owner thread only.

    Attributes:
        info: What is known of the model.
        shapes: Of the attention layers, once known.
        slot_bytes: Of a pack's buffers, per slot.
        widest_bytes: Of the largest single buffer among them, per slot.
        state_bytes: Of one recurrent state.
        state_shapes: Of its parts, once known; None for a part that is not there.
        lent: Bytes that the copies of one forward may take: paths and states of the chains that share it.
    """

    info: ModelInfo
    shapes: tuple[Shape, ...] = ()
    slot_bytes: int = 0
    widest_bytes: int = 0
    state_bytes: int = 0
    state_shapes: StateShapes | None = None
    lent: int = UNBOUNDED
    _freed: int = 0

    @abstractmethod
    def capacity(self, pack: P) -> int:
        """Slots that the buffers have room for."""

    @abstractmethod
    def resize(self, pack: P, capacity: int) -> None:
        """Gives every buffer room for `capacity` slots, one after the other."""

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
        """Growing: all buffers are new and the last old one is still there. Shrinking: all are old and one is new."""
        before = self.capacity(pack)
        if before == UNBOUNDED:
            return Cost(0, 0)
        held = (capacity - before) * self.slot_bytes
        return Cost(held, max(held, 0) + min(before, capacity) * self.widest_bytes)

    def retain_cost(self, pack: P, n: int) -> Cost:  # noqa: ARG002  # the Protocol's signature
        """`retain` moves some rows of one buffer at a time."""
        return Cost(0, min(n, MOVED_SLOTS) * self.widest_bytes)

    def take_cost(self, pack: P, slots: Int64) -> Cost:
        """The payload's bytes; a library that copies twice on the way says so."""
        state = self.state_bytes if int(slots[-1]) in pack.states else 0
        held = len(slots) * self.info.kv_bytes_per_token + state
        return Cost(held, held)

    def looks_back(self, pack: P) -> bool:
        """Whether any layer attends to what stands in the pack."""
        return self.capacity(pack) != UNBOUNDED

    def row_bytes(self, length: int) -> int:
        """What a chain that shares a forward has copied: its path in one layer, `length` tokens, and its state."""
        return 2 * self.widest_bytes * length + self.state_bytes

    def retain(self, pack: P, slots: Int64, places: Int64) -> None:
        """Drops every slot but `slots`; see `runtime.backends.base.Backend.retain`."""
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
        """Counts what was let go, and returns the device's memory when it is worth while."""
        self._freed += nbytes
        if self._freed >= RETURN_BYTES:
            self._freed = 0
            self.reclaim()

    def reclaim(self) -> None:  # most devices hold nothing back
        """Gives free memory back to the device."""


def shapes_of(state: State) -> StateShapes:
    """The shapes of a recurrent state's parts."""
    parts = state if isinstance(state, tuple) else (state,)
    return tuple(None if part is None else tuple(part.shape) for part in parts)


def state_size(states: Iterable[State]) -> int:
    """Bytes of recurrent states: arrays, or tuples of arrays some of which may be missing."""
    parts = (part for state in states for part in (state if isinstance(state, tuple) else (state,)))
    return sum(int(part.nbytes) for part in parts if part is not None)
