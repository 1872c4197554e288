"""Chains of new tokens side by side: which of one call may share a forward, and what such a forward is made of.

A recurrent layer carries a state from token to token, so a row must hold one chain and nothing else: no padding, no
branch. Chains that start side by side are therefore cut where the shortest of them ends: what is common to all is one
forward with a row for each, what is left goes on in fewer rows. No token is padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runtime.backends.tree import ROOT, Bool, Int64

SHORT_PAST = 256  # tokens; rows whose pasts differ by less than that always go together


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

    @property
    def past(self) -> int:
        """How many tokens stand before the new ones in the longest row."""
        return int(self.path.shape[1])

    @property
    def seen(self) -> Int64:
        """``(rows, past + width)`` the slots that each row's last token sees, repeats included."""
        return np.concatenate([self.path, self.slots], axis=1)

    @property
    def columns(self) -> Int64:
        """The columns in which some row is wanted, ascending."""
        return np.unique(self.want % self.tokens.shape[1])

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
        """``(rows, width, past + width)``: who sees whom; only for rows of different length.

        Args:
            window: Positions that a sliding layer sees, the token itself included.
        """
        assert self.missing is not None
        width = self.tokens.shape[1]
        key = np.arange(self.past + width)
        query = self.past + np.arange(width)[:, None]
        mask = key <= query
        if window is not None:
            mask &= query - key < window
        visible: Bool = mask & (key >= self.missing[:, None, None])
        return visible


@dataclass(slots=True, eq=False)
class Row:
    """A chain of a call on its way through the model."""

    chain: Int64  # indices into the call
    parent: int  # the slot that it follows
    past: int  # how many tokens precede its next one
    path: Int64  # their slots; empty where no layer looks back
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


def aligned(rows: Sequence[Row]) -> tuple[Int64, Int64 | None]:
    """The paths of rows as `Bucket.path` and `Bucket.missing` have them.

    A row is filled with a slot of its own: what stands in others, if only a NaN, must not reach it even with weight 0.
    """
    lengths = np.array([len(row.path) for row in rows])
    longest = int(lengths.max())
    if (lengths == longest).all():
        return np.stack([row.path for row in rows]), None
    path = np.stack([np.pad(row.path, (longest - len(row.path), 0), mode="edge") for row in rows])
    return path, longest - lengths
