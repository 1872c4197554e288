"""One backend pack, and what stands in it: a tree of tokens that mirrors the part of the trie in work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from runtime.adapters.stacks import Tags, TokenStacks
from runtime.backends.base import ROOT, Backend, Payload
from runtime.backends.tree import count_chains
from runtime.errors import MemoryBudgetError
from runtime.records import Int32
from runtime.scheduler.kv.slot_paths import SlotPaths, Tagged
from runtime.trie import Lease


class Memory(Protocol):
    """Whom a workspace asks before it takes memory; `runtime.scheduler.kv.kv_budget.KvBudget`."""

    def grow(self, workspace: Workspace, count: int, *, states: int, standing: Iterable[int]) -> None:
        """Makes room for `count` more slots and `states` more recurrent states, or `MemoryBudgetError`.

        Slots that nobody needs may go: all but the paths to `standing` and to where live jobs stand.
        """

    def lend(self, size: int) -> int:
        """Up to `size` bytes for the moment of a copy: what nobody uses gives way; fewer where that is not enough."""

    def give_way(self) -> None:
        """The device itself is full: what nobody uses goes."""


Slots = npt.NDArray[np.int64]
Fetch = Callable[[], npt.NDArray[np.float32]]  # waits for the logits


@dataclass(slots=True)
class Inflight:
    """A forward that computes by itself: its slots are reserved until somebody settles it."""

    base: int  # the number of its first slot
    count: int
    fetch: Fetch | None  # None: it is settled
    logits: npt.NDArray[np.float32] | None = None  # None: not settled, or it failed


@dataclass(frozen=True, slots=True)
class Prepared:
    """A forward that lacks its tokens alone, and what it was prepared for."""

    parents: Slots  # the pack's own slots
    tags: Slots  # of the tokens: the adapters that they will be computed under
    begin: Callable[[Slots], tuple[Slots, Fetch]]

    def fits(self, tokens: Sequence[int], ids: Slots, parents: Slots) -> bool:
        """Whether it is what these tokens need, of which `ids` are without their tags."""
        return np.array_equal(parents, self.parents) and np.array_equal(np.array(tokens, np.int64) - ids, self.tags)


log = logging.getLogger(__name__)
T = TypeVar("T")


class Workspace:
    """Slots by token path. Several jobs share one, so that a common prefix stands there once.

    Tokens are *tagged* with the number of the adapters that they are computed under (`runtime.adapters.stacks.Tags`): the
    same id under another stack is another token, and one pack holds both.

    Slots are numbered as they come and keep their numbers (`SlotPaths`); where `compact` has moved them, `_where` leads to
    the pack's own.
    """

    def __init__(self, backend: Backend, tags: Tags, memory: Memory) -> None:
        self._backend = backend
        self._memory = memory
        self._tags = tags
        self.pack = backend.open_pack()
        self.users = 0  # jobs that hold slots here
        self.retired = False  # takes no newcomers
        self.touched = 0  # logical time of the last use
        self._paths = SlotPaths()
        self._begun: Inflight | None = None
        self._prepared: Prepared | None = None  # whoever writes to the pack drops it
        self._computed = 0  # slots whose keys stand in the pack; the others are reserved
        self._where: list[int] | None = None  # the pack's number of each computed slot, -1 for one that was dropped
        self.recurrent = "recurrent" in backend.info.attention_kinds
        self.nbytes = 0  # of the working buffers and states
        self.weigh()

    @property
    def size(self) -> int:
        """Slots that were ever given out, reserved ones too: the number of the next."""
        self._settle()
        return len(self._paths)

    @property
    def held(self) -> int:
        """Slots that stand in the pack."""
        return self._backend.size(self.pack)

    def weigh(self) -> None:
        """The buffers have changed."""
        self.nbytes = self._backend.pack_bytes(self.pack)

    def trail(self, ids: Tagged) -> list[int]:
        """The slots along a path, as far as it stands here; not to be changed.

        Waits for what was begun only where the path leads there: whoever looks for a place waits for no stranger's forward.
        """
        trail = self._paths.walk(ids)
        if trail and trail[-1] >= self._computed:
            self._settle()
            trail = self._paths.walk(ids)
        return trail

    def standing(self, trail: Sequence[int], limit: int) -> tuple[int, int]:
        """The deepest slot of a path's trail, within `limit` tokens, after which one can be appended, and its depth."""
        depth = min(len(trail), limit)
        while depth and not self.resumable(trail[depth - 1]):
            depth -= 1
        return (trail[depth - 1] if depth else ROOT), depth

    def follow(self, slot: int, token: int) -> int | None:
        """The slot of `token` after `slot`, if it stands here and a token can be appended after it."""
        self._settle()
        found = self._paths.child(slot, token)
        return found if found is not None and self.resumable(found) else None

    def resumable(self, slot: int) -> bool:
        """Whether a token can be appended after `slot`."""
        return not self.recurrent or self._backend.resumable(self.pack, self._own(slot))

    def reserve(self, count: int, standing: int) -> None:
        """Makes room for `count` more slots.

        Raises:
            MemoryBudgetError: The budget does not allow it, whoever gives way.
        """
        self._settle()
        self._memory.grow(self, count, states=0, standing=[standing])

    def load(self, lease: Lease, slot: int, depth: int) -> tuple[int, int]:
        """Copies what the lease holds beyond `depth` under `slot`, for which there is room; the last slot and its depth."""
        self._settle()
        self._prepared = None
        at = 0
        for node in lease.node.path():
            start, at = at, at + len(node.tokens)
            if at <= depth:
                continue
            skip = max(depth - start, 0)
            self._load(node.payload, slot, skip)
            tag = self._tags.tag(node.namespace)
            for token in node.tokens[skip:].tolist():
                slot = self._paths.add(slot, token + tag)
            if self._where is not None:
                self._where.extend(range(self.held - len(self._paths) + self._computed, self.held))
            self._computed = len(self._paths)
        if self.recurrent:
            self.weigh()
        return slot, max(at, depth)

    def append(self, slot: int, token: int) -> int:
        """Reserves the slot that the next `forward` will fill. `rollback` undoes it."""
        self._settle()
        return self._paths.add(slot, token)

    def rollback(self, size: int) -> None:
        """Forgets the slots numbered `size` and above, on which nobody stands: reserved ones, and those of a bad forward."""
        self._settle()
        if size < self._computed:
            self.truncate(size)
        else:
            self._paths.cut(size)

    def broken(self, base: int) -> bool:
        """Whether slot `base` or a newer one holds keys, values or a state that are no numbers.

        Attention gives what a token does not see the weight 0, and 0 times NaN is NaN: such a slot spoils whatever else is
        computed in its pack. So whoever finds bad logits looks, and rolls the forward back where it is so, or cannot be told.
        """
        self._settle()
        try:
            return not self._backend.sound(self.pack)[self.held - (self._computed - base) :].all()
        except BaseException:  # the library again: what it cannot say is taken for the worst
            log.exception("whether computed KV holds numbers could not be told")
            return True

    def truncate(self, size: int) -> None:
        """Drops the newest slots, on which nobody stands: those numbered below `size` stay."""
        self._settle()
        self._prepared = None
        gone = self._computed - size
        self._backend.truncate(self.pack, self.held - gone)
        self._computed = size
        if self._where is not None:
            del self._where[size:]
        self._paths.cut(size)
        if self.recurrent:
            self.weigh()

    def chain(self, slot: int, count: int) -> Slots:
        """The pack's own numbers of the last `count` slots of the path that ends at `slot`, in order."""
        self._settle()
        slots = np.empty(count, np.int64)
        for at in range(count - 1, -1, -1):
            slots[at] = self._own(slot)
            slot = self._paths.parent(slot)
        return slots

    def above(self, slot: int, count: int) -> int:
        """The slot `count` tokens before `slot` on its path."""
        return self._paths.above(slot, count)

    def forward(self, tokens: Sequence[int], parents: Sequence[int], want: Sequence[int]) -> npt.NDArray[np.float32]:
        """Fills the reserved slots: raw logits ``(len(want), vocab) float32``.

        Raises:
            MemoryBudgetError: No room for them in the budget, or on the device even after others gave way.
        """
        self._settle()
        self._prepared = None
        base, above = self._computed, [p for p in parents if p < self._computed]
        states = count_chains(np.array(parents, np.int64) - base) if self.recurrent else 0
        self._memory.grow(self, len(tokens), states=states, standing=above)
        held = self.held
        arrays = self._arrays(tokens, parents, np.array(want, np.int64))
        self._borrow(arrays[1], states)
        logits = self._twice(lambda: self._backend.forward(self.pack, *arrays)[1])
        self._filled(held, len(tokens))
        return logits

    def extend_hidden(self, tokens: Int32, slot: int, stacks: TokenStacks | None) -> tuple[npt.NDArray[np.float32], int]:
        """Appends to a pack that is one chain and ends at `slot`: hidden states ``(n, hidden) float32``, and its new end.

        Raises:
            MemoryBudgetError: As `forward`; the pack is as it was.
        """
        base, end = self.size, slot
        try:
            for token in tokens.tolist():
                end = self._paths.add(end, token)
            self._memory.grow(self, len(tokens), states=int(self.recurrent), standing=[] if slot == ROOT else [slot])
            self._prepared = None
            held = self.held
            hidden = self._twice(lambda: self._backend.extend_hidden(self.pack, tokens.astype(np.int64), stacks))
        except BaseException:
            self.rollback(base)
            raise
        self._filled(held, len(tokens))
        return hidden, end

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """`forward` with all rows wanted, in two halves: `collect` waits for the logits.

        Whoever does anything else here meanwhile settles it first.

        Raises:
            MemoryBudgetError: No room for them in the budget.
        """
        self._memory.grow(self, len(tokens), states=0, standing=[p for p in parents if p < self._computed])
        arrays = self._arrays(tokens, parents, np.arange(len(tokens)))
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared.fits(tokens, arrays[0], arrays[1]):
            fetch = prepared.begin(arrays[0])[1]
        else:
            prepared = None  # let go before: it holds the buffers, and what another writes to would be copied
            self._borrow(arrays[1], 0)
            fetch = self._backend.begin(self.pack, *arrays)[1]
        self._begun = Inflight(self._computed, len(tokens), fetch)

    def prepare(self, tags: Sequence[int], parents: Sequence[int]) -> None:
        """Does what can be done of the next `begin` while the last one computes, before its tokens are known.

        Nothing is lost where another one follows, or none: it is dropped.

        Args:
            tags: Of the tokens.
            parents: Slots of what was begun, each of one token.
        """
        begun = self._begun
        if begun is None or begun.fetch is None:
            return
        own = np.array(parents, np.int64) - begun.base + (self.held - begun.count)
        stacks = self._tags.untag(tags)[1] if self._tags.several else None
        if (begin := self._backend.prepare(self.pack, own, stacks)) is not None:
            self._prepared = Prepared(own, np.array(tags, np.int64), begin)

    def _arrays(self, tokens: Sequence[int], parents: Sequence[int], want: Slots) -> tuple[Any, ...]:
        """What the backend is given: plain ids, its own slots, wanted rows, and the adapters where there are any."""
        own = np.array(parents if self._where is None else [self._own(p) for p in parents], np.int64)
        if not self._tags.several:
            return np.array(tokens, np.int64), own, want
        ids, stacks = self._tags.untag(tokens)
        return (ids, own, want) if stacks is None else (ids, own, want, stacks)

    def collect(self) -> npt.NDArray[np.float32] | None:
        """The logits ``(n, vocab)`` of what was begun; None where it failed, and its slots are gone.

        They were not looked at, unless somebody else has settled it before.
        """
        self._settle(looked_at=True)
        begun, self._begun = self._begun, None
        return None if begun is None else begun.logits

    def abandon(self) -> None:
        """Nobody wants what was begun any more; its tokens stand here all the same, if they are numbers."""
        self._settle()
        self._begun = None
        self.unprepare()

    def unprepare(self) -> None:
        """What was prepared will not be begun: it is let go, with the buffers and the adapters' weights that it holds."""
        self._prepared = None

    def take(self, slots: Slots) -> Payload:
        """An immutable copy of the pack's own `slots`, a chain."""
        self._settle()
        return self._twice(lambda: self._backend.take(self.pack, slots))

    def take_many(self, chains: Sequence[Slots]) -> list[Payload]:
        """`take` of several chains at once."""
        self._settle()
        return self._twice(lambda: self._backend.take_many(self.pack, chains))

    def resize(self, capacity: int) -> None:
        """Other buffers, of exactly `capacity` slots; room for the moment of copying is there."""
        self._settle()
        self._prepared = None
        try:
            self._twice(lambda: self._backend.resize(self.pack, capacity))
        finally:
            self.weigh()

    def live(self, places: Iterable[int]) -> tuple[list[int], set[int]]:
        """The computed slots on the paths to `places` and to what was begun, ascending, and where those paths end."""
        self._settle()
        begun = self._begun
        wanted = () if begun is None or begun.logits is None else range(begun.base, begun.base + begun.count)
        return self._paths.below(self._computed, (*places, *wanted))

    def compact(self, kept: Sequence[int], tips: Iterable[int]) -> None:
        """Drops every slot but `kept`, in place, and every recurrent state but those at `tips`; see `live`."""
        self._settle()
        self._prepared = None
        slots = np.array([self._own(slot) for slot in kept], np.int64)
        ends = np.array([self._own(slot) for slot in tips], np.int64)
        self._twice(lambda: self._backend.retain(self.pack, slots, ends))
        self._where = [-1] * self._computed
        for number, slot in enumerate(kept):
            self._where[slot] = number
        self._paths.find_only(kept, self._computed)
        self.weigh()

    def close(self) -> None:
        """Frees the buffers."""
        self._settle()
        self._prepared = None
        self._backend.close(self.pack)
        self._paths = SlotPaths()
        self._computed, self._where, self.nbytes = 0, None, 0

    def _filled(self, held: int, count: int) -> None:
        """After a forward over `count` reserved slots, before which the pack held `held`."""
        self._computed += count
        if self._where is not None:
            self._where.extend(range(held, held + count))
        if self.recurrent:
            self.weigh()

    def _settle(self, *, looked_at: bool = False) -> None:
        """Waits for what was begun: from here on its slots stand in the pack, or are gone.

        Gone, too, where its logits show that they are no numbers; `looked_at`: the caller sees to that.
        """
        begun = self._begun
        if begun is None or begun.fetch is None:
            return
        fetch, begun.fetch = begun.fetch, None
        try:
            begun.logits = fetch()
        except BaseException:  # noqa: BLE001  # pushed again, and bisected, by whoever wants it
            self._prepared = None
            self.rollback(begun.base)
            return
        self._filled(self.held - begun.count, begun.count)
        if not looked_at and not np.isfinite(begun.logits).all() and self.broken(begun.base):
            begun.logits = None
            self.rollback(begun.base)

    def _borrow(self, own: Slots, states: int) -> None:
        """Memory for the copies of chains that go side by side, beside that for the states that will be kept."""
        if copies := self._backend.copy_cost(self.pack, own):
            kept = states * self._backend.state_bytes
            self._backend.lent = max(self._memory.lend(copies + kept) - kept, 0)

    def _load(self, payload: Payload, slot: int, skip: int) -> None:
        self._twice(lambda: self._backend.load(self.pack, payload, self._own(slot), skip))

    def _twice(self, act: Callable[[], T]) -> T:
        """Once more, with what nobody uses given up, when the device is full."""
        with suppress(MemoryBudgetError):  # left before the second try: its traceback would hold what the first computed
            return act()
        self._memory.give_way()
        return act()

    def _own(self, slot: int) -> int:
        """The pack's number of a slot; of a reserved one that which it will have."""
        if self._where is None or slot == ROOT:
            return slot
        return self._where[slot] if slot < self._computed else slot - self._computed + self.held
