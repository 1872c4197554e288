"""The few packs in use, and what the edges of the trie carry: places in them, or copies that the backend made."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Protocol

from runtime.adapters.stacks import Tags
from runtime.backends.base import Backend
from runtime.backends.stored import Stored
from runtime.info import ModelInfo
from runtime.scheduler.kv.workspace import Memory, SlotRun, Tagged, Workspace
from runtime.trie.tree import Node, Weight, common_prefix

LEAST_CROWD = 1024  # slots
CROWDED = 4  # times as much as it needs itself, or may share, is what a path would attend to behind a mask
KIN_TOKENS = 4  # a common beginning of fewer tokens is computed twice where families attend apart


def crowd_of(info: ModelInfo) -> int:
    """Slots up to which unrelated rows share a pack.

    One forward for all beats one for each as long as the attention that is wasted on strangers (two products over hidden
    size and layers per slot) is at most half of what a row costs in the weights.
    """
    return max(info.parameters // max(4 * info.layers * info.hidden_size, 1), LEAST_CROWD)


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
        """The same of one that an edge carries; both are carried from now on. Of a run, the rest is the run itself."""
        if not isinstance(payload, SlotRun):
            return self._backend.split(payload, n)
        payload.n -= n
        upper = SlotRun(payload.workspace, payload.workspace.paths.above(payload.last, payload.n), n)
        payload.workspace.runs.add(upper)
        return upper, payload

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

    def hold(self, payload: Any) -> None:
        """An edge carries it from now on."""
        if isinstance(payload, SlotRun):
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
        """Tokens `start` to `stop` as plain arrays; see `runtime.backends.base.Backend.export`."""
        if isinstance(payload, SlotRun):
            run = payload.workspace
            return self._backend.export(run.take(run.chain(payload.last, payload.n)[start:stop]))
        return self._backend.export(payload, start, stop)


class Placed(Protocol):
    """A path on its way into the model."""

    workspace: Workspace
    tagged: Tagged
    at: int  # tokens in place
    total: int


class Workspaces:
    """A path goes where most of it stands already; strangers get a pack of their own.

    Args:
        backend: Owner of the packs.
        memory: Asked before packs grow.
        in_place: Whether edges of the trie refer to slots: then a pack stays until none does.

    Attributes:
        crowd: Slots up to which unrelated rows share a pack.
    """

    def __init__(self, backend: Backend, memory: Memory, *, in_place: bool) -> None:
        self._in_place = in_place
        self._backend = backend
        self._memory = memory
        self._limit = 128 if backend.together else 8  # packs kept at a time: few where each costs a forward of its own
        self._kin = KIN_TOKENS if backend.together and backend.apart else 0
        self.crowd = crowd_of(backend.info)
        self.tags = Tags(backend.info.kv_fingerprint)  # one pack may hold tokens under different adapters
        self._clock = 0
        self.open: dict[Workspace, None] = {}
        self.busy: dict[Workspace, None] = {}  # those that requests use
        self.nbytes = 0  # of all working buffers; kept by `memory`
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
        live: Collection[Placed] = (),
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
        chosen, trail = (None, []) if alone else self._fitting(ids, reach, node)
        if chosen is None and not alone:
            chosen = self._joined(ids, live)
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

    def free(self, size: int, *, spare_sole: bool = False) -> int:
        """Frees idle packs, least recently used first, until `size` bytes are free or none is idle.

        Args:
            size: Bytes.
            spare_sole: Leaves the pack that was used last, if it alone holds some tokens.

        Returns:
            The bytes freed.
        """
        freed, latest = 0, max((workspace.touched for workspace in self.open), default=0)
        for workspace in self._idle():
            if freed >= size or (spare_sole and workspace.sole and workspace.touched == latest):
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

    def _fitting(self, ids: Tagged, reach: int, node: Node | None) -> tuple[Workspace | None, list[int]]:
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

    def _joined(self, ids: Tagged, live: Iterable[Placed]) -> Workspace | None:
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
