"""Chains of new tokens side by side in one forward, for models that take no tree at once.

A recurrent layer carries a state from token to token, so a row must hold one chain and nothing else: no padding, no
branch. Chains that start side by side are therefore cut where the shortest of them ends: what is common to all is one
forward with a row for each, what is left goes on in fewer rows. No token is padding.

An attention layer beside it looks into the pack: either all rows into its own buffers, each through its part of a mask
(`Shared`), or each into a copy of its own path (`Bucket.path`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runtime.backends.base import ROOT
from runtime.backends.packs.tree import Bool, Float32, Int64, SlotTree, State, Step

UNBOUNDED = 1 << 60  # slots: the capacity of a pack without keys and values
SHORT_PAST = 256  # tokens; rows whose pasts differ by less than that always go together


@dataclass(frozen=True, slots=True)
class Shared:
    """What rows see of the pack's own buffers, of which nothing is copied for them."""

    mask: Bool  # (rows, width, slots)
    depths: Int64  # (slots,)
    blank: Int64  # those of the slots where no key was ever written: what a mask hides must be a number all the same

    @property
    def slots(self) -> int:
        """How many slots, from the first on."""
        return len(self.depths)


@dataclass(frozen=True, slots=True)
class Bucket:
    """One forward of several chains: equally many new tokens in each row."""

    tokens: Int64  # (rows, width)
    slots: Int64  # (rows, width)
    positions: Int64  # (rows, width)
    want: Int64  # ascending indices into the flattened tokens
    path: Int64  # (rows, past) slots before the new ones; a row with fewer repeats its first one on the left
    missing: Int64 | None = None  # (rows,) how many of `past` are such repeats; None: all rows are equally long
    states: Sequence[Any] | None = None  # recurrent states to start from; None: from nothing
    shared: Shared | None = None  # rows look into the pack itself, and `path` is empty

    @property
    def past(self) -> int:
        """How many keys stand before the new ones in what a row is shown."""
        width = self.tokens.shape[1]
        return int(self.path.shape[1]) if self.shared is None else self.shared.slots - width

    @property
    def seen(self) -> Int64:
        """``(rows, past + width)`` the slots that are copied for each row, repeats included."""
        return np.concatenate([self.path, self.slots], axis=1)

    @property
    def masked(self) -> bool:
        """Whether a library's own causal mask is not enough."""
        return self.missing is not None or self.shared is not None

    @property
    def columns(self) -> Int64:
        """The columns in which some row is wanted, ascending."""
        return np.unique(self.want % self.tokens.shape[1])

    def first(self, window: int | None) -> int:
        """Of what is shared: the first slot that a layer needs; sliding ones begin where some row's window does."""
        if self.shared is None or window is None:
            return 0
        return int(self.visible(window).any(axis=(0, 1)).argmax())

    def wanted(self, *, chosen: bool) -> Int64 | None:
        """Which of the flattened answers are wanted, ascending; None: all of them.

        Args:
            chosen: Whether the model answered in `columns` alone, else in every column.
        """
        rows, width = self.tokens.shape
        columns = self.columns if chosen else np.arange(width)
        if len(self.want) == rows * len(columns):
            return None
        wanted: Int64 = self.want // width * len(columns) + np.searchsorted(columns, self.want % width)
        return wanted

    def visible(self, window: int | None) -> Bool:
        """``(rows, width, past + width)``: which slots each token sees; only for rows that are `masked`.

        Args:
            window: Positions that a sliding layer sees, the token itself included.
        """
        if self.shared is not None:
            if window is None:
                return self.shared.mask
            within: Bool = self.shared.mask & (self.positions[:, :, None] - self.shared.depths < window)
            return within
        assert self.missing is not None
        width = self.tokens.shape[1]
        key = np.arange(self.past + width)
        query = self.past + np.arange(width)[:, None]
        mask = key <= query
        if window is not None:
            mask &= query - key < window
        visible: Bool = mask & (key >= self.missing[:, None, None])
        return visible


def steps_of(bucket: Bucket) -> Iterator[Step]:
    """The rows of a bucket as forwards of their own."""
    width = bucket.tokens.shape[1]
    for row, (tokens, slots, positions) in enumerate(zip(bucket.tokens, bucket.slots, bucket.positions, strict=True)):
        path = bucket.path[row] if bucket.missing is None else bucket.path[row, bucket.missing[row] :]
        want = bucket.want[bucket.want // width == row] % width
        yield Step(tokens, slots, positions, want, path=path, state=bucket.states[row] if bucket.states else None)


def joined(answers: Iterable[tuple[Float32, State | None]]) -> tuple[Float32, Sequence[State | None]]:
    """The answers to `steps_of` a bucket as the answer to it."""
    logits, states = zip(*answers, strict=True)
    return np.concatenate(logits), states


@dataclass(slots=True, eq=False)
class Row:
    """A chain of a call on its way through the model."""

    chain: Int64  # indices into the call
    parent: int  # the slot that it follows
    past: int  # how many tokens precede it that some layer looks back at
    tip: int  # the slot that its next token follows
    state: Any = None  # the recurrent state there

    @property
    def fresh(self) -> bool:
        """Whether nothing precedes it."""
        return self.parent == ROOT


def levels(chains: Sequence[Int64], parents: Int64, base: int) -> list[list[Int64]]:
    """Chains that may go side by side: each follows what stood before the call, or a chain of an earlier level."""
    level_of_end: dict[int, int] = {}  # by a chain's last token
    sorted_out: list[list[Int64]] = []
    for chain in chains:  # parents before children
        parent = int(parents[chain[0]]) - base
        level = 0 if parent < 0 else level_of_end[parent] + 1
        level_of_end[int(chain[-1])] = level
        if level == len(sorted_out):
            sorted_out.append([])
        sorted_out[level].append(chain)
    return sorted_out


def alike(rows: Sequence[Row], *, ragged: bool) -> Iterator[list[Row]]:
    """Rows that may share a forward as far as their pasts go: all from nothing or none, and of one length.

    Args:
        rows: Of one level.
        ragged: Whether lengths may differ: then no row is padded to more than twice its past, unless that is short.
    """
    group: list[Row] = []
    for row in sorted(rows, key=lambda row: (not row.fresh, row.past)):
        if group:
            longest = max(2 * group[0].past, SHORT_PAST) if ragged else group[0].past
            if row.fresh != group[0].fresh or row.past > longest:
                yield group
                group = []
        group.append(row)
    if group:
        yield group


def pieces(rows: Sequence[Row], *, stepwise: bool) -> Iterator[tuple[int, int, list[Row]]]:
    """Cuts rows where they end: (start, stop, the rows that reach that far), in order.

    Args:
        rows: That may share a forward.
        stepwise: Whether a kept state takes only one token at a time: then chains from nothing go whole, and others
            token by token.
    """
    lengths = sorted({len(row.chain) for row in rows})
    if stepwise and rows[0].fresh:
        for length in lengths:
            yield 0, length, [row for row in rows if len(row.chain) == length]
        return
    edges = range(lengths[-1] + 1) if stepwise else [0, *lengths]
    for start, stop in itertools.pairwise(edges):
        yield start, stop, [row for row in rows if len(row.chain) >= stop]


def reach_of(windows: Iterable[int | None]) -> int:
    """How many positions the layers with these windows look back; None is a full one."""
    each = [UNBOUNDED if window is None else window for window in windows]
    return max(each, default=UNBOUNDED)


def worth_sharing(pasts: Int64, lengths: Int64, slots: int, *, vain: float, reach: int) -> bool:
    """Whether attending to a whole pack costs less than copying each row's path out of it, once for each of its `pieces`.

    Args:
        pasts: How many tokens precede each row.
        lengths: Of each row's chain.
        slots: Of the pack, the new ones included.
        vain: Slots that one token may attend to in vain before that costs as much as copying one slot.
        reach: Positions that some layer looks back: no more of a path is copied.
    """
    if not len(pasts):
        return False
    times = np.unique(lengths, return_inverse=True)[1] + 1
    copied = int((np.minimum(pasts, reach) * times).sum())
    return int(lengths.sum()) * (slots - float(pasts.mean())) <= vain * copied


def aligned(paths: Sequence[Int64]) -> tuple[Int64, Int64 | None]:
    """The paths of rows as `Bucket.path` and `Bucket.missing` have them.

    A row is filled with a slot of its own: what stands in others, if only a NaN, must not reach it even with weight 0.
    """
    lengths = np.array([len(path) for path in paths])
    longest = int(lengths.max())
    if (lengths == longest).all():
        return np.stack(paths), None
    path = np.stack([np.pad(path, (longest - len(path), 0), mode="edge") for path in paths])
    return path, longest - lengths


class Call:
    """One call's way through the model, forward by forward.

    Args:
        step: All of its tokens.
        shared: Whether rows with a past look into the pack's own buffers.
    """

    def __init__(self, step: Step, *, shared: bool) -> None:
        self.step, self.shared = step, shared
        self.answers: Float32 | None = None  # (len(step.want), ...), once a forward has shown what an answer is
        self.answer = np.full(len(step.tokens), -1)  # the row of `answers` of each token; -1: not wanted
        self.answer[step.want] = np.arange(len(step.want))
        self.written = np.zeros(len(step.tokens), np.bool_)  # tokens whose keys stand in the pack, or zeros in their place
        self._visible: Bool | None = None

    def write(self, rows: Int64, got: Float32) -> None:
        """Enters answers ``(len(rows), ...)``."""
        if self.answers is None:
            self.answers = np.empty((len(self.step.want), *got.shape[1:]), np.float32)
        self.answers[rows] = got

    def looks_in(self, rows: Sequence[Row]) -> bool:
        """Whether these rows, alike in that, look into the pack's own buffers."""
        return self.shared and not rows[0].fresh

    def view(self, tree: SlotTree, indices: Int64) -> Shared:
        """What the tokens `indices` ``(rows, width)`` see there; the caller fills what is blank."""
        base, last = int(self.step.slots[0]), int(indices.max())
        if self._visible is None:
            self._visible = tree.visible(base)
        self.written[indices] = True
        blank = np.flatnonzero(~self.written[:last])
        self.written[blank] = True
        slots = base + last + 1
        return Shared(self._visible[indices, :slots], tree.depths[:slots], base + blank)
