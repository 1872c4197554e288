"""One job on its way through the model: what is in place, what is still to be pushed, which rows are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.info import PromptProgress
from runtime.scheduler.jobs import Job, nothing
from runtime.scheduler.kv.slot_paths import NOTHING
from runtime.scheduler.kv.workspace import Workspace
from runtime.scheduler.prefill.distributions import ChunkLogits, non_finite
from runtime.trie import Lease

CHECKPOINT_TOKENS = 512  # at most so many lie between two states of a recurrent model from which one can go on


@dataclass(slots=True, eq=False)
class Prefill:
    """A job's cursor along its path.

    Args:
        job: Whose path it is.
        workspace: Where it is computed.
        lease: Pins the part of the path that the trie holds.
        slot: The last token that is in place.
        at: Tokens in place.
        first_wanted: Rows from here on are wanted (row i holds the logits after token i).
        last_only: Whether only the last row is wanted.
    """

    job: Job
    workspace: Workspace
    lease: Lease
    slot: int
    at: int
    first_wanted: int
    last_only: bool
    reused: int = 0
    computed: int = 0
    tagged: npt.NDArray[Any] = field(default_factory=lambda: NOTHING)  # the path's tokens as workspaces tell them apart
    tag: int = 0  # what makes such a token of one that follows the path
    served: int = 0  # the round in which it was last pushed
    chunk: ChunkLogits | None = None  # of the last forward
    rows: list[tuple[int, int]] = field(default_factory=list)  # (token index, row of `chunk`), as wanted
    _mark: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def total(self) -> int:
        """Tokens of the path."""
        return len(self.job.ids)

    @property
    def done(self) -> bool:
        """Whether every token is in place."""
        return self.at >= self.total

    def wants(self, index: int) -> bool:
        """Whether the logits after token `index` are wanted."""
        return index >= (self.total - 1 if self.last_only else self.first_wanted)

    @property
    def mark_at(self) -> int:
        """Tokens that were in place when `save` was called."""
        return self._mark[1]

    def tell(self) -> None:
        """Says how far it is."""
        if self.job.on_progress is nothing:
            return
        self.job.on_progress(PromptProgress(self.at, self.total, self.reused, self.computed, self.job.number))

    def go_back(self, slot: int, at: int) -> None:
        """Stands at an earlier place of the path: what lies between is pushed or found again."""
        self.reused -= self.at - at
        self.slot, self.at = slot, at

    def save(self) -> None:
        """Remembers the cursor for `undo`."""
        self._mark = self.slot, self.at, self.reused, self.computed

    def undo(self) -> None:
        """Back to where `save` was called: the batch failed."""
        self.slot, self.at, self.reused, self.computed = self._mark
        self.chunk = None
        self.rows.clear()


@dataclass(slots=True)
class Batch:
    """The new tokens of one forward, as a tree under what stands in the workspace."""

    workspace: Workspace
    base: int  # slots before the call
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    wanted: dict[int, list[tuple[Prefill, int]]] = field(default_factory=dict)  # row -> who wants it, for which token
    last: dict[int, int] = field(default_factory=dict)  # the last row of each job -> for which token
    _fresh: dict[tuple[int, int], int] = field(default_factory=dict)  # (parent, token) -> slot of this batch, twins too

    def advance(self, prefill: Prefill, quota: int, stop: int) -> int:
        """Adds up to `quota` of the job's next tokens before `stop`, sharing rows with jobs that are in the batch already.

        Returns:
            Rows added.
        """
        ids, ws, added = prefill.tagged, self.workspace, 0
        while prefill.at < stop:
            token, wanted = int(ids[prefill.at]), prefill.wants(prefill.at)
            shared = self._fresh.get((prefill.slot, token))  # another job of this batch computes it
            if shared is None and not wanted:
                shared = ws.follow(prefill.slot, token)
            if shared is not None:
                prefill.slot = shared
                prefill.reused += 1
            elif added < quota:
                self.tokens.append(token)
                self.parents.append(prefill.slot)
                place = prefill.slot, token
                prefill.slot = self._fresh[place] = ws.append(*place)
                prefill.computed += 1
                added += 1
            else:
                break
            if wanted:
                self.wanted.setdefault(prefill.slot - self.base, []).append((prefill, prefill.at))
            prefill.at += 1
        if prefill.slot >= self.base:
            self.last[prefill.slot - self.base] = prefill.at - 1
        return added

    def run(self) -> None:
        """Pushes the rows through the model and hands each job its logits.

        Each job's last row is looked at, wanted or not: it has seen all that was computed for the job.

        Raises:
            NonFiniteLogitsError: What was computed for somebody is no numbers, and may have spoilt others'.
        """
        if not self.tokens:
            return
        want = sorted({*self.wanted, *self.last})
        logits = self.workspace.forward(self.tokens, self.parents, want)
        chunk = ChunkLogits(logits, [i for i, row in enumerate(want) if row in self.last])
        bad = chunk.bad_end()
        if bad is not None and self.workspace.broken(self.base):
            raise non_finite(self.last[want[bad]])
        for i, row in enumerate(want):
            for prefill, index in self.wanted.get(row, ()):
                prefill.chunk = chunk
                prefill.rows.append((index, i))


def stops(group: Sequence[Prefill]) -> list[int]:
    """How far each job may go in one forward, in tokens of its path.

    A recurrent model can go on only where a forward has ended. So a path is cut where another one of the group ends inside it,
    for whoever goes on from there, and every `CHECKPOINT_TOKENS`, for whoever comes later.
    """
    if not group[0].workspace.recurrent:
        return [prefill.total for prefill in group]
    found = []
    for prefill in group:
        inside = (end.total for end in group if prefill.at < end.total < prefill.total and _leads(end, prefill))
        found.append(min((prefill.at + CHECKPOINT_TOKENS, prefill.total, *inside)))
    return found


def _leads(end: Prefill, prefill: Prefill) -> bool:
    """Whether a shorter path is the beginning of a longer one."""
    part = prefill.tagged[: end.total]
    return bool(part[-1] == end.tagged[-1]) and np.array_equal(part, end.tagged)
