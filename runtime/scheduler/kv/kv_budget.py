"""The packs in use, what the edges of the trie carry, and one number of bytes for both and vectors.

It is asked before anything is allocated. What gives way, in this order: idle packs (their tokens are in the trie, but for the
latest, where the trie had no room for its tokens), the trie's least recently used leaves, pins of open sessions, slots of packs
in use on which no row stands. For a running request also: kept vectors, leases of paths that stand in a pack anyway, spare
capacity of other packs. Where that is not enough, live rows alone need more than the budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any

from runtime.adapters.stacks import Tags
from runtime.backends.packs.packed import Backend
from runtime.backends.stored import Stored
from runtime.errors import MemoryBudgetError
from runtime.scheduler.jobs import Job
from runtime.scheduler.kv.pins import Pins
from runtime.scheduler.kv.workspace import NoRoomError, SlotRun, Tagged, Workspace
from runtime.scheduler.prefill.distributions import LogitsCache
from runtime.scheduler.prefill.prefill import Prefill
from runtime.speculation.draft import Drafter
from runtime.trie import Node, Trie
from runtime.trie.tree import Weight, common_prefix

GROWTH_SHARE = 16  # a pack grows by a sixteenth, and by as many slots at least as the backend says
EVICT_SHARE = 32  # of the budget is evicted at a time where buffers must be copied to give it back
STEP = 64  # slots that a pack grows by where memory is short
QUARTER_STEP = 256  # slots that it grows by at least where it is not
SPARE_SHARE = 16  # room that no slot fills yet takes no more than this fraction of the budget
VECTOR_SHARE = 32  # full vectors get this fraction of the budget
VECTOR_BYTES = 32 << 20  # and no more: what is written to the same memory again and again stays in the processor's cache
LEAST_CROWD = 1024  # slots
CROWDED = 4  # times as much as it needs itself, or may share, is what a path would attend to behind a mask
COPY_OUT_EDGES = 64  # that are copied out of a pack at a time
COPY_OUT_BYTES = 64 << 20  # of their copies, about
KIN_TOKENS = 4  # a common beginning of fewer tokens is computed twice where families attend apart


class Payloads:
    """Weighs, splits and exports both kinds of payload; the trie's `PayloadOps`. Owner thread only.

    Attributes:
        in_place: Whether edges refer to slots. Not for recurrent models, whose state moves on with the path, nor where
            keys are kept in another precision than they are computed in: there the trie holds copies.
        tokens: Those of all runs that edges hold; their bytes are bytes of packs.
        released: Workspaces some of whose runs were let go since the set was last emptied.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.in_place = (
            "recurrent" not in backend.info.attention_kinds and backend.slot_bytes == backend.info.kv_bytes_per_token > 0
        )
        self.tokens = 0
        self.released: set[Workspace] = set()

    def split(self, payload: Any, n: int) -> tuple[Any, Any]:
        """The first `n` tokens and the rest."""
        if isinstance(payload, SlotRun):
            rest = payload.n - n
            above = payload.workspace.paths.above(payload.last, rest)
            return SlotRun(payload.workspace, above, n), SlotRun(payload.workspace, payload.last, rest)
        return self._backend.split(payload, n)

    def weigh(self, payload: Any) -> Weight:
        """Bytes that are free once it is let go; a copy of a run takes none beside what is held already."""
        if isinstance(payload, SlotRun):
            return Weight(payload.n * self._backend.slot_bytes, 0, resumable=True)
        nbytes = self._backend.payload_bytes(payload)
        return Weight(nbytes, nbytes, self._backend.payload_resumable(payload))

    def owner(self, payload: Any) -> Workspace | None:
        """The workspace of a run."""
        return payload.workspace if isinstance(payload, SlotRun) else None

    def cut(self, payload: Any, n: int) -> tuple[Any, Any]:
        """The same of one that an edge carries. Of a run, the rest is the run itself."""
        if not isinstance(payload, SlotRun):
            return self._backend.split(payload, n)
        payload.n -= n
        payload.workspace.referenced -= n
        self.tokens -= n
        return SlotRun(payload.workspace, payload.workspace.paths.above(payload.last, payload.n), n), payload

    def extend(self, payload: Any, more: Any) -> bool:
        """Lengthens one that an edge carries; False where `more` does not follow it in the same workspace."""
        if not isinstance(payload, SlotRun) or not isinstance(more, SlotRun) or payload.workspace is not more.workspace:
            return False
        if payload.workspace.paths.above(more.last, more.n) != payload.last:
            return False
        payload.last, payload.n = more.last, payload.n + more.n
        payload.workspace.referenced += more.n
        self.tokens += more.n
        return True

    def hold(self, payload: Any, node: Node) -> None:
        """An edge carries it from now on."""
        if isinstance(payload, SlotRun):
            payload.node = node
            payload.workspace.runs.add(payload)
            payload.workspace.referenced += payload.n
            self.tokens += payload.n

    def release(self, payload: Any) -> None:
        """No edge carries it any more: its slots may be reused when no request stands on them."""
        if isinstance(payload, SlotRun):
            payload.workspace.runs.discard(payload)
            payload.workspace.referenced -= payload.n
            self.tokens -= payload.n
            self.released.add(payload.workspace)

    def export(self, payload: Any, start: int, stop: int) -> Stored:
        """Tokens `start` to `stop` as plain arrays; see `runtime.backends.packs.packed.PackedBackend.export`."""
        if isinstance(payload, SlotRun):
            run = payload.workspace
            return self._backend.export(run.take(run.chain(run.paths.above(payload.last, payload.n - stop), stop - start)))
        return self._backend.export(payload, start, stop)


class Workspaces:
    """A path goes where most of it stands already; strangers get a pack of their own.

    Args:
        backend: Owner of the packs.
        memory: Asked before packs grow.
        in_place: Whether edges of the trie refer to slots: then a pack stays until none does.

    Attributes:
        crowd: Slots up to which unrelated rows share a pack.
    """

    def __init__(self, backend: Backend, memory: KvBudget, *, in_place: bool) -> None:
        self._in_place = in_place
        self._backend = backend
        self._memory = memory
        self._limit = 128 if backend.together else 8  # packs kept at a time: few where each costs a forward of its own
        self._kin = KIN_TOKENS if backend.together and backend.apart else 0
        # One forward for all beats one for each as long as the attention that is wasted on strangers (two products over hidden
        # size and layers per slot) is at most half of what a row costs in the weights.
        info = backend.info
        self.crowd = max(info.parameters // max(4 * info.layers * info.hidden_size, 1), LEAST_CROWD)
        self.tags = Tags(info.kv_fingerprint)  # one pack may hold tokens under different adapters
        self._clock = 0
        self.open: dict[Workspace, None] = {}
        self.busy: dict[Workspace, None] = {}  # those that requests use
        self.nbytes = 0  # of all working buffers; kept by them
        self.closed_bytes = 0  # in all, since load

    @property
    def idle_bytes(self) -> int:
        """Bytes of packs that nothing uses and no edge refers to."""
        return 0 if self._in_place else sum(w.nbytes for w in self.open if not w.users)

    def place(
        self,
        ids: Tagged,
        *,
        alone: bool = False,
        reach: int = 0,
        live: Collection[Prefill] = (),
        node: Node | None = None,
    ) -> tuple[Workspace, list[int]]:
        """The workspace for a path of tagged tokens, and the slots of those that stand there; counts a user.

        `leave` takes it back.

        Args:
            ids: The path.
            alone: In a pack of its own.
            reach: Tokens of it after which one can go on from what the trie holds: so far it is enough that keys stand there.
            live: Other paths. What begins with the same tokens as one that is not done yet goes where that goes.
            node: The edge at which the trie's part of the path ends.
        """
        self._clock += 1
        chosen, trail = (None, []) if alone else self._best_match(ids, reach, node)
        if chosen is None and not alone:
            chosen = self._sharing(ids, live)
            trail = [] if chosen is None else chosen.trail(ids)
        if chosen is None:
            if not self._in_place and len(self.open) >= self._limit:
                self.drop_idle(keep=self._limit - 1)
            chosen = Workspace(self._backend, self.tags, self._memory)
            self.open[chosen] = None
        chosen.users += 1
        self.busy[chosen] = None
        chosen.touched = self._clock
        return chosen, trail

    def leave(self, workspace: Workspace, *, drop: bool = False) -> None:
        """One user less; an idle pack that holds much more than one path is freed."""
        workspace.users -= 1
        if workspace.users:
            return
        del self.busy[workspace]
        if workspace.runs:
            if workspace.where is not None:
                workspace.renumber()
            return
        if drop or workspace.retired or self._in_place or workspace.held > CROWDED * self.crowd:
            self.close(workspace)

    def drop_idle(self, keep: int = 0) -> None:
        """Frees idle packs, least recently used first, until `keep` packs are left or none is idle."""
        for workspace in self._idle()[: max(len(self.open) - keep, 0)]:
            self.close(workspace)

    def free(self, size: int, *, spare_refused: bool = False) -> int:
        """Frees idle packs, least recently used first, until `size` bytes are free or none is idle.

        Args:
            size: Bytes.
            spare_refused: Keeps the pack used last if it holds tokens that the trie had no room for.

        Returns:
            The bytes freed.
        """
        freed, latest = 0, max((workspace.touched for workspace in self.open), default=0)
        for workspace in self._idle():
            if freed >= size or (spare_refused and workspace.holds_refused and workspace.touched == latest):
                break
            freed += workspace.nbytes
            self.close(workspace)
        return freed

    def retire(self) -> None:
        """Packs in use take no newcomers any more; they are freed when their last user leaves."""
        for workspace in self.open:
            workspace.retired = True

    def _idle(self) -> list[Workspace]:
        return sorted((w for w in self.open if w.users == 0 and not w.runs), key=lambda w: w.touched)

    def _best_match(self, ids: Tagged, reach: int, node: Node | None) -> tuple[Workspace | None, list[int]]:
        best: Workspace | None = None
        deepest, found = -1, list[int]()
        candidates = self.open
        if self._in_place:  # where the trie says, and wherever requests are at work
            candidates = {}
            while node is not None and node.parent is not None:
                if isinstance(node.payload, SlotRun):
                    candidates[node.payload.workspace] = None
                node = node.parent
            candidates |= self.busy
        for workspace in candidates:
            crowded = self._in_place and workspace.held > CROWDED * max(self.crowd, len(ids))
            if crowded or workspace.retired:
                continue
            trail = workspace.trail(ids)
            depth = len(trail)
            if workspace.recurrent:
                depth = max(workspace.resumable_depth(trail, depth), min(depth, reach))
            fits = 2 * depth >= len(ids) or (depth >= self._kin and workspace.held - depth + len(ids) <= self.crowd)
            if fits and depth > deepest:
                best, deepest, found = workspace, depth, trail
        return best, found

    def _sharing(self, ids: Tagged, live: Iterable[Prefill]) -> Workspace | None:
        """Where a path with the same beginning is on its way, if it is worth while to share that, or costs nothing."""
        filled: dict[Workspace, int] = {}
        common: dict[Workspace, int] = {}
        for other in live:
            workspace, path = other.workspace, other.tagged
            if other.at < other.total and not workspace.retired:
                filled[workspace] = filled.get(workspace, 0) + len(path)
                common[workspace] = max(common.get(workspace, 0), common_prefix(path, ids))
        for workspace, n in common.items():
            if 2 * n >= len(ids) or (0 < self._kin <= n and filled[workspace] + len(ids) <= self.crowd):
                return workspace
        return None

    def close(self, workspace: Workspace) -> None:
        """Frees a pack that nothing uses and no edge refers to."""
        del self.open[workspace]
        self.closed_bytes += workspace.nbytes
        workspace.close()


class KvBudget:
    """The budget of one model; owner thread only.

    Args:
        backend: Weighs packs.
        budget: Bytes for everything together.
        enabled: False keeps nothing in the trie and no vectors.

    Attributes:
        peak: The most that was held, or was about to be in the middle of a copy, under this budget.
        live: Jobs that stand in a workspace.
    """

    def __init__(self, backend: Backend, budget: int, *, enabled: bool) -> None:
        self._backend, self._enabled = backend, enabled
        self.budget = budget
        self.peak = 0
        self.live: set[Prefill] = set()
        self.payloads = Payloads(backend)
        self.in_place = self.payloads.in_place
        self.trie = Trie(self.payloads, budget, self.make)
        self.vectors = LogitsCache(_for_vectors(budget) if enabled else 0, self.make)
        self.pins = Pins(self.trie, self.vectors, budget, self.make)
        self.workspaces = Workspaces(backend, self, in_place=self.in_place)
        self.drafter: Drafter | None = None
        self.in_transfer = 0  # bytes on their way to or from the block file
        self.pending = 0  # bytes that were copied for the trie and are not hung in yet
        self._reported_freed = 0  # of the freed bytes, those the backend has heard of
        self._growing: Workspace | None = None  # makes room for itself: its buffers are left as they are
        self._allowed = 0  # bytes that may be held for a moment while the budget is lowered

    @property
    def bytes(self) -> int:
        """Bytes in use."""
        drafts = 0 if self.drafter is None else self.drafter.nbytes
        moving = self.pending + self.in_transfer
        held = self.workspaces.nbytes + self.trie.bytes - self.payloads.tokens * self._backend.slot_bytes
        return held + self.vectors.bytes + self.pins.nbytes + moving + drafts

    def replace_with_run(self, node: Node, run: SlotRun) -> None:
        """The tokens of an edge were copied into a workspace: one copy is enough."""
        held = node.payload
        if not self.in_place or not node.attached or run.workspace.retired:  # that is to be freed when its last user leaves
            return
        few = CROWDED * max(self.workspaces.crowd, len(node.tokens))
        if not isinstance(held, SlotRun) or held.workspace.retired or held.workspace.held > few:
            self.trie.replace(node, run)

    def make(self, size: int) -> bool:
        """Makes `size` more bytes free for something to keep: idle packs, old leaves and then old pins give way.

        Returns:
            False, and nothing was given up, where that would not be enough.
        """
        held = self.bytes
        short = held + size - self.budget
        if short > 0 and self.in_place:
            if not self._reclaim(self.budget - size):
                return False
            held = self.bytes
        elif short > 0:
            lacking = short - self.workspaces.idle_bytes - self.trie.evictable_bytes
            if lacking > 0 and not self.pins.make_evictable(lacking):
                return False
            short -= self.workspaces.free(short, spare_refused=True)
            short -= self.trie.evict(short)
            self.workspaces.free(short)
            held = self.bytes
        free = held + size <= self.budget
        if free:
            self.peak = max(self.peak, held + size)
        return free

    def _reclaim(self, target: int) -> bool:
        """Evicts the trie's oldest leaves and gives back their slots until no more than `target` bytes are held.

        Returns:
            False, and nothing was given up, where that is known not to be enough; or it turned out so.
        """
        # bytes of packs that no edge refers to; some of them running requests stand on
        slack = self.workspaces.nbytes - self.payloads.tokens * self._backend.slot_bytes
        lacking = self.bytes - target - self.trie.evictable_bytes - slack
        if lacking > 0 and not self.pins.make_evictable(lacking):
            return False
        self._close_empty()
        spared: Workspace | None = None  # whose buffers cannot be reallocated before something else is free
        last = False
        while (before := self.bytes) > target:
            evicted = self.trie.evict(before - target, spared=spared)
            self._close_empty()
            if self.bytes > target and evicted:  # slots of a pack in use: some more, so that buffers are copied seldom
                evicted += self.trie.evict(self.budget // EVICT_SHARE - evicted, spared=spared)
                self._close_empty()
            refused = self._shrink(target)
            if self._growing is not None and self.bytes == before:  # what it needs is in the pack itself: `_evict_and_compact`
                break
            if not evicted and (last or spared is None):
                break
            last = last or not evicted
            spared = None if last else refused
        return self.bytes <= target

    def _close_empty(self) -> None:
        """Frees the packs whose last edge is gone."""
        for workspace in self.payloads.released:
            if not workspace.runs and not workspace.users and workspace in self.workspaces.open:
                self.workspaces.close(workspace)
        self.payloads.released &= self.workspaces.open.keys()

    def _shrink(self, target: int) -> Workspace | None:
        """Moves what is left of packs together and gives the rest of their buffers back, the emptiest first.

        Returns:
            The first whose buffers could not be reallocated for want of memory.
        """
        if self.bytes <= target:
            return None
        refused: Workspace | None = None
        slot = max(self._backend.slot_bytes, 1)
        users = Counter(prefill.workspace for prefill in self.live)  # a request that is being placed is not among them
        sizes = {ws: ws.nbytes - ws.referenced * slot for ws in self.workspaces.open if ws.users == users[ws]}
        if self._growing is not None:
            sizes.pop(self._growing, None)
        for workspace in sorted(sizes, key=lambda ws: -sizes[ws]):
            if self.bytes <= target or sizes[workspace] < slot:
                break
            with suppress(MemoryBudgetError):  # the device itself: it stays as it is
                self._compact(workspace, [])
                if not self._tighten(workspace):
                    refused = refused or workspace
        return refused

    def hint(self, workspace: Workspace, count: int) -> None:
        """So many slots will be needed here, for which there is no room yet: reserved at once if that costs nothing in use.

        Where memory is short no more than that; where it is not, `grow` adds a few for those that come next.
        """
        if count <= self._backend.growth and 2 * self.bytes <= self.budget:
            return
        growing, self._growing = self._growing, workspace
        try:
            if self.in_place or not self._grow_without_evicting(workspace, count, 0):
                self._fit_slots(workspace, workspace.held + count, 0)
        except MemoryBudgetError:  # the device itself: `grow` will ask for what is needed
            pass
        finally:
            self._growing = growing

    def grow(self, workspace: Workspace, count: int, *, states: int, parents: Iterable[int]) -> None:
        """Makes room for `count` more slots and `states` more recurrent states in a pack.

        Raises:
            NoRoomError: Live rows alone need more than the budget; no path has changed.
        """
        extra, parents = states * self._backend.state_bytes, list(parents)
        if not extra and workspace.held + count <= workspace.capacity and self.bytes <= self.budget:
            return
        growing, self._growing = self._growing, workspace
        try:
            lacks = workspace.held + count > workspace.capacity
            if lacks and not self.in_place and workspace.held > CROWDED * self.workspaces.crowd:  # mostly where no job stands
                self._compact(workspace, parents, least=workspace.held // 2)
            if self._grow_without_evicting(workspace, count, extra):
                return
            self._compact(workspace, parents, least=count)
            for _ in self._release_steps(workspace, parents, count):
                for spare in (self._spare_slots if self.in_place else STEP, 0):
                    if self._fit_slots(workspace, workspace.held + count + spare, extra):
                        return
        finally:
            self._growing = growing
        raise NoRoomError(self._refusal(workspace, count, extra))

    def spare(self, before: int | None = None) -> int:
        """Bytes that are free for one more path once every live one is read, whatever else gives way.

        Args:
            before: Only jobs that were admitted before the one of this number count as live.
        """
        live = [prefill for prefill in self.live if before is None or prefill.job.order < before]
        unread: dict[Job, int] = {}  # one whose path was restored stands in two places for a moment
        for prefill in live:
            if prefill.at < prefill.total:
                unread[prefill.job] = min(prefill.total - prefill.at, unread.get(prefill.job, prefill.total))
        return self.budget - self._live_bytes(live) - sum(map(self.need, unread.values()))

    def _live_bytes(self, live: Iterable[Prefill]) -> int:
        """Bytes that cannot give way: of the paths on which these jobs stand, of what is on its way, of drafts."""
        places: dict[Workspace, list[int]] = {}
        for prefill in live:
            places.setdefault(prefill.workspace, []).append(prefill.slot)
        taken = self.in_transfer + (0 if self.drafter is None else self.drafter.nbytes)
        for workspace, slots in places.items():
            kept, tips = workspace.live(slots)
            taken += len(kept) * self._backend.slot_bytes + len(tips) * self._backend.state_bytes
        return taken

    def need(self, tokens: int) -> int:
        """Bytes that a path takes for so many more tokens."""
        return tokens * self._backend.slot_bytes + self._backend.state_bytes

    def lacking(self, tokens: int) -> int:
        """Bytes that must be `spare` before a path of so many tokens, which has just found no room, is tried again."""
        needed, spare = self.need(tokens), self.spare()
        return needed if spare < needed else spare + self.need(STEP)

    @property
    def plenty(self) -> bool:
        """Whether there is room for every live job even as buffers and leases are now: known faster than `spare`."""
        held = self.bytes - self.trie.bytes + self.trie.leased_bytes - (0 if self.in_place else self.workspaces.idle_bytes)
        for prefill in self.live:
            if (left := len(prefill.job.ids) - prefill.at) > 0:
                held += left * self._backend.slot_bytes + self._backend.state_bytes
        return held <= self.budget

    def lend(self, size: int) -> int:
        """Up to `size` bytes for the moment of a copy: what is not in use gives way; fewer where that is not enough."""
        if self.make(size):
            return size
        free = max(self.budget - self.bytes, 0)
        self.peak = max(self.peak, self.bytes + free)
        return free

    def free_unused(self) -> None:
        """The device is full: idle packs, vectors and whatever no lease holds are freed, for good."""
        self.workspaces.drop_idle()
        self.vectors.clear()
        self.pins.release_all()
        self.trie.evict(self.trie.evictable_bytes)
        self._close_empty()
        self._backend.reclaim()

    def account(self) -> None:
        """After a step: packs that are mostly empty are compacted, idle copies go, the device hears of what was freed."""
        if self.payloads.released:
            self._tidy()
        if not self.in_place and self.workspaces.nbytes > self.budget // 2:
            self.workspaces.drop_idle()
        self.peak = max(self.peak, self.bytes)
        freed = self.trie.evicted_bytes + self.trie.cleared_bytes + self.workspaces.closed_bytes
        if freed > self._reported_freed:
            self._backend.freed(freed - self._reported_freed)
            self._reported_freed = freed

    def _tidy(self) -> None:
        """Closes or compacts packs whose edges have gone; one large pack at a time."""
        self._close_empty()
        while self.payloads.released:
            workspace = self.payloads.released.pop()
            if workspace.held > max(2 * workspace.referenced, STEP):
                with suppress(MemoryBudgetError):  # the device itself: it stays as it is
                    self._compact(workspace, [], least=workspace.held // 2)
                    if not workspace.users:
                        self._tighten(workspace)
                return

    def copy_out(self, workspace: Workspace) -> None:
        """Copies edges on which no running request stands out of a pack and frees their slots, if the budget has room.

        A token of a branched pack reads all its slots, behind a mask: what earlier answers left there costs each token of the
        next one. One path alone needs no mask.

        Args:
            workspace: Of decoding requests alone.
        """
        places = [prefill.slot for prefill in self.live if prefill.workspace is workspace]
        kept = set(workspace.live(places)[0])
        before = workspace.held
        if before - len(kept) < (1 if len(places) == 1 else len(kept)):
            return
        unused = sorted((run for run in workspace.runs if run.last not in kept), key=lambda run: -run.last)
        leaving, copies = list[Node](), 0  # the newest first: an ancestor's slots stay as long as a descendant's do
        for run in unused[:COPY_OUT_EDGES]:
            if copies <= COPY_OUT_BYTES:
                copies += self._backend.take_cost(workspace.pack, workspace.chain(run.last, run.n)).moment
                leaving.append(run.node)
        # as much again may be needed where another answer leaves one of these in the middle: what was copied is cut by copying
        size = copies + self._backend.resize_cost(workspace.pack, len(kept)).moment
        room = bool(leaving) and 2 * size <= max(self.budget - self.bytes, self.budget // EVICT_SHARE) and self.make(size)
        for node in leaving if room else ():
            if node.attached:  # it may have been the oldest, and what made room may have moved the slots
                run = node.payload
                self.trie.replace(node, self._backend.take(workspace.pack, workspace.chain(run.last, run.n)))
        self._compact(workspace, [])
        if workspace.held < before and (workspace.capacity > 2 * workspace.needed or 2 * self.bytes > self.budget):
            self._tighten(workspace, max(workspace.needed // GROWTH_SHARE, self._backend.growth))  # the answer grows on

    def set_budget(self, budget: int) -> None:
        """Another budget; evicts down to it. The peak counts anew.

        Raises:
            MemoryBudgetError: Running requests hold more.
        """
        in_use = self.workspaces.nbytes - self.workspaces.idle_bytes
        least = self._live_bytes(self.live) if self.in_place else in_use
        if least > budget:  # before anything is given up for it
            raise MemoryBudgetError(_held_by_requests(least, budget))
        before, self.budget = self.budget, budget
        self.pins.set_budget(budget)
        if self.in_place:
            self._allowed = before
            try:
                if not self._reclaim(budget):
                    self.vectors.clear()
                    self.pins.release_all()
                    self._reclaim(budget)
            finally:
                self._allowed = 0
            held = self.bytes
        else:
            if in_use + self.trie.leased_bytes > budget:
                self.pins.release_all()
                self._release_leases()
            held = in_use + self.trie.leased_bytes
        if held > budget:
            self.budget = before
            self.pins.set_budget(before)
            raise MemoryBudgetError(_held_by_requests(held, budget))
        self.vectors.set_budget(_for_vectors(budget) if self._enabled else 0)
        if not self.make(0):
            self.vectors.clear()
            self.make(0)
        self.peak = self.bytes
        self._backend.set_kv_budget(budget)
        self.account()

    # ---- growing ----------------------------------------------------------------------------------------------------

    def _growth_cost(self, workspace: Workspace, slots: int) -> int:
        """Bytes for a pack to hold `slots`, at the worst moment."""
        if slots <= workspace.capacity:
            return 0
        return self._backend.resize_cost(workspace.pack, slots).moment

    def _fit_slots(self, workspace: Workspace, slots: int, extra: int) -> bool:
        """Whether a pack has room for `slots` now; what gives way gives way for `extra` bytes beside it."""
        if not self.make(self._growth_cost(workspace, slots) + extra):
            return False
        if slots > workspace.capacity:
            workspace.resize(slots)
        return True

    def _grow_without_evicting(self, workspace: Workspace, count: int, extra: int) -> bool:
        """Grows by as much as is cheap without anybody giving way: double, a quarter, some, or what is needed."""
        held = self.bytes
        free = self.budget - held - extra
        slots = workspace.held + count
        capacity = workspace.capacity
        if free >= 0 and slots <= capacity:
            self.peak = max(self.peak, held + extra)
            return True
        some = self._spare_slots
        wanted_sizes = (
            (slots + max(slots // GROWTH_SHARE, self._backend.growth), slots + some, slots)
            if self.in_place
            else (2 * capacity, capacity + max(capacity // 4, QUARTER_STEP), slots + some, slots)
        )
        for wanted in wanted_sizes:
            if wanted < slots:
                continue
            cost = self._backend.resize_cost(workspace.pack, wanted)
            spare = cost.held * (wanted - slots) // max(wanted - capacity, 1)
            if cost.moment <= free and spare <= self.budget // SPARE_SHARE:
                self.peak = max(self.peak, held + cost.moment + extra)
                workspace.resize(wanted)
                return True
        return False

    @property
    def _spare_slots(self) -> int:
        """That a pack grows by beyond what it needs where memory is short."""
        return min(STEP, self.budget // SPARE_SHARE // max(self._backend.slot_bytes, 1))

    def _release_steps(self, workspace: Workspace, parents: list[int], count: int) -> Iterator[None]:
        """What is given up for a running request, step by step; tried again after each."""
        yield
        self.vectors.clear()
        yield
        if self.in_place:
            yield from self._evict_and_compact(workspace, parents, count)
        self._release_leases()
        yield
        for other in list(self.workspaces.busy):
            if other is workspace:
                self._compact(workspace, parents)
            elif other in self.workspaces.busy:
                self._compact(other, [])
                self._tighten(other)
        yield

    def _evict_and_compact(self, workspace: Workspace, parents: list[int], count: int) -> Iterator[None]:
        """Evicts what has slots in this pack, among others, and compacts it: that needs no memory beside the pack's own."""
        self._compact(workspace, parents)
        yield
        while self.trie.evictable_bytes or self.pins.leases:
            if not self.trie.evictable_bytes:
                self.pins.release_all()
            if not self.trie.evict(max(self.budget // EVICT_SHARE, count * self._backend.slot_bytes)):
                return
            self._close_empty()
            self._compact(workspace, parents)
            yield

    def _release_leases(self) -> None:
        """What a live job's lease holds stands in its pack as well: it may be evicted, and is published anew later."""
        for prefill in self.live:
            if prefill.lease.node.attached and prefill.lease.length > 0:
                prefill.lease.move(self.trie.root, 0)

    def _compact(self, workspace: Workspace, parents: list[int], least: int = 0) -> None:
        """Drops slots on which no row stands, if they are as many as `least`; recurrent states along with them."""
        places = [*parents, *(prefill.slot for prefill in self.live if prefill.workspace is workspace)]
        kept, tips = workspace.live([*places, *(run.last for run in workspace.runs)])
        dead = workspace.held - len(kept)
        if dead < max(least, not workspace.recurrent):
            return
        if self.in_place or self.make(self._backend.retain_cost(workspace.pack, len(kept)).moment):
            workspace.compact(kept, tips)

    def _tighten(self, workspace: Workspace, spare: int = 0) -> bool:
        """Gives back what a pack has reserved and does not fill, but for `spare` slots; False: no room to copy the rest."""
        slots = workspace.needed + spare
        if workspace.capacity <= slots:
            return True
        moment = self._backend.resize_cost(workspace.pack, slots).moment
        free = max(self.budget, self._allowed) - self.bytes
        if moment > free and (self.in_place or not self.make(moment)):
            return False
        self.peak = max(self.peak, self.bytes + moment)
        workspace.resize(slots)
        return True

    def _refusal(self, workspace: Workspace, count: int, extra: int) -> str:
        slots = workspace.held + count
        needed = workspace.nbytes + self._growth_cost(workspace, slots) + extra
        others = self.bytes - workspace.nbytes
        return (
            f"{slots:,} tokens need {needed:,} bytes of KV while they are worked on, and {others:,} more are in use by "
            f"running requests ({len(self.live)} in all); the budget is {self.budget:,}: raise kv_cache_bytes "
            "(`set_kv_budget`), end another request or shorten the text"
        )


def _held_by_requests(held: int, budget: int) -> str:
    return f"running requests hold {held:,} bytes of KV; a budget of {budget:,} must wait for them, or cancel some"


def _for_vectors(budget: int) -> int:
    return min(budget // VECTOR_SHARE, VECTOR_BYTES)
