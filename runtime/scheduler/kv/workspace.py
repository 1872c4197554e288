"""Workspaces: a backend pack with the tree of tokens in it, in which running requests compute."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from runtime.adapters.stacks import Tags
from runtime.backends.base import ROOT, PackTokens, Payload
from runtime.backends.packs.packed import Backend
from runtime.backends.packs.tree import count_chains
from runtime.errors import MemoryBudgetError
from runtime.kv.trie import Lease, Node, common_prefix
from runtime.numerics.ranking import RankedRows, RankRequest

if TYPE_CHECKING:  # it makes workspaces
    from runtime.scheduler.kv.kv_budget import KvBudget

log = logging.getLogger(__name__)
T = TypeVar("T")
COPY_TOKENS = 256  # copied at a time from one workspace into another


@dataclass(slots=True, eq=False)
class SlotRun:
    """A reference, without a copy, to the last `n` tokens of the path that ends at slot `last` of a workspace."""

    workspace: Workspace
    last: int
    n: int
    node: Node = field(init=False, repr=False)  # its edge


class NoRoomError(MemoryBudgetError):
    """Running requests alone need more than the budget; callers get it as a plain `MemoryBudgetError`."""


Tagged = npt.NDArray[Any]  # (n,) token ids: int32, or int64 if some carry the number of an adapter stack
NOTHING: Tagged = np.empty(0, np.int32)


class SlotPaths:
    """A tree of slots, numbered in order of creation, each with its parent and its token.

    Of several slots with the same parent and token (*twins*) a lookup finds the first.
    """

    def __init__(self) -> None:
        self.children: dict[tuple[int, int], int] = {}  # (parent slot or ROOT, token) -> slot; the first of twins
        self.parents: list[int] = []  # by slot: its parent slot, or ROOT
        self._tokens: list[int] = []  # by slot
        self._trail: list[int] = []  # slots of the last path found
        self._trail_ids: Tagged = NOTHING  # its tokens

    def add(self, slot: int, token: int) -> int:
        """Creates a slot for `token` after `slot` (or ROOT) and returns its number."""
        fresh = len(self.parents)
        self.children.setdefault((slot, token), fresh)
        self.parents.append(slot)
        self._tokens.append(token)
        return fresh

    def numbers(self) -> set[int]:
        """The numbers of the namespaces of all tokens."""
        return set((np.array(self._tokens, np.int64) >> Tags.SHIFT).tolist())

    def above(self, slot: int, count: int) -> int:
        """The slot `count` tokens before `slot` on its path."""
        for _ in range(count):
            slot = self.parents[slot]
        return slot

    def walk(self, ids: Tagged) -> list[int]:
        """The slots along a path, as far as it exists; read-only."""
        if not len(ids) or (ROOT, int(ids[0])) not in self.children:
            return []
        same = common_prefix(self._trail_ids, ids)  # particles and chats repeat nearly the same path
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
        """The slots numbered below `computed` on the paths to `places`, ascending, and the last such slot of each path."""
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
        """Removes the slots from number `size` on."""
        for slot in range(size, len(self.parents)):
            self._forget(slot)
        del self.parents[size:], self._tokens[size:]
        self._cut_trail(size)

    def find_only(self, kept: Sequence[int], computed: int) -> None:
        """Restricts lookups to `kept` (ascending) and the slots from number `computed` on; numbers do not change."""
        first = first_gap(kept)
        left = [*kept[first:], *range(computed, len(self.parents))]
        for slot in {*range(first, computed)}.difference(left):
            self._forget(slot)
        for slot in left:  # replaces a removed twin
            self.children.setdefault((self.parents[slot], self._tokens[slot]), slot)
        self._cut_trail(first)

    def renumber(self, kept: Sequence[int]) -> dict[int, int]:
        """Removes all slots but `kept` (ascending, with all their ancestors), which are numbered from 0 on.

        Returns:
            The changed numbers, old -> new.
        """
        first = first_gap(kept)
        moved = [(slot, self.parents[slot], self._tokens[slot]) for slot in kept[first:]]
        self.cut(first)
        numbers: dict[int, int] = {}
        for slot, parent, token in moved:
            numbers[slot] = self.add(numbers.get(parent, parent), token)
        return numbers

    def _forget(self, slot: int) -> None:
        """Removes a slot from lookups."""
        place = self.parents[slot], self._tokens[slot]
        if self.children.get(place) == slot:
            del self.children[place]

    def _cut_trail(self, size: int) -> None:
        n = bisect_left(self._trail, size)  # ascending: a parent precedes its children
        self._trail, self._trail_ids = self._trail[:n], self._trail_ids[:n]


def first_gap(slots: Sequence[int]) -> int:
    """The first number that is not among `slots` (ascending)."""
    return bisect_left(range(len(slots)), True, key=lambda place: slots[place] > place)


Slots = npt.NDArray[np.int64]
Answer = npt.NDArray[np.float32] | RankedRows  # raw logits ``(rows, vocab)``, or rows on the device
Fetch = Callable[[], Answer]  # waits for the answer


@dataclass(slots=True)
class Inflight:
    """An asynchronous forward; its slots are reserved until it is settled."""

    base: int  # number of its first slot
    count: int  # slots
    fetch: Fetch | None  # None once settled
    logits: Answer | None = None  # None until settled, or after a failure

    @property
    def finite(self) -> bool:
        assert self.logits is not None
        rows = self.logits.finite if isinstance(self.logits, RankedRows) else np.isfinite(self.logits)
        return bool(rows.all())


@dataclass(slots=True)
class PartialForward:
    """One workspace's part of a forward."""

    workspace: Workspace
    tokens: Sequence[int]  # tagged; of the reserved slots to fill
    parents: Sequence[int]  # slot of each token's predecessor, or ROOT
    want: Sequence[int]  # indices of the tokens whose logits are wanted


@dataclass(slots=True)
class Prepared:
    """A forward over some workspaces, complete but for its tokens. A write to any of the workspaces drops it."""

    workspaces: Sequence[Workspace]
    parents: Sequence[Slots]  # pack slots
    tags: Sequence[Slots]  # numbers of the tokens' adapter stacks
    request: RankRequest | None
    begin: Callable[[Slots], Fetch] | None  # None once dropped

    def fits(self, parts: Sequence[PartialForward], arrays: Sequence[PackTokens], request: RankRequest | None) -> bool:
        """Whether it matches these parts."""
        if self.begin is None or self.request != request or [part.workspace for part in parts] != list(self.workspaces):
            return False
        tags = (np.array(part.tokens, np.int64) - array.tokens for part, array in zip(parts, arrays, strict=True))
        parents = (array.parents for array in arrays)
        return all(map(np.array_equal, parents, self.parents)) and all(map(np.array_equal, tags, self.tags))


class SharedFetch:
    """The logits of a forward over several workspaces; the first access waits for all, an error is raised at each."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch: Fetch | None = fetch
        self.logits: Answer | None = None  # logits of all parts, once fetched
        self._error: BaseException | None = None

    def part(self, rows: slice) -> Answer:
        """A slice of the rows, not copied."""
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


class Workspace:
    """Slots by token path. Several jobs share a workspace, so that a common prefix is stored once.

    Tokens are *tagged* with the number of their adapter stack (`runtime.adapters.stacks.Tags`): the same id under another
    stack is another token, and one pack holds both.

    Slots keep their numbers (`SlotPaths`); after `compact` has moved them, `where` maps the numbers to pack slots.
    """

    def __init__(self, backend: Backend, tags: Tags, memory: KvBudget) -> None:
        self.backend = backend
        self.memory = memory
        self.tags = tags
        self.pack = backend.open_pack()
        self.users = 0  # jobs with slots here
        self.retired = False  # takes no new jobs
        self.touched = 0  # logical time of the last use
        self.holds_refused = False  # holds tokens that the trie had no room for
        self.runs: set[SlotRun] = set()  # runs of trie edges
        self.referenced = 0  # tokens of `runs`
        self.paths = SlotPaths()
        self.inflight: Inflight | None = None
        self.prepared: Prepared | None = None  # dropped by a write to the pack
        self.computed = 0  # filled slots; those numbered from here on are reserved
        self.held = 0  # computed slots that are still in the pack
        self.where: list[int] | None = None  # pack slot of each computed slot, -1 if dropped; None: the same numbers
        self.recurrent = "recurrent" in backend.info.attention_kinds
        self.nbytes = 0  # bytes of the buffers and states
        self.capacity = 0  # capacity of the buffers, in slots
        self.weigh()

    @property
    def size(self) -> int:
        """The number of the next slot: all slots so far, dropped and reserved ones included."""
        self.settle()
        return len(self.paths.parents)

    @property
    def needed(self) -> int:
        """Slots that are in the pack or reserved."""
        return self.held + len(self.paths.parents) - self.computed

    def weigh(self) -> None:
        """Updates `nbytes` and `capacity` after a change of the buffers."""
        nbytes = self.backend.pack_bytes(self.pack)
        self.memory.workspaces.nbytes += nbytes - self.nbytes
        self.nbytes, self.capacity = nbytes, self.backend.capacity(self.pack)

    def trail(self, ids: Tagged) -> list[int]:
        """The slots along a path, as far as it is in the workspace; read-only.

        Waits for the forward in flight only if the path leads into its slots: placing a job waits for no other job's forward.
        """
        trail = self.paths.walk(ids)
        if trail and trail[-1] >= self.computed:
            self.settle()
            trail = self.paths.walk(ids)
        return trail

    def resumable_depth(self, trail: Sequence[int], depth: int) -> int:
        """The largest number of tokens of a trail, up to `depth`, after which a token can be appended."""
        while depth and not self.resumable(trail[depth - 1]):
            depth -= 1
        return depth

    def follow(self, slot: int, token: int) -> int | None:
        """The slot of `token` after `slot`, if it exists and a token can be appended after it."""
        self.settle()
        found = self.paths.children.get((slot, token))
        return found if found is not None and (not self.recurrent or self.resumable(found)) else None

    def resumable(self, slot: int) -> bool:
        """Whether a token can be appended after `slot`."""
        return not self.recurrent or self.backend.resumable(self.pack, self._pack_slot(slot))

    def reserve(self, count: int, parent: int) -> None:
        """Makes room for `count` more slots under `parent`.

        Raises:
            MemoryBudgetError: The budget has no room.
        """
        self.settle()
        self.memory.grow(self, count, states=0, parents=[parent])

    def load(self, lease: Lease, slot: int, depth: int) -> tuple[int, int]:
        """Copies the leased KV beyond `depth` under `slot`, where `reserve` made room; the last slot and its depth."""
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
        """The payloads to load one after the other, each with the number of tokens to skip and the number to load."""
        if not isinstance(payload, SlotRun):
            yield payload, skip, np.iinfo(np.int64).max
            return
        size = min(payload.n - skip, COPY_TOKENS) * self.backend.slot_bytes
        if self.memory.lend(size) < size:
            raise NoRoomError("the budget has no room for a copy of these keys")
        slots = payload.workspace.chain(payload.last, payload.n - skip)  # after `lend`, which may move them
        for start in range(0, len(slots), COPY_TOKENS):
            part = slots[start : start + COPY_TOKENS]
            yield payload.workspace.take(part), 0, len(part)

    def rollback(self, size: int) -> None:
        """Removes the slots from number `size` on, which no job uses: reserved ones, and those of a bad forward."""
        self.settle()
        if size < self.computed:
            self.truncate(size)
        else:
            self.paths.cut(size)

    def broken(self, base: int) -> bool:
        """Whether slot `base` or a newer one holds NaN or infinity.

        Attention gives masked tokens the weight 0, and 0 times NaN is NaN: such a slot spoils all later forwards of its pack.
        So this is checked after bad logits, and the forward is rolled back if it is true or unknown.
        """
        self.settle()
        try:
            return not self.backend.sound(self.pack)[self.held - (self.computed - base) :].all()
        except BaseException:  # the library failed: assume the worst
            log.exception("whether computed KV holds numbers could not be told")
            return True

    def truncate(self, size: int) -> None:
        """Drops the slots from number `size` on, which no job uses."""
        self.settle(to_write=True)
        left = self.held - (self.computed - size)
        self.backend.truncate(self.pack, left)
        self.computed, self.held = size, left
        if self.where is not None:
            del self.where[size:]
        self.paths.cut(size)
        if self.recurrent:
            self.weigh()

    def chain(self, slot: int, count: int) -> Slots:
        """The pack slots of the last `count` tokens of the path that ends at `slot`, in order."""
        self.settle()
        slots = []
        for _ in range(count):
            slots.append(slot)
            slot = self.paths.parents[slot]
        return self.pack_slots(reversed(slots))

    def extend(self, tokens: Tagged, slot: int, read: str) -> tuple[npt.NDArray[np.float32], int]:
        """Appends to a pack that is one chain and ends at `slot`: the values read per token ``(n, ...)``, and the new end.

        Raises:
            MemoryBudgetError, UnsupportedFeatureError: As in `forward` and `Backend.extend`; the pack is unchanged.
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
        """The logits of the forward in flight; None if it failed, and its slots were removed.

        The caller checks them, unless another job has settled the forward before.
        """
        self.settle(caller_checks=True)
        begun, self.inflight = self.inflight, None
        return None if begun is None else begun.logits

    def abandon(self) -> None:
        """Drops the logits of the forward in flight; its slots stay if they are finite."""
        self.settle(to_write=True)
        self.inflight = None

    def unprepare(self) -> None:
        if self.prepared is not None:
            self.prepared.begin = None  # frees its buffers and adapter weights
            self.prepared = None

    def take(self, slots: Slots) -> Payload:
        """An immutable copy of a chain of pack slots."""
        self.settle()
        return self.retry_when_full(lambda: self.backend.take(self.pack, slots))

    def take_many(self, chains: Sequence[Slots]) -> list[Payload]:
        """`take` of several chains at once."""
        self.settle()
        return self.retry_when_full(lambda: self.backend.take_many(self.pack, chains))

    def resize(self, capacity: int) -> None:
        """Reallocates the buffers to exactly `capacity` slots; the caller has made room for the copy."""
        self.settle(to_write=True)
        try:
            with self._in_use():
                self.retry_when_full(lambda: self.backend.resize(self.pack, capacity))
        finally:
            self.weigh()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Prevents closing, and compacting for others, while room is made for this workspace."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1

    def live(self, places: Iterable[int]) -> tuple[list[int], set[int]]:
        """The computed slots on the paths to `places` and to the forward in flight, ascending, and the ends of these paths."""
        self.settle()
        inflight = self.inflight
        wanted = () if inflight is None or inflight.logits is None else range(inflight.base, inflight.base + inflight.count)
        return self.paths.below(self.computed, (*places, *wanted))

    def compact(self, kept: Sequence[int], tips: Iterable[int]) -> None:
        """Drops all slots but `kept`, in place, and all recurrent states but those at `tips`; see `live`."""
        self.settle(to_write=True)
        slots, ends = self.pack_slots(kept), self.pack_slots(tips)
        with self._in_use():
            self.retry_when_full(lambda: self.backend.retain(self.pack, slots, ends))
        first = first_gap(kept)
        self.where, self.held = [*range(first), *[-1] * (self.computed - first)], len(kept)
        for number in range(first, len(kept)):
            self.where[kept[number]] = number
        self.paths.find_only(kept, self.computed)
        if not self.users:
            self.renumber()
        self.weigh()

    def renumber(self) -> None:
        """Reuses the numbers of dropped slots; no request may hold a slot number."""
        if self.where is None or len(self.paths.parents) > self.computed:
            return
        kept = [slot for slot, own in enumerate(self.where) if own >= 0]
        numbers = self.paths.renumber(kept)
        for run in self.runs:
            run.last = numbers.get(run.last, run.last)
        self.computed, self.where = len(kept), None

    def close(self) -> None:
        self.settle(to_write=True)
        self.backend.close(self.pack)
        self.paths = SlotPaths()
        self.computed, self.held, self.where = 0, 0, None
        self.memory.workspaces.nbytes -= self.nbytes
        self.nbytes = self.capacity = 0

    def filled(self, count: int) -> None:
        """Marks the next `count` reserved slots as computed."""
        if self.where is not None:
            self.where.extend(range(self.held, self.held + count))
        self.computed += count
        self.held += count
        if self.recurrent:
            self.weigh()

    def settle(self, *, caller_checks: bool = False, to_write: bool = False) -> None:
        """Waits for the forward in flight; afterwards its slots are computed, or removed if it failed.

        They are also removed if its logits and slots are not finite, unless the caller checks that (`caller_checks`).
        `to_write`: the pack is about to change, which drops the prepared forward.
        """
        if to_write and self.prepared is not None:
            self.unprepare()
        inflight = self.inflight
        if inflight is None or inflight.fetch is None:
            return
        fetch, inflight.fetch = inflight.fetch, None
        try:
            inflight.logits = fetch()
        except BaseException:  # noqa: BLE001  # pushed again, and bisected, by its job
            self.unprepare()
            self.rollback(inflight.base)
            return
        self.filled(inflight.count)
        if not caller_checks and not inflight.finite and self.broken(inflight.base):
            inflight.logits = None
            self.rollback(inflight.base)

    def borrow(self, pack_slots: Slots, states: int) -> bool:
        """Lends the backend memory for copies of parallel chains, besides new states; False if it needs none."""
        if copies := self.backend.copy_cost(self.pack, pack_slots):
            kept = states * self.backend.state_bytes
            self.backend.lent = max(self.memory.lend(copies + kept) - kept, 0)
        return copies > 0

    def retry_when_full(self, act: Callable[[], T]) -> T:
        """Calls `act`; if the device is full, frees unused memory and calls it again."""
        with suppress(MemoryBudgetError):  # left before the second try: the traceback would keep arrays of the first
            return act()
        self.memory.free_unused()
        return act()

    def pack_slots(self, slots: Iterable[int]) -> Slots:
        """The pack slots of slots; of reserved slots, the future ones."""
        return np.fromiter(slots if self.where is None else map(self._pack_slot, slots), np.int64)

    def _pack_slot(self, slot: int) -> int:
        """The pack slot of a slot; of a reserved slot, the future one."""
        if self.where is None or slot == ROOT:
            return slot
        return self.where[slot] if slot < self.computed else slot - self.computed + self.held


def forward(parts: Sequence[PartialForward], compute: Callable[[Sequence[PackTokens]], T]) -> T:
    """One forward over some workspaces, whose reserved slots it fills.

    Args:
        parts: One per workspace.
        compute: The backend's `compute`, or `forward_on_device`.

    Returns:
        The result of `compute`: the wanted raw logits ``(sum of len(part.want), vocab)``, in the order of `parts`.

    Raises:
        MemoryBudgetError: No room in the budget, or on the device even after freeing unused memory.
    """
    first = parts[0].workspace
    for part in parts:
        part.workspace.settle(to_write=True)
    computed = first.retry_when_full(partial(compute, _arrays(parts)))
    for part in parts:
        part.workspace.filled(len(part.tokens))
    return computed


def begin(parts: Sequence[PartialForward], request: RankRequest | None = None) -> SharedFetch:
    """Begins an asynchronous `forward`; `Workspace.collect`, or any other use of one of the workspaces, waits for it.

    Args:
        parts: One per workspace.
        request: Requests ranked rows instead of logits.

    Raises:
        MemoryBudgetError: No room in the budget.
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
        prepared = None  # freed first: it holds the buffers, which a write would then copy
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
    """Prepares the next `begin` while the last one computes, before its tokens are known.

    The preparation is dropped if another forward follows, or none.

    Args:
        parts: `tokens` holds the tags of the tokens; each parent is a slot of the forward in flight with one child.
        request: The request of the next `begin`.
    """
    arrays = []
    for part in parts:
        ws, inflight = part.workspace, part.workspace.inflight
        if inflight is None or inflight.fetch is None:
            return
        pack_slots = np.array(part.parents, np.int64) - inflight.base + ws.held
        ids, stacks = ws.tags.untag(part.tokens) if ws.tags.several else (np.zeros(len(pack_slots), np.int64), None)
        arrays.append(PackTokens(ws.pack, ids, pack_slots, np.arange(len(pack_slots)), stacks))
    backend = parts[0].workspace.backend
    ready = backend.prepare(arrays, request)
    if ready is not None:
        tags = [np.array(part.tokens, np.int64) for part in parts]
        prepared = Prepared([part.workspace for part in parts], [array.parents for array in arrays], tags, request, ready)
        for part in parts:
            part.workspace.prepared = prepared


def _arrays(parts: Sequence[PartialForward], *, lent: bool = False) -> list[PackTokens]:
    """Makes room for a forward, including copies of its parallel chains, and builds the arguments of the backend.

    They are plain ids, pack slots, wanted rows, and adapters if any.

    Args:
        parts: One per workspace.
        lent: Whether there is room for the copies already.

    Raises:
        NoRoomError: No room, or the last workspaces took that of the first: fewer at a time may fit.
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
        arrays.append(PackTokens(workspace.pack, ids, pack_slots, np.array(part.want, np.int64), stacks))
    first = parts[0]
    if not lent and len(parts) == 1 and len(first.tokens) > 1 and first.workspace.borrow(arrays[0].parents, states):
        return _arrays(parts, lent=True)  # again: making room may have moved its slots
    return arrays
