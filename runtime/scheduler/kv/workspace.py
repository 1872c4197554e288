"""One backend pack, and what stands in it: a tree of tokens that mirrors the part of the trie in work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from runtime.adapters.stacks import Tags
from runtime.backends.base import ROOT, Part, Payload
from runtime.backends.packs.packed import Backend
from runtime.backends.packs.tree import count_chains
from runtime.errors import MemoryBudgetError
from runtime.numerics.ranking import RankedRows, RankRequest
from runtime.trie import Lease, Node
from runtime.trie.tree import common_prefix

if TYPE_CHECKING:  # it makes workspaces
    from runtime.scheduler.kv.kv_budget import KvBudget

COPY_TOKENS = 256  # that are copied at a time from one workspace into another


@dataclass(slots=True, eq=False)
class SlotRun:
    """The last `n` tokens of the path that ends at slot `last` of a workspace: no copy, the keys stand there once."""

    workspace: Workspace
    last: int
    n: int
    node: Node = field(init=False, repr=False)  # the edge that carries it


class NoRoomError(MemoryBudgetError):
    """Live rows alone need more than the budget; callers get it as a plain `MemoryBudgetError`."""


Tagged = npt.NDArray[Any]  # (n,) token ids, int32; int64 where some carry the number of an adapter stack
NOTHING: Tagged = np.empty(0, np.int32)


class SlotPaths:
    """Slots numbered as they come, each with the one it follows and its token.

    A slot that says what another says at the same place already (a *twin*) is not found by its path: the first one is.
    """

    def __init__(self) -> None:
        self.children: dict[tuple[int, int], int] = {}  # the slot of a token after a slot (or ROOT), as it is found
        self.parents: list[int] = []  # the slot that each follows, or ROOT
        self._tokens: list[int] = []
        self._trail: list[int] = []  # the path that was found last: its slots
        self._trail_ids: Tagged = NOTHING  # and its tokens

    def add(self, slot: int, token: int) -> int:
        """The next slot: `token` after `slot` (or ROOT)."""
        fresh = len(self.parents)
        self.children.setdefault((slot, token), fresh)
        self.parents.append(slot)
        self._tokens.append(token)
        return fresh

    def numbers(self) -> set[int]:
        """Of the namespaces whose tokens are here."""
        return set((np.array(self._tokens, np.int64) >> Tags.SHIFT).tolist())

    def above(self, slot: int, count: int) -> int:
        """The slot `count` tokens before `slot` on its path."""
        for _ in range(count):
            slot = self.parents[slot]
        return slot

    def walk(self, ids: Tagged) -> list[int]:
        """The slots along a path, as far as it is there. Not to be changed."""
        if not len(ids) or (ROOT, int(ids[0])) not in self.children:
            return []
        same = common_prefix(self._trail_ids, ids)  # particles and chats ask for nearly the same path again and again
        trail = self._trail[:same]
        slot = trail[-1] if same else ROOT
        for token in ids[same:].tolist():
            found = self.children.get((slot, token))
            if found is None:
                break
            trail.append(found)
            slot = found
        self._trail, self._trail_ids = trail, ids[: len(trail)]
        return trail

    def below(self, computed: int, places: Iterable[int]) -> tuple[list[int], set[int]]:
        """The slots below number `computed` on the paths to `places`, ascending, and where those paths end among them."""
        kept: set[int] = set()
        tips: set[int] = set()
        for place in places:
            slot = place
            while slot >= computed:
                slot = self.parents[slot]
            if slot != ROOT:
                tips.add(slot)
            while slot != ROOT and slot not in kept:
                kept.add(slot)
                slot = self.parents[slot]
        return sorted(kept), tips

    def cut(self, size: int) -> None:
        """Forgets the slots from number `size` on."""
        for slot in range(size, len(self.parents)):
            place = self.parents[slot], self._tokens[slot]
            if self.children.get(place) == slot:
                del self.children[place]
        del self.parents[size:], self._tokens[size:]
        self._forget_trail()

    def find_only(self, kept: Sequence[int], computed: int) -> None:
        """From now on only `kept` (ascending) are found, and those from number `computed` on; the others keep their numbers."""
        there = set(kept)
        self.children = {key: slot for key, slot in self.children.items() if slot in there or slot >= computed}
        for slot in kept:  # in place of a twin that is gone
            self.children.setdefault((self.parents[slot], self._tokens[slot]), slot)
        self._forget_trail()

    def renumber(self, kept: Iterable[int]) -> dict[int, int]:
        """Numbers `kept` (ascending, with all their ancestors) from 0 on, in their order, and forgets the others."""
        numbers = {slot: number for number, slot in enumerate(kept)}
        numbers[ROOT] = ROOT
        parents = [numbers[self.parents[slot]] for slot in numbers if slot != ROOT]
        tokens = [self._tokens[slot] for slot in numbers if slot != ROOT]
        found = {slot: key for key, slot in self.children.items() if slot in numbers}
        self.children = {(numbers[slot], token): numbers[child] for child, (slot, token) in found.items()}
        self.parents, self._tokens = parents, tokens
        self._forget_trail()
        return numbers

    def _forget_trail(self) -> None:
        self._trail, self._trail_ids = [], NOTHING


Slots = npt.NDArray[np.int64]
Answer = npt.NDArray[np.float32] | RankedRows  # raw logits ``(rows, vocab)``, or rows that stay on the device
Fetch = Callable[[], Answer]  # waits for it


@dataclass(slots=True)
class Inflight:
    """A forward that computes by itself: its slots are reserved until it is settled."""

    base: int  # the number of its first slot
    count: int
    fetch: Fetch | None  # None: it is settled
    logits: Answer | None = None  # None: not settled, or it failed

    @property
    def finite(self) -> bool:
        """Whether they are numbers."""
        assert self.logits is not None
        rows = self.logits.finite if isinstance(self.logits, RankedRows) else np.isfinite(self.logits)
        return bool(rows.all())


@dataclass(slots=True)
class PartialForward:
    """What one workspace contributes to a forward: the reserved slots that it fills, and the rows whose logits are wanted."""

    workspace: Workspace
    tokens: Sequence[int]  # tagged
    parents: Sequence[int]
    want: Sequence[int]


@dataclass(slots=True)
class Prepared:
    """A forward over some workspaces that lacks its tokens alone. Each of them holds it, and drops it when it is written to."""

    workspaces: Sequence[Workspace]
    parents: Sequence[Slots]  # the packs' own slots
    tags: Sequence[Slots]  # of the tokens: the adapters that they will be computed under
    request: RankRequest | None
    begin: Callable[[Slots], Fetch] | None

    def fits(self, parts: Sequence[PartialForward], arrays: Sequence[Part], request: RankRequest | None) -> bool:
        """Whether it is what these parts need."""
        if self.begin is None or self.request != request or [part.workspace for part in parts] != list(self.workspaces):
            return False
        tags = (np.array(part.tokens, np.int64) - array.tokens for part, array in zip(parts, arrays, strict=True))
        parents = (array.parents for array in arrays)
        return all(map(np.array_equal, parents, self.parents)) and all(map(np.array_equal, tags, self.tags))

    def drop(self) -> None:
        """It will not be begun: the buffers and adapters' weights that it holds are let go."""
        self.begin = None


class SharedFetch:
    """The logits of a forward over several workspaces; the first that asks waits for all, an error is everybody's."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch: Fetch | None = fetch
        self.logits: Answer | None = None  # of all parts
        self._error: BaseException | None = None

    def part(self, rows: slice) -> Answer:
        """Some of the rows, not copied."""
        if self._fetch is not None:
            fetch, self._fetch = self._fetch, None
            try:
                self.logits = fetch()
            except BaseException as error:
                self._error = error
                raise
        if self._error is not None:
            raise self._error
        assert self.logits is not None
        return self.logits.part(rows) if isinstance(self.logits, RankedRows) else self.logits[rows]


log = logging.getLogger(__name__)
T = TypeVar("T")


class Workspace:
    """Slots by token path. Several jobs share one, so that a common prefix stands there once.

    Tokens are *tagged* with the number of the adapters that they are computed under (`runtime.adapters.stacks.Tags`): the
    same id under another stack is another token, and one pack holds both.

    Slots are numbered as they come and keep their numbers (`SlotPaths`); where `compact` has moved them, `_where` leads to
    the pack's own.
    """

    def __init__(self, backend: Backend, tags: Tags, memory: KvBudget) -> None:
        self.backend = backend
        self.memory = memory
        self.tags = tags
        self.pack = backend.open_pack()
        self.users = 0  # jobs that hold slots here
        self.retired = False  # takes no newcomers
        self.touched = 0  # logical time of the last use
        self.holds_refused = False  # holds tokens that the trie had no room for
        self.runs: set[SlotRun] = set()  # of edges whose tokens stand here
        self.referenced = 0  # tokens of them
        self.paths = SlotPaths()
        self.inflight: Inflight | None = None
        self.prepared: Prepared | None = None  # a write to the pack drops it
        self.computed = 0  # slots that were filled; those numbered from here on are reserved
        self.held = 0  # of the computed ones, those that stand in the pack still
        self.where: list[int] | None = None  # the pack's number of each computed slot, -1 if it was dropped; None: its own
        self.recurrent = "recurrent" in backend.info.attention_kinds
        self.nbytes = 0  # of the working buffers and states
        self.capacity = 0  # slots that the buffers have room for
        self.weigh()

    @property
    def size(self) -> int:
        """Slots that were ever given out, reserved ones too: the number of the next."""
        self.settle()
        return len(self.paths.parents)

    @property
    def needed(self) -> int:
        """Slots that stand in the pack or are reserved in it."""
        return self.held + len(self.paths.parents) - self.computed

    def weigh(self) -> None:
        """The buffers have changed."""
        nbytes = self.backend.pack_bytes(self.pack)
        self.memory.workspaces.nbytes += nbytes - self.nbytes
        self.nbytes, self.capacity = nbytes, self.backend.capacity(self.pack)

    def trail(self, ids: Tagged) -> list[int]:
        """The slots along a path, as far as it stands here; not to be changed.

        Waits for what was begun only where the path leads there: a job that looks for a place waits for no other one's forward.
        """
        trail = self.paths.walk(ids)
        if trail and trail[-1] >= self.computed:
            self.settle()
            trail = self.paths.walk(ids)
        return trail

    def resumable_depth(self, trail: Sequence[int], depth: int) -> int:
        """The most tokens of a path's trail, up to `depth`, after which one can be appended."""
        while depth and not self.resumable(trail[depth - 1]):
            depth -= 1
        return depth

    def follow(self, slot: int, token: int) -> int | None:
        """The slot of `token` after `slot`, if it stands here and a token can be appended after it."""
        self.settle()
        found = self.paths.children.get((slot, token))
        return found if found is not None and (not self.recurrent or self.resumable(found)) else None

    def resumable(self, slot: int) -> bool:
        """Whether a token can be appended after `slot`."""
        return not self.recurrent or self.backend.resumable(self.pack, self._pack_slot(slot))

    def reserve(self, count: int, parent: int) -> None:
        """Makes room for `count` more slots.

        Raises:
            MemoryBudgetError: The budget does not allow it, whatever gives way.
        """
        self.settle()
        self.memory.grow(self, count, states=0, parents=[parent])

    def load(self, lease: Lease, slot: int, depth: int) -> tuple[int, int]:
        """Copies what the lease holds beyond `depth` under `slot`, for which there is room; the last slot and its depth."""
        at = 0
        with self._in_use():
            self.settle(to_write=True)
            for node in lease.node.path():
                start, at = at, at + len(node.tokens)
                if at <= depth:
                    continue
                skip = max(depth - start, 0)
                tokens = node.tokens[skip:].astype(np.int64) + self.tags.tag(node.namespace)
                for payload, first, count in self._parts(node.payload, skip):
                    self.retry_when_full(partial(self.backend.load, self.pack, payload, self._pack_slot(slot), first))
                    for token in tokens[:count].tolist():
                        slot = self.paths.add(slot, token)
                    tokens = tokens[count:]
                    self.filled(len(self.paths.parents) - self.computed)
                self.memory.replace_with_run(node, SlotRun(self, slot, len(node.tokens)))
            self.weigh()
        return slot, max(at, depth)

    def _parts(self, payload: Payload, skip: int) -> Iterator[tuple[Payload, int, int]]:
        """What is loaded one after the other: a payload, its first tokens that are left out, and how many are not."""
        if not isinstance(payload, SlotRun):
            yield payload, skip, np.iinfo(np.int64).max
            return
        size = min(payload.n - skip, COPY_TOKENS) * self.backend.slot_bytes
        if self.memory.lend(size) < size:
            raise NoRoomError("the budget has no room for a copy of these keys")
        slots = payload.workspace.chain(payload.last, payload.n - skip)  # making room may have moved them
        for start in range(0, len(slots), COPY_TOKENS):
            part = slots[start : start + COPY_TOKENS]
            yield payload.workspace.take(part), 0, len(part)

    def rollback(self, size: int) -> None:
        """Forgets the slots numbered `size` and above, on which no row stands: reserved ones, and those of a bad forward."""
        self.settle()
        if size < self.computed:
            self.truncate(size)
        else:
            self.paths.cut(size)

    def broken(self, base: int) -> bool:
        """Whether slot `base` or a newer one holds keys, values or a state that are no numbers.

        Attention gives what a token does not see the weight 0, and 0 times NaN is NaN: such a slot spoils whatever else is
        computed in its pack. So bad logits lead to a look there, and the forward is rolled back where it is so, or unknown.
        """
        self.settle()
        try:
            return not self.backend.sound(self.pack)[self.held - (self.computed - base) :].all()
        except BaseException:  # the library again: what it cannot say is taken for the worst
            log.exception("whether computed KV holds numbers could not be told")
            return True

    def truncate(self, size: int) -> None:
        """Drops the newest slots, on which no row stands: those numbered below `size` stay."""
        self.settle(to_write=True)
        gone = self.computed - size
        self.backend.truncate(self.pack, self.held - gone)
        self.computed, self.held = size, self.held - gone
        if self.where is not None:
            del self.where[size:]
        self.paths.cut(size)
        if self.recurrent:
            self.weigh()

    def chain(self, slot: int, count: int) -> Slots:
        """The pack's own numbers of the last `count` slots of the path that ends at `slot`, in order."""
        self.settle()
        slots = []
        for _ in range(count):
            slots.append(slot)
            slot = self.paths.parents[slot]
        return self.pack_slots(reversed(slots))

    def forward(self, tokens: Sequence[int], parents: Sequence[int], want: Sequence[int]) -> npt.NDArray[np.float32]:
        """Fills the reserved slots: raw logits ``(len(want), vocab)``.

        Raises:
            MemoryBudgetError: No room for them in the budget, or on the device even after others gave way.
        """
        logits: npt.NDArray[np.float32] = forward([PartialForward(self, tokens, parents, want)], self.backend.compute)
        return logits

    def extend(self, tokens: Tagged, slot: int, read: str) -> tuple[npt.NDArray[np.float32], int]:
        """Appends to a pack that is one chain and ends at `slot`: what is read of each token ``(n, ...)``, and its new end.

        Raises:
            MemoryBudgetError, UnsupportedFeatureError: As `forward`, and `Backend.extend`; the pack is as it was.
        """
        ids, stacks = self.tags.untag(tokens.tolist()) if self.tags.several else (tokens.astype(np.int64), None)
        base, end = self.size, slot
        try:
            for token in tokens.tolist():
                end = self.paths.add(end, token)
            self.memory.grow(self, len(tokens), states=int(self.recurrent), parents=[] if slot == ROOT else [slot])
            self.unprepare()
            answer = self.retry_when_full(lambda: self.backend.extend(self.pack, ids, read, stacks))
        except BaseException:
            self.rollback(base)
            raise
        self.filled(len(tokens))
        return answer, end

    def collect(self) -> Answer | None:
        """The logits of what was begun; None where it failed, and its slots are gone.

        They were not looked at, unless another job has settled it before.
        """
        self.settle(caller_checks=True)
        begun, self.inflight = self.inflight, None
        return None if begun is None else begun.logits

    def abandon(self) -> None:
        """What was begun is not wanted any more; its tokens stand here all the same, if they are numbers."""
        self.settle(to_write=True)
        self.inflight = None

    def unprepare(self) -> None:
        """What was prepared will not be begun."""
        if self.prepared is not None:
            self.prepared.drop()
            self.prepared = None

    def take(self, slots: Slots) -> Payload:
        """An immutable copy of the pack's own `slots`, a chain."""
        self.settle()
        return self.retry_when_full(lambda: self.backend.take(self.pack, slots))

    def take_many(self, chains: Sequence[Slots]) -> list[Payload]:
        """`take` of several chains at once."""
        self.settle()
        return self.retry_when_full(lambda: self.backend.take_many(self.pack, chains))

    def resize(self, capacity: int) -> None:
        """Other buffers, of exactly `capacity` slots; room for the moment of copying is there."""
        self.settle(to_write=True)
        try:
            with self._in_use():
                self.retry_when_full(lambda: self.backend.resize(self.pack, capacity))
        finally:
            self.weigh()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Not closed, nor compacted for others, while room is made for what is done here."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1

    def live(self, places: Iterable[int]) -> tuple[list[int], set[int]]:
        """The computed slots on the paths to `places` and to what was begun, ascending, and where those paths end."""
        self.settle()
        begun = self.inflight
        wanted = () if begun is None or begun.logits is None else range(begun.base, begun.base + begun.count)
        return self.paths.below(self.computed, (*places, *wanted))

    def compact(self, kept: Sequence[int], tips: Iterable[int]) -> None:
        """Drops every slot but `kept`, in place, and every recurrent state but those at `tips`; see `live`."""
        self.settle(to_write=True)
        slots, ends = self.pack_slots(kept), self.pack_slots(tips)
        with self._in_use():
            self.retry_when_full(lambda: self.backend.retain(self.pack, slots, ends))
        self.where, self.held = [-1] * self.computed, len(kept)
        for number, slot in enumerate(kept):
            self.where[slot] = number
        self.paths.find_only(kept, self.computed)
        if not self.users:
            self.renumber()
        self.weigh()

    def renumber(self) -> None:
        """Forgets the numbers of dropped slots, where no request knows any by its number."""
        if self.where is None or len(self.paths.parents) > self.computed:
            return
        kept = [slot for slot, own in enumerate(self.where) if own >= 0]
        numbers = self.paths.renumber(kept)
        for run in self.runs:
            run.last = numbers[run.last]
        self.computed, self.where = len(kept), None

    def close(self) -> None:
        """Frees the buffers."""
        self.settle(to_write=True)
        self.backend.close(self.pack)
        self.paths = SlotPaths()
        self.computed, self.held, self.where = 0, 0, None
        self.memory.workspaces.nbytes -= self.nbytes
        self.nbytes = self.capacity = 0

    def filled(self, count: int) -> None:
        """The next `count` slots stand in the pack."""
        if self.where is not None:
            self.where.extend(range(self.held, self.held + count))
        self.computed += count
        self.held += count
        if self.recurrent:
            self.weigh()

    def settle(self, *, caller_checks: bool = False, to_write: bool = False) -> None:
        """Waits for what was begun: from here on its slots stand in the pack, or are gone.

        Gone, too, where its logits show that they are no numbers; `looked_at`: the caller sees to that. `to_write`: the pack
        is about to change, and what was prepared over it will not be begun.
        """
        if to_write and self.prepared is not None:
            self.unprepare()
        begun = self.inflight
        if begun is None or begun.fetch is None:
            return
        fetch, begun.fetch = begun.fetch, None
        try:
            begun.logits = fetch()
        except BaseException:  # noqa: BLE001  # pushed again, and bisected, by the job that wants it
            self.unprepare()
            self.rollback(begun.base)
            return
        self.filled(begun.count)
        if not caller_checks and not begun.finite and self.broken(begun.base):
            begun.logits = None
            self.rollback(begun.base)

    def borrow(self, pack_slots: Slots, states: int) -> bool:
        """Memory for the copies of chains that go side by side, beside that for states that stay; False: none is needed."""
        if copies := self.backend.copy_cost(self.pack, pack_slots):
            kept = states * self.backend.state_bytes
            self.backend.lent = max(self.memory.lend(copies + kept) - kept, 0)
        return copies > 0

    def retry_when_full(self, act: Callable[[], T]) -> T:
        """Once more, with what is not in use given up, when the device is full."""
        with suppress(MemoryBudgetError):  # left before the second try: its traceback would hold what the first computed
            return act()
        self.memory.free_unused()
        return act()

    def pack_slots(self, slots: Iterable[int]) -> Slots:
        """The pack's numbers of slots; of reserved ones those which they will have."""
        return np.fromiter(slots if self.where is None else map(self._pack_slot, slots), np.int64)

    def _pack_slot(self, slot: int) -> int:
        """The pack's number of a slot; of a reserved one that which it will have."""
        if self.where is None or slot == ROOT:
            return slot
        return self.where[slot] if slot < self.computed else slot - self.computed + self.held


def forward(parts: Sequence[PartialForward], compute: Callable[[Sequence[Part]], T]) -> T:
    """One forward over some workspaces, whose reserved slots it fills.

    Args:
        parts: Of each workspace.
        compute: The backend's `compute`, or `forward_on_device`.

    Returns:
        What that answers: the wanted raw logits ``(sum of len(part.want), vocab)``, in the order of `parts`.

    Raises:
        MemoryBudgetError: No room for them in the budget, or on the device even after others gave way.
    """
    first = parts[0].workspace
    for part in parts:
        part.workspace.settle(to_write=True)
    computed = first.retry_when_full(partial(compute, _arrays(parts)))
    for part in parts:
        part.workspace.filled(len(part.tokens))
    return computed


def begin(parts: Sequence[PartialForward], request: RankRequest | None = None) -> SharedFetch:
    """`forward` in two halves: `Workspace.collect` waits, as does whatever else is done in one of them.

    Args:
        parts: Of each workspace.
        request: What is wanted in place of logits.

    Raises:
        MemoryBudgetError: No room for them in the budget.
    """
    first = parts[0].workspace
    arrays = _arrays(parts)
    prepared = first.prepared
    if prepared is not None and prepared.fits(parts, arrays, request):
        assert prepared.begin is not None
        fetch = prepared.begin(np.concatenate([array.tokens for array in arrays]))
        for part in parts:
            part.workspace.unprepare()
    else:
        prepared = None  # let go before: it holds the buffers, and what another writes to would be copied
        for part in parts:
            part.workspace.unprepare()
        fetch = first.backend.begin(arrays, request)
    shared, at = SharedFetch(fetch), 0
    for part in parts:
        rows = slice(at, at + len(part.want))
        at = rows.stop
        ws = part.workspace
        ws.inflight = Inflight(ws.computed, len(part.tokens), partial(shared.part, rows))
    return shared


def prepare(parts: Sequence[PartialForward], request: RankRequest | None = None) -> None:
    """Does what can be done of the next `begin` while the last one computes, before its tokens are known.

    Nothing is lost where another one follows, or none: it is dropped.

    Args:
        parts: With the tags of the tokens for the tokens; parents are slots of what was begun, each of one token.
        request: Of the next `begin`.
    """
    arrays = []
    for part in parts:
        ws, inflight = part.workspace, part.workspace.inflight
        if inflight is None or inflight.fetch is None:
            return
        pack_slots = np.array(part.parents, np.int64) - inflight.base + ws.held
        ids, stacks = ws.tags.untag(part.tokens) if ws.tags.several else (np.zeros(len(pack_slots), np.int64), None)
        arrays.append(Part(ws.pack, ids, pack_slots, np.arange(len(pack_slots)), stacks))
    backend = parts[0].workspace.backend
    ready = backend.prepare(arrays, request)
    if ready is not None:
        tags = [np.array(part.tokens, np.int64) for part in parts]
        prepared = Prepared([part.workspace for part in parts], [array.parents for array in arrays], tags, request, ready)
        for part in parts:
            part.workspace.prepared = prepared


def _arrays(parts: Sequence[PartialForward], *, lent: bool = False) -> list[Part]:
    """Room for a forward, also for the copies of chains that go side by side in it; what the backend is given for it.

    Plain ids, the packs' own slots, wanted rows, and the adapters where there are any.

    Args:
        parts: Of each workspace.
        lent: There is room for the copies already.

    Raises:
        NoRoomError: There is none, or the last workspaces found it at the expense of the first: fewer at a time may fit.
    """
    arrays, states = [], 0
    for part in parts:
        workspace = part.workspace
        kept = count_chains(np.array(part.parents, np.int64) - workspace.computed) if workspace.recurrent else 0
        workspace.memory.grow(workspace, len(part.tokens), states=kept, parents=part.parents)
        states += kept
    for part in parts:
        workspace = part.workspace
        if len(parts) > 1 and workspace.capacity < workspace.held + len(part.tokens):
            raise NoRoomError("the budget has no room for these requests at once")
        ids, stacks = np.array(part.tokens, np.int64), None
        if workspace.tags.several:
            ids, stacks = workspace.tags.untag(part.tokens)
        pack_slots = np.array(part.parents, np.int64) if workspace.where is None else workspace.pack_slots(part.parents)
        arrays.append(Part(workspace.pack, ids, pack_slots, np.array(part.want, np.int64), stacks))
    first = parts[0]
    if not lent and len(parts) == 1 and len(first.tokens) > 1 and first.workspace.borrow(arrays[0].parents, states):
        return _arrays(parts, lent=True)  # making room may have moved its slots
    return arrays
