"""One backend pack, and what stands in it: a tree of tokens that mirrors the part of the trie in work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from runtime.backends.base import ROOT, Backend
from runtime.errors import MemoryBudgetError
from runtime.records import Int32
from runtime.trie import Lease, Namespace

Slots = npt.NDArray[np.int64]


class Workspace:
    """Slots by token path. Several jobs share one, so that a common prefix stands there once.

    A slot that was computed again for its logits (a *twin*) is not registered: paths lead to the first.
    """

    def __init__(self, backend: Backend, namespace: Namespace, give_way: Callable[[], None]) -> None:
        self._backend = backend
        self._give_way = give_way
        self.namespace = namespace
        self.pack = backend.open_pack()
        self.users = 0  # jobs that hold slots here
        self.retired = False  # takes no newcomers
        self.touched = 0  # logical time of the last use
        self._children: dict[tuple[int, int], int] = {}
        self._parents: list[int] = []
        self._always_resumable = "recurrent" not in backend.info.attention_kinds

    @property
    def size(self) -> int:
        """Slots in use."""
        return len(self._parents)

    @property
    def nbytes(self) -> int:
        """Bytes of the working buffers."""
        return self._backend.pack_bytes(self.pack)

    def find(self, ids: Int32, limit: int) -> tuple[int, int]:
        """The deepest slot on the path, within `limit` tokens, from which a token can be appended, and its depth."""
        slot, best, depth = ROOT, ROOT, 0
        for at, token in enumerate(ids[:limit].tolist()):
            found = self._children.get((slot, token))
            if found is None:
                break
            slot = found
            if self.resumable(slot):
                best, depth = slot, at + 1
        return best, depth

    def follow(self, slot: int, token: int) -> int | None:
        """The slot of `token` after `slot`, if it stands here and a token can be appended after it."""
        found = self._children.get((slot, token))
        return found if found is not None and self.resumable(found) else None

    def resumable(self, slot: int) -> bool:
        """Whether a token can be appended after `slot`."""
        return self._always_resumable or self._backend.resumable(self.pack, slot)

    def load(self, lease: Lease, slot: int, depth: int) -> tuple[int, int]:
        """Copies what the lease holds beyond `depth` under `slot`; the last slot and its depth."""
        at = 0
        for node in lease.node.path():
            start, at = at, at + len(node.tokens)
            if at <= depth:
                continue
            payload = node.payload if start >= depth else self._backend.split(node.payload, depth - start)[1]
            slots = self._backend.load(self.pack, payload, slot)
            for token, loaded in zip(node.tokens[max(depth - start, 0) :].tolist(), slots.tolist(), strict=True):
                self._register(slot, token, loaded)
                slot = loaded
        return slot, max(at, depth)

    def append(self, slot: int, token: int) -> int:
        """Reserves the slot that the next `forward` will fill. `rollback` undoes it."""
        fresh = len(self._parents)
        self._register(slot, token, fresh)
        return fresh

    def rollback(self, size: int) -> None:
        """Forgets reserved slots beyond `size`."""
        del self._parents[size:]
        self._children = {key: slot for key, slot in self._children.items() if slot < size}

    def chain(self, slot: int, count: int) -> Slots:
        """The last `count` slots of the path that ends at `slot`, in order."""
        slots = np.empty(count, np.int64)
        for at in range(count - 1, -1, -1):
            slots[at] = slot
            slot = self._parents[slot]
        return slots

    def forward(self, tokens: Sequence[int], parents: Sequence[int], want: Sequence[int]) -> npt.NDArray[np.float32]:
        """Fills the reserved slots: raw logits ``(len(want), vocab) float32``."""
        as_int = np.int64
        arrays = np.array(tokens, as_int), np.array(parents, as_int), np.array(want, as_int)
        with suppress(MemoryBudgetError):  # left before the second try: its traceback would hold what the first computed
            return self._backend.forward(self.pack, *arrays)[1]
        self._give_way()  # the device is full: what nobody uses goes, then once more
        return self._backend.forward(self.pack, *arrays)[1]

    def close(self) -> None:
        """Frees the buffers."""
        self._backend.close(self.pack)
        self._children.clear()
        self._parents.clear()

    def _register(self, slot: int, token: int, fresh: int) -> None:
        self._children.setdefault((slot, token), fresh)
        self._parents.append(slot)


class Workspaces:
    """The few packs in use. A path goes where most of it stands already; strangers get a pack of their own.

    Args:
        backend: Owner of the packs.
        give_way: Frees what nobody uses, when a forward finds no memory.
        limit: Packs kept at a time.
        crowd: Slots up to which unrelated rows share a pack (one forward for all beats the wasted attention).
    """

    def __init__(self, backend: Backend, give_way: Callable[[], None], *, limit: int = 8, crowd: int = 1024) -> None:
        self._backend = backend
        self._give_way = give_way
        self._limit = limit
        self._crowd = crowd
        self._clock = 0
        self.open: list[Workspace] = []

    @property
    def nbytes(self) -> int:
        """Bytes of all working buffers."""
        return sum(w.nbytes for w in self.open)

    def place(self, namespace: Namespace, ids: Int32, *, alone: bool = False) -> Workspace:
        """The workspace for a path; counts a user, `leave` takes it back."""
        self._clock += 1
        chosen = None if alone else self._fitting(namespace, ids)
        if chosen is None:
            if len(self.open) >= self._limit:
                self.drop_idle(keep=self._limit - 1)
            chosen = Workspace(self._backend, namespace, self._give_way)
            self.open.append(chosen)
        chosen.users += 1
        chosen.touched = self._clock
        return chosen

    def leave(self, workspace: Workspace, *, drop: bool = False) -> None:
        """One user less; an idle pack that holds much more than one path is freed."""
        workspace.users -= 1
        if workspace.users == 0 and (drop or workspace.retired or workspace.size > 4 * self._crowd):
            self._close(workspace)

    def drop_idle(self, keep: int = 0) -> None:
        """Frees idle packs, least recently used first, until `keep` packs are left or none is idle."""
        idle = sorted((w for w in self.open if w.users == 0), key=lambda w: w.touched)
        for workspace in idle[: max(len(self.open) - keep, 0)]:
            self._close(workspace)

    def retire(self) -> None:
        """Packs in use take no newcomers any more; they are freed when their last user leaves."""
        for workspace in self.open:
            workspace.retired = True

    def _fitting(self, namespace: Namespace, ids: Int32) -> Workspace | None:
        best: tuple[int, Workspace] | None = None
        for workspace in self.open:
            if workspace.namespace != namespace or workspace.retired:
                continue
            depth = workspace.find(ids, len(ids))[1]
            fits = 2 * depth >= len(ids) or workspace.size - depth + len(ids) <= self._crowd
            if fits and (best is None or depth > best[0]):
                best = depth, workspace
        return best[1] if best else None

    def _close(self, workspace: Workspace) -> None:
        self.open.remove(workspace)
        workspace.close()
