"""The memory budget: one number of bytes for workspaces, the trie and kept distributions, checked before every allocation.

Memory is freed in this order: idle packs (their tokens are in the trie, except for the latest pack if the trie had no room),
least recently used leaves of the trie, pins of open sessions, slots of packs that no running request uses. For a running
request also: kept distributions, leases of paths that are in a pack as well, spare capacity of other packs. If that is not
enough, running requests alone need more than the budget.
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
from runtime.kv.trie import Node, Trie, Weight, common_prefix
from runtime.scheduler.decode.draft import Drafter
from runtime.scheduler.jobs import Job
from runtime.scheduler.kv.pins import Pins
from runtime.scheduler.kv.workspace import NoRoomError, SlotRun, Tagged, Workspace
from runtime.scheduler.prefill.distributions import LogitsCache
from runtime.scheduler.prefill.prefill import Prefill

GROWTH_SHARE = 16  # a pack grows by this fraction (1/16), and at least by `Backend.growth` slots
EVICT_SHARE = 32  # fraction (1/32) of the budget that is evicted at a time where freeing it copies buffers
STEP = 64  # slots that a pack grows by when memory is short
QUARTER_STEP = 256  # fewest slots that it grows by when a quarter of it is affordable
SPARE_SHARE = 16  # unused capacity of a pack is at most this fraction (1/16) of the budget
VECTOR_SHARE = 32  # kept distributions get this fraction (1/32) of the budget
VECTOR_BYTES = 32 << 20  # and at most this: memory that is written again and again stays in the processor's cache
LEAST_CROWD = 1024  # slots
CROWDED = 4  # a pack is crowded beyond this multiple of the slots that a path needs, or may share
COPY_OUT_EDGES = 64  # most edges that are copied out of a pack at a time
COPY_OUT_BYTES = 64 << 20  # of the copies that are made at a time, approximately
KIN_TOKENS = 4  # a shared prefix of fewer tokens is computed twice where families of paths attend separately


class Payloads:
    """Weighs, splits and exports both kinds of payload; the trie's `PayloadOps`. Owner thread only.

    Attributes:
        in_place: Whether edges refer to slots. For recurrent models, whose state moves on with the path, and for KV stored in
            another precision than it is computed in, the trie holds copies instead.
        tokens: Number of tokens in the runs of all edges; their bytes are in packs.
        released: Workspaces with runs released since the set was last emptied.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.in_place = (
            "recurrent" not in backend.info.attention_kinds and backend.slot_bytes == backend.info.kv_bytes_per_token > 0
        )
        self.tokens = 0
        self.released: set[Workspace] = set()

    def split(self, payload: Any, n: int) -> tuple[Any, Any]:
        if isinstance(payload, SlotRun):
            rest = payload.n - n
            above = payload.workspace.paths.above(payload.last, rest)
            return SlotRun(payload.workspace, above, n), SlotRun(payload.workspace, payload.last, rest)
        return self._backend.split(payload, n)

    def weigh(self, payload: Any) -> Weight:
        """Bytes that its release frees; splitting a run needs no further bytes."""
        if isinstance(payload, SlotRun):
            return Weight(payload.n * self._backend.slot_bytes, 0, resumable=True)
        nbytes = self._backend.payload_bytes(payload)
        return Weight(nbytes, nbytes, self._backend.payload_resumable(payload))

    def owner(self, payload: Any) -> Workspace | None:
        """The workspace of a run."""
        return payload.workspace if isinstance(payload, SlotRun) else None

    def cut(self, payload: Any, n: int) -> tuple[Any, Any]:
        """`split` of an edge's payload. The second part of a run is the run itself."""
        if not isinstance(payload, SlotRun):
            return self._backend.split(payload, n)
        payload.n -= n
        payload.workspace.referenced -= n
        self.tokens -= n
        return SlotRun(payload.workspace, payload.workspace.paths.above(payload.last, payload.n), n), payload

    def extend(self, payload: Any, more: Any) -> bool:
        """Appends a run to an edge's run; False unless `more` follows it in the same workspace."""
        if not isinstance(payload, SlotRun) or not isinstance(more, SlotRun) or payload.workspace is not more.workspace:
            return False
        if payload.workspace.paths.above(more.last, more.n) != payload.last:
            return False
        payload.last, payload.n = more.last, payload.n + more.n
        payload.workspace.referenced += more.n
        self.tokens += more.n
        return True

    def hold(self, payload: Any, node: Node) -> None:
        if isinstance(payload, SlotRun):
            payload.node = node
            payload.workspace.runs.add(payload)
            payload.workspace.referenced += payload.n
            self.tokens += payload.n

    def release(self, payload: Any) -> None:
        """Detaches the payload from its edge: slots that no request uses may be freed."""
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
    """Assigns paths to workspaces: a path goes where most of it is already; unrelated ones get a pack of their own.

    Args:
        backend: Owner of the packs.
        memory: Makes room before packs grow.
        in_place: Whether edges of the trie refer to slots: then a pack stays until none does.

    Attributes:
        crowd: Slots up to which unrelated rows share a pack.
    """

    def __init__(self, backend: Backend, memory: KvBudget, *, in_place: bool) -> None:
        self._in_place = in_place
        self._backend = backend
        self._memory = memory
        self._limit = 128 if backend.together else 8  # most packs at a time: few if each costs a separate forward
        self._kin = KIN_TOKENS if backend.together and backend.apart else 0
        # One forward for all is faster than one for each as long as the attention wasted on unrelated slots (two products over
        # hidden size and layers per slot) is at most half of the cost of a row in the weights.
        info = backend.info
        self.crowd = max(info.parameters // max(4 * info.layers * info.hidden_size, 1), LEAST_CROWD)
        self.tags = Tags(info.kv_fingerprint)  # one pack may hold tokens under different adapters
        self._clock = 0
        self.open: dict[Workspace, None] = {}
        self.busy: dict[Workspace, None] = {}  # workspaces with users
        self.nbytes = 0  # bytes of all workspaces, which update it
        self.closed_bytes = 0  # total since load

    @property
    def idle_bytes(self) -> int:
        """Bytes of packs without users and without runs."""
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
        """The workspace for a path of tagged tokens, and the slots of its prefix there; counts a user until `leave`.

        Args:
            ids: The path.
            alone: Whether the path gets a pack of its own.
            reach: Resumable tokens of the path in the trie: up to there the workspace needs keys only, no recurrent state.
            live: Running jobs. A path that shares a prefix with an unfinished one joins its workspace.
            node: The last node of the path in the trie.
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
        """Counts one user less; frees a pack that is left without users and runs, unless it may be used again."""
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

    def _idle(self) -> list[Workspace]:
        return sorted((w for w in self.open if w.users == 0 and not w.runs), key=lambda w: w.touched)

    def _best_match(self, ids: Tagged, reach: int, node: Node | None) -> tuple[Workspace | None, list[int]]:
        best: Workspace | None = None
        deepest, found = -1, list[int]()
        candidates = self.open
        if self._in_place:  # the workspaces of the path's runs, and those in use
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
        """The workspace of an unfinished path with a long enough shared prefix, or in which sharing costs nothing."""
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
        """Frees a pack without users and without runs."""
        del self.open[workspace]
        self.closed_bytes += workspace.nbytes
        workspace.close()


class KvBudget:
    """The budget of one model; owner thread only.

    Args:
        backend: Weighs packs.
        budget: Bytes for everything together.
        enabled: False: nothing is kept in the trie, and no distributions.

    Attributes:
        peak: The most bytes in use under this budget, including temporary copies.
        live: Jobs with a place in a workspace.
    """

    def __init__(self, backend: Backend, budget: int, *, enabled: bool) -> None:
        self._backend, self._enabled = backend, enabled
        self.budget = budget
        self.peak = 0
        self.live: set[Prefill] = set()
        self.payloads = Payloads(backend)
        self.in_place = self.payloads.in_place
        self.trie = Trie(self.payloads, budget, self.make_room)
        self.vectors = LogitsCache(_for_vectors(budget) if enabled else 0, self.make_room)
        self.pins = Pins(self.trie, self.vectors, budget, self.make_room)
        self.workspaces = Workspaces(backend, self, in_place=self.in_place)
        self.drafter: Drafter | None = None
        self.in_transfer = 0  # bytes on their way to or from the block file
        self.pending = 0  # bytes copied for the trie and not inserted yet
        self._reported_freed = 0  # freed bytes that were reported to the backend
        self._growing: Workspace | None = None  # makes room for itself: its buffers are not reallocated meanwhile
        self._allowed = 0  # bytes that may be in use temporarily while the budget is lowered

    @property
    def bytes(self) -> int:
        drafts = 0 if self.drafter is None else self.drafter.nbytes
        moving = self.pending + self.in_transfer
        held = self.workspaces.nbytes + self.trie.bytes - self.payloads.tokens * self._backend.slot_bytes
        return held + self.vectors.bytes + self.pins.nbytes + moving + drafts

    def replace_with_run(self, node: Node, run: SlotRun) -> None:
        """Replaces an edge's payload by its copy in a workspace, unless it is a run in a pack that stays and is not crowded."""
        held = node.payload
        if not self.in_place or not node.attached or run.workspace.retired:  # a retired pack is freed soon
            return
        few = CROWDED * max(self.workspaces.crowd, len(node.tokens))
        if not isinstance(held, SlotRun) or held.workspace.retired or held.workspace.held > few:
            self.trie.replace(node, run)

    def make_room(self, size: int) -> bool:
        """Frees `size` bytes for data to keep: idle packs, old leaves and then old pins.

        Returns:
            False if that would not be enough; then nothing was freed.
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
        """Evicts the trie's oldest leaves and frees their slots until at most `target` bytes are in use.

        Returns:
            False if it is not enough; if that was known before, nothing was freed.
        """
        # bytes of packs without runs; running requests use some of them
        slack = self.workspaces.nbytes - self.payloads.tokens * self._backend.slot_bytes
        lacking = self.bytes - target - self.trie.evictable_bytes - slack
        if lacking > 0 and not self.pins.make_evictable(lacking):
            return False
        self._close_empty()
        spared: Workspace | None = None  # its buffers cannot be reallocated before other memory is free
        last = False
        while (before := self.bytes) > target:
            evicted = self.trie.evict(before - target, spared=spared)
            self._close_empty()
            if self.bytes > target and evicted:  # slots of a pack in use: evict more, so that buffers are copied seldom
                evicted += self.trie.evict(self.budget // EVICT_SHARE - evicted, spared=spared)
                self._close_empty()
            refused = self._shrink(target)
            if self._growing is not None and self.bytes == before:  # `_evict_and_compact` handles this case
                break
            if not evicted and (last or spared is None):
                break
            last = last or not evicted
            spared = None if last else refused
        return self.bytes <= target

    def _close_empty(self) -> None:
        """Frees released packs without runs and users."""
        for workspace in self.payloads.released:
            if not workspace.runs and not workspace.users and workspace in self.workspaces.open:
                self.workspaces.close(workspace)
        self.payloads.released &= self.workspaces.open.keys()

    def _shrink(self, target: int) -> Workspace | None:
        """Compacts packs and shrinks their buffers, the emptiest first, until `target` bytes are in use.

        Returns:
            The first pack whose buffers could not be reallocated for lack of memory.
        """
        if self.bytes <= target:
            return None
        refused: Workspace | None = None
        slot = max(self._backend.slot_bytes, 1)
        users = Counter(prefill.workspace for prefill in self.live)  # without a request that is being placed
        sizes = {ws: ws.nbytes - ws.referenced * slot for ws in self.workspaces.open if ws.users == users[ws]}
        if self._growing is not None:
            sizes.pop(self._growing, None)
        for workspace in sorted(sizes, key=lambda ws: -sizes[ws]):
            if self.bytes <= target or sizes[workspace] < slot:
                break
            with suppress(MemoryBudgetError):  # of the device: the pack stays as it is
                self._compact(workspace, [])
                if not self._tighten(workspace):
                    refused = refused or workspace
        return refused

    def hint(self, workspace: Workspace, count: int) -> None:
        """Announces `count` slots beyond the capacity: grows the pack at once if nothing in use must be freed.

        By exactly these slots if memory is short; otherwise `grow` adds spare ones.
        """
        if count <= self._backend.growth and 2 * self.bytes <= self.budget:
            return
        growing, self._growing = self._growing, workspace
        try:
            if self.in_place or not self._grow_without_evicting(workspace, count, 0):
                self._fit_slots(workspace, workspace.held + count, 0)
        except MemoryBudgetError:  # of the device: `grow` asks again for the slots needed
            pass
        finally:
            self._growing = growing

    def grow(self, workspace: Workspace, count: int, *, states: int, parents: Iterable[int]) -> None:
        """Makes room for `count` more slots and `states` more recurrent states in a pack.

        Raises:
            NoRoomError: Running requests alone need more than the budget; no path has changed.
        """
        extra, parents = states * self._backend.state_bytes, list(parents)
        if not extra and workspace.held + count <= workspace.capacity and self.bytes <= self.budget:
            return
        growing, self._growing = self._growing, workspace
        try:
            lacks = workspace.held + count > workspace.capacity
            if lacks and not self.in_place and workspace.held > CROWDED * self.workspaces.crowd:  # mostly unused slots
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
        """Bytes left for one more path after the prefill of all running jobs, if all else is freed.

        Args:
            before: Only jobs admitted before the job of this number count as running.
        """
        live = [prefill for prefill in self.live if before is None or prefill.job.order < before]
        unread: dict[Job, int] = {}  # by job: a restored one has two cursors temporarily
        for prefill in live:
            if prefill.at < prefill.total:
                unread[prefill.job] = min(prefill.total - prefill.at, unread.get(prefill.job, prefill.total))
        return self.budget - self._live_bytes(live) - sum(map(self.need, unread.values()))

    def _live_bytes(self, live: Iterable[Prefill]) -> int:
        """Bytes that cannot be freed: of these jobs' paths, of transfers, of the draft model."""
        places: dict[Workspace, list[int]] = {}
        for prefill in live:
            places.setdefault(prefill.workspace, []).append(prefill.slot)
        taken = self.in_transfer + (0 if self.drafter is None else self.drafter.nbytes)
        for workspace, slots in places.items():
            kept, tips = workspace.live(slots)
            taken += len(kept) * self._backend.slot_bytes + len(tips) * self._backend.state_bytes
        return taken

    def need(self, tokens: int) -> int:
        """Bytes for `tokens` more tokens of a path."""
        return tokens * self._backend.slot_bytes + self._backend.state_bytes

    def lacking(self, tokens: int) -> int:
        """The `spare` bytes at which a path of `tokens` tokens, which has just found no room, is tried again."""
        needed, spare = self.need(tokens), self.spare()
        return needed if spare < needed else spare + self.need(STEP)

    @property
    def plenty(self) -> bool:
        """Whether every running job has room even if no buffer shrinks and no lease ends; cheaper than `spare`."""
        held = self.bytes - self.trie.bytes + self.trie.leased_bytes - (0 if self.in_place else self.workspaces.idle_bytes)
        for prefill in self.live:
            if (left := len(prefill.job.ids) - prefill.at) > 0:
                held += left * self._backend.slot_bytes + self._backend.state_bytes
        return held <= self.budget

    def lend(self, size: int) -> int:
        """Frees up to `size` bytes of unused memory for a temporary copy; returns the bytes available, at most `size`."""
        if self.make_room(size):
            return size
        free = max(self.budget - self.bytes, 0)
        self.peak = max(self.peak, self.bytes + free)
        return free

    def free_unused(self) -> None:
        """Frees idle packs, kept distributions, pins and all evictable leaves, because the device is full."""
        self.workspaces.drop_idle()
        self.vectors.clear()
        self.pins.release_all()
        self.trie.evict(self.trie.evictable_bytes)
        self._close_empty()
        self._backend.reclaim()

    def account(self) -> None:
        """After each step: compacts mostly empty packs, drops idle packs, and reports freed bytes to the backend."""
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
        """Closes or compacts packs with released runs; one large pack per call."""
        self._close_empty()
        while self.payloads.released:
            workspace = self.payloads.released.pop()
            if workspace.held > max(2 * workspace.referenced, STEP):
                with suppress(MemoryBudgetError):  # of the device: the pack stays as it is
                    self._compact(workspace, [], least=workspace.held // 2)
                    if not workspace.users:
                        self._tighten(workspace)
                return

    def copy_out(self, workspace: Workspace) -> None:
        """Copies edges that no running request uses out of a pack and frees their slots, if the budget has room.

        A token in a branched pack reads all its slots, behind a mask: slots of earlier answers cost each token of the next
        one. A single path needs no mask.

        Args:
            workspace: Used by decoding requests only.
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
        # twice: another answer may leave one of these edges in the middle, and splitting a copy copies it again
        size = copies + self._backend.resize_cost(workspace.pack, len(kept)).moment
        room = bool(leaving) and 2 * size <= max(self.budget - self.bytes, self.budget // EVICT_SHARE) and self.make_room(size)
        for node in leaving if room else ():
            if node.attached:  # making room may have evicted it, or moved its slots
                run = node.payload
                self.trie.replace(node, self._backend.take(workspace.pack, workspace.chain(run.last, run.n)))
        self._compact(workspace, [])
        if workspace.held < before and (workspace.capacity > 2 * workspace.needed or 2 * self.bytes > self.budget):
            self._tighten(workspace, max(workspace.needed // GROWTH_SHARE, self._backend.growth))  # the answer grows further

    def set_budget(self, budget: int) -> None:
        """Sets the budget in bytes, evicts down to it and resets the peak.

        Raises:
            MemoryBudgetError: Running requests hold more.
        """
        in_use = self.workspaces.nbytes - self.workspaces.idle_bytes
        least = self._live_bytes(self.live) if self.in_place else in_use
        if least > budget:  # before anything is freed
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
        if not self.make_room(0):
            self.vectors.clear()
            self.make_room(0)
        self.peak = self.bytes
        self._backend.set_kv_budget(budget)
        self.account()

    # ---- growing ----------------------------------------------------------------------------------------------------

    def growth_cost(self, workspace: Workspace, slots: int) -> int:
        """Peak bytes while a pack grows to `slots`."""
        if slots <= workspace.capacity:
            return 0
        return self._backend.resize_cost(workspace.pack, slots).moment

    def _fit_slots(self, workspace: Workspace, slots: int, extra: int) -> bool:
        """Grows a pack to at least `slots` and frees `extra` further bytes; False without room."""
        if not self.make_room(self.growth_cost(workspace, slots) + extra):
            return False
        if slots > workspace.capacity:
            workspace.resize(slots)
        return True

    def _grow_without_evicting(self, workspace: Workspace, count: int, extra: int) -> bool:
        """Grows a pack within the free bytes: by doubling, by a quarter, by some spare slots, or by `count`."""
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
        """Slots that a pack grows by beyond its need when memory is short."""
        return min(STEP, self.budget // SPARE_SHARE // max(self._backend.slot_bytes, 1))

    def _release_steps(self, workspace: Workspace, parents: list[int], count: int) -> Iterator[None]:
        """Frees memory for a running request, step by step; the caller tries again after each step."""
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
        """Evicts leaves, some with slots in this pack, and compacts it in place, which needs no further memory."""
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
        """Releases the leases of running jobs: their KV is in their packs too, and is published again later."""
        for prefill in self.live:
            if prefill.lease.node.attached and prefill.lease.length > 0:
                prefill.lease.move(self.trie.root, 0)

    def _compact(self, workspace: Workspace, parents: list[int], least: int = 0) -> None:
        """Drops unused slots and their recurrent states, if there are at least `least`."""
        places = [*parents, *(prefill.slot for prefill in self.live if prefill.workspace is workspace)]
        kept, tips = workspace.live([*places, *(run.last for run in workspace.runs)])
        dead = workspace.held - len(kept)
        if dead < max(least, not workspace.recurrent):
            return
        if self.in_place or self.make_room(self._backend.retain_cost(workspace.pack, len(kept)).moment):
            workspace.compact(kept, tips)

    def _tighten(self, workspace: Workspace, spare: int = 0) -> bool:
        """Shrinks a pack's buffers to the needed slots and `spare` more; False without room for the copy."""
        slots = workspace.needed + spare
        if workspace.capacity <= slots:
            return True
        moment = self._backend.resize_cost(workspace.pack, slots).moment
        free = max(self.budget, self._allowed) - self.bytes
        if moment > free and (self.in_place or not self.make_room(moment)):
            return False
        self.peak = max(self.peak, self.bytes + moment)
        workspace.resize(slots)
        return True

    def _refusal(self, workspace: Workspace, count: int, extra: int) -> str:
        slots = workspace.held + count
        needed = workspace.nbytes + self.growth_cost(workspace, slots) + extra
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
