"""The few packs in use."""

from __future__ import annotations

from collections.abc import Iterable

from runtime.adapters.stacks import Tags
from runtime.backends.base import Backend
from runtime.info import ModelInfo
from runtime.scheduler.kv.payloads import SlotRun
from runtime.scheduler.kv.workspace import Memory, Tagged, Workspace
from runtime.trie.tree import Node, common_prefix

LEAST_CROWD = 1024  # slots
KIN_TOKENS = 4  # a common beginning of fewer tokens is computed twice where families attend apart


def crowd_of(info: ModelInfo) -> int:
    """Slots up to which unrelated rows share a pack.

    One forward for all beats one for each as long as the attention that is wasted on strangers (two products over hidden
    size and layers per slot) is at most half of what a row costs in the weights.
    """
    return max(info.parameters // max(4 * info.layers * info.hidden_size, 1), LEAST_CROWD)


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
        coming: Iterable[tuple[Workspace, Tagged]] = (),
        node: Node | None = None,
    ) -> tuple[Workspace, list[int]]:
        """The workspace for a path of tagged tokens, and the slots of those that stand there; counts a user.

        `leave` takes it back.

        Args:
            ids: The path.
            alone: In a pack of its own.
            reach: Tokens of it after which one can go on from what the trie holds: so far it is enough that keys stand there.
            coming: Where other paths are on their way into the model. Who begins with the same tokens goes there too.
            node: The edge at which the trie's part of the path ends.
        """
        self._clock += 1
        chosen, trail = (None, []) if alone else self._fitting(ids, reach, node)
        if chosen is None and not alone:
            chosen = self._joined(ids, coming)
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
            workspace.renumber()
            return
        if drop or workspace.retired or self._in_place or workspace.held > 4 * self.crowd:
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

    def crowded(self, workspace: Workspace, length: int) -> bool:
        """Whether a path of so many tokens would attend, behind a mask, to many times as much beside it."""
        return workspace.retired or workspace.held > 4 * max(self.crowd, length)

    def _candidates(self, node: Node | None) -> Iterable[Workspace]:
        """Where a path may stand: where the trie says, and wherever requests are at work."""
        if not self._in_place:
            return self.open
        found: dict[Workspace, None] = {}
        while node is not None and node.parent is not None:
            if isinstance(node.payload, SlotRun):
                found[node.payload.workspace] = None
            node = node.parent
        return found | self.busy

    def _fitting(self, ids: Tagged, reach: int, node: Node | None) -> tuple[Workspace | None, list[int]]:
        best: Workspace | None = None
        deepest, found = -1, list[int]()
        for workspace in self._candidates(node):
            if workspace.retired or (self._in_place and self.crowded(workspace, len(ids))):
                continue
            trail = workspace.trail(ids)
            depth = max(workspace.standing(trail, len(trail))[1], min(len(trail), reach))
            fits = 2 * depth >= len(ids) or (depth >= self._kin and workspace.held - depth + len(ids) <= self.crowd)
            if fits and depth > deepest:
                best, deepest, found = workspace, depth, trail
        return best, found

    def _joined(self, ids: Tagged, coming: Iterable[tuple[Workspace, Tagged]]) -> Workspace | None:
        """Where a path with the same beginning is on its way, if it is worth while to share that, or costs nothing."""
        filled: dict[Workspace, int] = {}
        common: dict[Workspace, int] = {}
        for workspace, path in coming:
            if not workspace.retired:
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
