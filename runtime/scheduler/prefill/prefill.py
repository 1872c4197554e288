"""Prefill: a job's cursor along its path, the batch of new tokens for one forward, and how many these are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from runtime.info import PromptProgress
from runtime.kv.trie import Lease
from runtime.scheduler.jobs import Job
from runtime.scheduler.kv.workspace import NOTHING, PartialForward, Workspace, forward
from runtime.scheduler.prefill.distributions import ChunkLogits, non_finite

CHUNK_SECONDS = 0.08  # a prefill chunk while another request waits for a token
ALONE_SECONDS = 0.4  # a prefill chunk while none does
LONG_SECONDS = 1.5  # the longest chunk that other jobs can interrupt, or of background work
QUIET_SHARE = 0.1  # uninterruptible background forwards take at most this part of the time without other work
MIN_CHUNK = 32  # tokens; also of the first chunk on a slow machine, where a larger one may take minutes
CHECKPOINT_TOKENS = 512  # most tokens between two resumable states of a recurrent model


class _InWorkspace(Protocol):
    @property
    def workspace(self) -> Workspace: ...


Item = TypeVar("Item", bound=_InWorkspace)


@dataclass(slots=True, eq=False)
class Prefill:
    """A job's cursor along its path.

    Args:
        job: Owner of the path.
        workspace: The workspace that computes it.
        lease: Pins the path's part in the trie.
        slot: The slot of the last token in place.
        at: Tokens in place.
        first_wanted: Rows from here on are wanted (row i holds the logits after token i).
        last_only: Whether only the last row is wanted.
        total: Tokens of the path.
    """

    job: Job
    workspace: Workspace
    lease: Lease
    slot: int
    at: int
    first_wanted: int
    last_only: bool
    total: int
    reused: int = 0
    computed: int = 0
    tagged: npt.NDArray[Any] = field(default_factory=lambda: NOTHING)  # the path's tokens, tagged with their adapter stacks
    tag: int = 0  # tag of the tokens that follow the path
    served: int = 0  # the last round in which it was pushed
    chunk: ChunkLogits | None = None  # logits of the last forward
    rows: list[tuple[int, int]] = field(default_factory=list)  # wanted rows: (token index, row of `chunk`)
    refused: int = 0  # depth up to which refused tokens were logged
    mark: tuple[int, int, int, int] = (0, 0, 0, 0)  # `slot`, `at`, `reused` and `computed` before the last forward

    @property
    def progress(self) -> PromptProgress:
        return PromptProgress(self.at, self.total, self.reused, self.computed, self.job.number)

    def undo(self) -> None:
        """Returns to the mark after a failed batch."""
        self.slot, self.at, self.reused, self.computed = self.mark
        self.chunk = None
        self.rows.clear()


@dataclass(slots=True)
class Portion:
    """The new tokens of one workspace in a forward, as a tree under its slots."""

    workspace: Workspace
    base: int  # number of the first new slot
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    wanted: dict[int, list[tuple[Prefill, int]]] = field(default_factory=dict)  # row -> (prefill, token index)
    last: dict[int, int] = field(default_factory=dict)  # the last row of each job -> token index
    fresh: dict[tuple[int, int], int] = field(default_factory=dict)  # (parent, token) -> slot of this batch, twins too


@dataclass(slots=True, eq=False)
class Batch:
    """The new tokens of one forward, by workspace."""

    most_rows: int  # limit of wanted rows of logits, approximately
    block_bytes: int  # see `LogitsCache`
    portions: dict[Workspace, Portion] = field(default_factory=dict)
    size: int = 0  # tokens
    rows: int = 0  # wanted rows of logits so far

    def advance(self, prefill: Prefill, quota: int, stop: int) -> None:
        """Adds up to `quota` of the job's next tokens before `stop`, sharing rows with other jobs of the batch."""
        ids, ws, added = prefill.tagged, prefill.workspace, 0
        first_wanted = prefill.total - 1 if prefill.last_only else prefill.first_wanted
        portion = self.portions.get(ws)
        if portion is None:
            portion = self.portions[ws] = Portion(ws, ws.size)
        slot, stood = prefill.slot, prefill.slot  # its slot, and the slot at which the same tokens were found earlier, if any
        own = False  # whether it has just appended its slot, which has no successors then
        while prefill.at < stop:
            token, wanted = int(ids[prefill.at]), prefill.at >= first_wanted
            there = None if own or (wanted and ws.recurrent) else ws.follow(stood, token)
            if slot != stood and (there is None or there >= portion.base):
                # continues at the earlier slots of tokens that were pushed again for their rows
                portion.last[slot - portion.base] = prefill.at - 1
                slot = stood
            place = slot, token
            found = None if own else portion.fresh.get(place)  # another job of this batch computes it
            if found is None and not wanted:
                found = there
            if found is not None:
                prefill.reused += 1
            elif added < quota and not (wanted and self.rows >= self.most_rows):
                portion.tokens.append(token)
                portion.parents.append(slot)
                found = portion.fresh[place] = ws.paths.add(*place)
                prefill.computed += 1
                added += 1
                own = there is None
            else:
                break
            if wanted:
                jobs = portion.wanted.setdefault(found - portion.base, [])
                self.rows += not jobs
                jobs.append((prefill, prefill.at))
            prefill.at += 1
            slot, stood = found, found if there is None else there
        if slot >= portion.base:
            portion.last[slot - portion.base] = prefill.at - 1
        prefill.slot = slot if prefill.at == prefill.total else stood
        self.size += added

    def rollback(self) -> None:
        """Removes the reserved slots, or those of a forward that is not finite."""
        for portion in self.portions.values():
            portion.workspace.rollback(portion.base)

    def run(self, interrupted: Callable[[], bool] | None = None) -> None:
        """Runs the forward and gives each job its logits.

        Args:
            interrupted: Called by the backend between two layers; True interrupts the forward.

        Raises:
            ForwardInterrupted: `interrupted` returned True.
            NonFiniteLogitsError: A computed slot holds NaN or infinity, and may have spoilt others in its workspace.
        """
        calls: list[PartialForward] = []
        rows: list[tuple[Portion, int]] = []  # portion and token of each row of logits
        ends: dict[int, bool] = {}
        unfinished: list[int] = []
        for portion in self.portions.values():
            if portion.tokens:
                want = sorted({*portion.wanted, *portion.last})  # last rows show whether a job's tokens are finite
                calls.append(PartialForward(portion.workspace, portion.tokens, portion.parents, want))
                for row in want:
                    if row in portion.last:
                        place = len(rows)
                        for prefill, index in portion.wanted.get(row, ()):
                            if index + 1 == prefill.total:
                                ends[place] = prefill.job.whole or ends.get(place, False)
                        if place not in ends:
                            unfinished.append(place)
                    rows.append((portion, row))
        if not calls:
            return
        backend = calls[0].workspace.backend
        backend.interrupted = interrupted
        try:
            computed = forward(calls, backend.forward_on_device if backend.on_device else backend.compute)
        finally:
            backend.interrupted = None
        chunk = ChunkLogits(computed, ends, unfinished, self.block_bytes)
        for i in sorted(chunk.broken):
            portion, row = rows[i]
            if portion.workspace.broken(portion.base):
                raise non_finite(portion.last[row])
        for i, (portion, row) in enumerate(rows):
            for prefill, index in portion.wanted.get(row, ()):
                prefill.chunk = chunk
                prefill.rows.append((index, i))


def by_workspace(items: Sequence[Item]) -> list[list[Item]]:
    """Groups items by their workspace."""
    groups: dict[Workspace, list[Item]] = {}
    for item in items:
        groups.setdefault(item.workspace, []).append(item)
    return list(groups.values())


def stop_of(prefill: Prefill, group: Sequence[Prefill]) -> int:
    """The path length up to which a job of a recurrent model may go in one forward.

    Such a model resumes only where a forward has ended. So a path is cut where a path of the group ends inside it, for jobs
    that resume there, and every `CHECKPOINT_TOKENS`, for later ones.
    """
    inside = (end.total for end in group if prefill.at < end.total < prefill.total and _leads(end, prefill))
    return min((prefill.at + CHECKPOINT_TOKENS, prefill.total, *inside))


def _leads(end: Prefill, prefill: Prefill) -> bool:
    """Whether the path of `end` is a prefix of that of `prefill`."""
    part = prefill.tagged[: end.total]
    return bool(part[-1] == end.tagged[-1]) and np.array_equal(part, end.tagged)


class Pace:
    """Sizes forwards: the number of tokens that take a given time at the measured speed.

    Args:
        speed: Tokens per second, an estimate before the first chunk.
        most: Upper limit of tokens.
    """

    def __init__(self, speed: float, most: int) -> None:
        self._speed, self._most = speed, most
        self.measured = False  # whether the speed was measured
        self.urgent = time.monotonic()  # time of the last work other than background work

    def busy(self) -> None:
        """Notes that there is work other than background work."""
        self.urgent = time.monotonic()

    def chunk(self, seconds: float) -> int:
        """Tokens of a forward that takes `seconds`."""
        return min(max(int(self._speed * seconds), MIN_CHUNK), self._most)

    def background(self) -> int:
        """Tokens of an uninterruptible background forward: more, the longer there was no other work."""
        quiet = time.monotonic() - self.urgent
        return self.chunk(min(max(QUIET_SHARE * quiet, ALONE_SECONDS), LONG_SECONDS))

    def seconds(self, tokens: int) -> float:
        """The expected duration of a forward of `tokens` tokens."""
        return tokens / self._speed

    def measure(self, tokens: int, seconds: float) -> None:
        """Updates the speed by the duration of a forward."""
        if tokens >= MIN_CHUNK // 2:
            self._speed += 0.5 * (tokens / max(seconds, 1e-6) - self._speed)
            self.measured = True


def preemptible(job: Job, tokens: int, other: Job) -> bool:
    """Whether a running job of `tokens` tokens may be preempted for a new one, `other`.

    A less urgent job may; an equally urgent one only for a shorter one, and only once.
    """
    if job.priority != other.priority:
        return job.priority > other.priority
    return not job.parks and tokens > len(other.ids) + other.extra_tokens
