"""Chains of new tokens side by side in one forward, for models that take no tree at once.

A recurrent layer carries a state from token to token, so a row must hold one chain without padding or branches. Chains
that start side by side are therefore cut where the shortest of them ends: their common length is one forward with a row
for each, and the rest is computed in fewer rows.

An attention layer beside it reads the pack: either all rows read its buffers, each through its part of a mask
(`Shared`), or each reads a copy of its own path (`Bucket.path`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runtime.backends.base import ROOT
from runtime.backends.packs.tree import Bool, Float32, ForwardStep, Int64, SlotTree, State

UNBOUNDED = 1 << 60  # slots: the capacity of a pack without keys and values
SHORT_PAST = 256  # tokens; rows whose pasts differ by less than that always go together


@dataclass(frozen=True, slots=True)
class Shared:
    """The part of a pack's buffers that rows attend to in place, without a copy."""

    mask: Bool  # (rows, width, slots)
    depths: Int64  # (slots,)
    blank: Int64  # slots whose keys were never written; masked keys must be finite, too

    @property
    def slots(self) -> int:
        """Number of slots, from the first on."""
        return len(self.depths)


@dataclass(frozen=True, slots=True)
class Bucket:
    """One forward of several chains, with the same number of new tokens in each row."""

    tokens: Int64  # (rows, width)
    slots: Int64  # (rows, width)
    positions: Int64  # (rows, width)
    want: Int64  # ascending indices into the flattened tokens
    path: Int64  # (rows, past) slots before the new ones; a row with fewer repeats its first one on the left
    missing: Int64 | None = None  # (rows,) number of such repeats; None: all rows are equally long
    states: Sequence[Any] | None = None  # recurrent states to start from; None: initial ones
    shared: Shared | None = None  # rows attend to the pack's buffers, and `path` is empty

    @property
    def past(self) -> int:
        """Number of keys that a row attends to before its new ones."""
        width = self.tokens.shape[1]
        return int(self.path.shape[1]) if self.shared is None else self.shared.slots - width

    @property
    def seen(self) -> Int64:
        """``(rows, past + width)`` the slots that are copied for each row, repeats included."""
        return np.concatenate([self.path, self.slots], axis=1)

    @property
    def masked(self) -> bool:
        """Whether rows need a mask other than the library's causal one."""
        return self.missing is not None or self.shared is not None

    @property
    def columns(self) -> Int64:
        """The columns in which some row is wanted, ascending."""
        return np.unique(self.want % self.tokens.shape[1])

    def first(self, window: int | None) -> int:
        """The first shared slot that a layer needs: for a sliding one the earliest in any row's window."""
        if self.shared is None or window is None:
            return 0
        return int(self.visible(window).any(axis=(0, 1)).argmax())

    def wanted(self, *, chosen: bool) -> Int64 | None:
        """Ascending indices of the wanted rows in the flattened output; None: all.

        Args:
            chosen: Whether the output covers only `columns`; else it covers every column.
        """
        rows, width = self.tokens.shape
        columns = self.columns if chosen else np.arange(width)
        if len(self.want) == rows * len(columns):
            return None
        wanted: Int64 = self.want // width * len(columns) + np.searchsorted(columns, self.want % width)
        return wanted

    def visible(self, window: int | None) -> Bool:
        """``(rows, width, past + width)``: the slots that each token sees; only where `masked`.

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


def steps_of(bucket: Bucket) -> Iterator[ForwardStep]:
    """The rows of a bucket as separate forwards."""
    width = bucket.tokens.shape[1]
    for row, (tokens, slots, positions) in enumerate(zip(bucket.tokens, bucket.slots, bucket.positions, strict=True)):
        path = bucket.path[row] if bucket.missing is None else bucket.path[row, bucket.missing[row] :]
        want = bucket.want[bucket.want // width == row] % width
        yield ForwardStep(tokens, slots, positions, want, path=path, state=bucket.states[row] if bucket.states else None)


def joined(answers: Iterable[tuple[Float32, State | None]]) -> tuple[Float32, Sequence[State | None]]:
    """The results of `steps_of` a bucket as the result of the bucket."""
    logits, states = zip(*answers, strict=True)
    return np.concatenate(logits), states


@dataclass(slots=True, eq=False)
class ChainRow:
    """A chain of a call, and how far it is computed."""

    chain: Int64  # indices into the call
    parent: int  # the slot that it follows
    past: int  # number of tokens before it that some layer attends to
    tip: int  # the slot that its next token follows
    state: Any = None  # the recurrent state there

    @property
    def fresh(self) -> bool:
        """Whether it starts a path."""
        return self.parent == ROOT


def levels(chains: Sequence[Int64], parents: Int64, base: int) -> list[list[Int64]]:
    """Chains that may be computed side by side: each follows a slot from before the call, or a chain of an earlier level."""
    level_of_end: dict[int, int] = {}  # by a chain's last token
    grouped: list[list[Int64]] = []
    for chain in chains:  # parents before children
        parent = int(parents[chain[0]]) - base
        level = 0 if parent < 0 else level_of_end[parent] + 1
        level_of_end[int(chain[-1])] = level
        if level == len(grouped):
            grouped.append([])
        grouped[level].append(chain)
    return grouped


def compatible_groups(rows: Sequence[ChainRow], *, ragged: bool) -> Iterator[list[ChainRow]]:
    """Groups of rows whose pasts let them share a forward: all start a path or none does, and pasts are of one length.

    Args:
        rows: The rows of one level.
        ragged: Whether lengths may differ; no row is then padded to more than twice its past, unless that is short.
    """
    group: list[ChainRow] = []
    for row in sorted(rows, key=lambda row: (not row.fresh, row.past)):
        if group:
            longest = max(2 * group[0].past, SHORT_PAST) if ragged else group[0].past
            if row.fresh != group[0].fresh or row.past > longest:
                yield group
                group = []
        group.append(row)
    if group:
        yield group


def spans(rows: Sequence[ChainRow], *, stepwise: bool) -> Iterator[tuple[int, int, list[ChainRow]]]:
    """Cuts rows where the shortest ends: (start, stop, the rows that reach `stop`), in order.

    Args:
        rows: That may share a forward.
        stepwise: Whether a state takes only one token at a time: then chains that start a path are pushed whole, others
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
    """The number of positions that layers with these windows see; None is a full one."""
    each = [UNBOUNDED if window is None else window for window in windows]
    return max(each, default=UNBOUNDED)


def worth_sharing(pasts: Int64, lengths: Int64, slots: int, *, masked_per_copy: float, reach: int) -> bool:
    """Whether attending to a whole pack costs less than copying each row's path out of it, once for each of its `spans`.

    Args:
        pasts: Number of tokens before each row.
        lengths: Length of each row's chain.
        slots: Number of slots of the pack, the new ones included.
        masked_per_copy: Masked slots that a token may attend to at the cost of copying one slot.
        reach: Positions that some layer sees; no more of a path is copied.
    """
    if not len(pasts):
        return False
    times = np.unique(lengths, return_inverse=True)[1] + 1
    copied = int((np.minimum(pasts, reach) * times).sum())
    return int(lengths.sum()) * (slots - float(pasts.mean())) <= masked_per_copy * copied


def padded_paths(paths: Sequence[Int64]) -> tuple[Int64, Int64 | None]:
    """The paths of rows as `Bucket.path` and `Bucket.missing`.

    A row is padded with a slot of its own: a NaN in another row's slot would reach it even with weight 0.
    """
    lengths = np.array([len(path) for path in paths])
    longest = int(lengths.max())
    if (lengths == longest).all():
        return np.stack(paths), None
    path = np.stack([np.pad(path, (longest - len(path), 0), mode="edge") for path in paths])
    return path, longest - lengths


class SplitCall:
    """The progress of one call that takes several forwards.

    Args:
        step: All of its tokens.
        shared: Whether rows with a past attend to the pack's buffers in place.
    """

    def __init__(self, step: ForwardStep, *, shared: bool) -> None:
        self.step, self.shared = step, shared
        self.answers: Float32 | None = None  # (len(step.want), ...), once a forward has shown its shape
        self.answer = np.full(len(step.tokens), -1)  # the row of `answers` of each token; -1: not wanted
        self.answer[step.want] = np.arange(len(step.want))
        self.written = np.zeros(len(step.tokens), np.bool_)  # tokens whose keys, or zeros in their place, are in the pack
        self._visible: Bool | None = None

    def write(self, rows: Int64, got: Float32) -> None:
        """Enters results ``(len(rows), ...)``."""
        if self.answers is None:
            self.answers = np.empty((len(self.step.want), *got.shape[1:]), np.float32)
        self.answers[rows] = got

    def attends_in_place(self, rows: Sequence[ChainRow]) -> bool:
        """Whether these rows, all of which start a path or none does, attend to the pack's buffers in place."""
        return self.shared and not rows[0].fresh

    def view(self, tree: SlotTree, indices: Int64) -> Shared:
        """What the tokens `indices` ``(rows, width)`` see of the buffers; the caller fills blank slots with zeros."""
        base, last = int(self.step.slots[0]), int(indices.max())
        if self._visible is None:
            self._visible = tree.visible(base)
        self.written[indices] = True
        blank = np.flatnonzero(~self.written[:last])
        self.written[blank] = True
        slots = base + last + 1
        return Shared(self._visible[indices, :slots], tree.depths[:slots], base + blank)
