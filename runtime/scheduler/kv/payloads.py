"""What the edges of the trie carry: the place of their tokens in a workspace, or a copy that the backend made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runtime.backends.base import Backend
from runtime.backends.stored import Stored

if TYPE_CHECKING:
    from runtime.scheduler.kv.workspace import Workspace


class SlotRun:
    """The last `n` tokens of the path that ends at slot `last` of a workspace: no copy, the keys stand there once."""

    __slots__ = ("last", "n", "workspace")

    def __init__(self, workspace: Workspace, last: int, n: int) -> None:
        self.workspace, self.last, self.n = workspace, last, n


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

    def payload_bytes(self, payload: Any) -> int:
        """Bytes that are free once it is let go."""
        if isinstance(payload, SlotRun):
            return payload.n * self._backend.slot_bytes
        return self._backend.payload_bytes(payload)

    def copy_bytes(self, payload: Any) -> int:
        """Bytes that a copy of it takes beside what is held already: none of a run."""
        return 0 if isinstance(payload, SlotRun) else self._backend.payload_bytes(payload)

    def payload_resumable(self, payload: Any) -> bool:
        """Whether generation can go on after its last token."""
        return isinstance(payload, SlotRun) or self._backend.payload_resumable(payload)

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
