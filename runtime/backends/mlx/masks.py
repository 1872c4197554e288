"""The slots that a row sees, as mlx-lm's attention takes them: bool masks of a call; how a tree call is cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.base import create_causal_mask

from runtime.backends.packs.chains import Bucket
from runtime.backends.packs.tree import Int64, Step


class Window:
    """In place of a cache, for one plain forward of whole texts: keeps nothing, and says how far a token sees.

    Args:
        size: Positions a token sees, itself included.
    """

    offset = 0

    def __init__(self, size: int) -> None:
        self._size = size

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """What came is all there is."""
        return keys, values

    def make_mask(self, N: int, **_: Any) -> Any:  # noqa: N803  # mlx-lm's own name
        """Causal within the window."""
        return create_causal_mask(N, 0, window_size=self._size)


@dataclass(frozen=True, slots=True, eq=False)
class TreeMasks:
    """Bool masks of one tree call, one per window, made when a layer first asks."""

    visible: Any  # (n, slots) what each row sees
    depths: Int64  # (slots,)
    rows: bool  # whether each token is a batch row (else all are one row)
    made: dict[int | None, mx.array] = field(default_factory=dict)

    def of(self, window: int | None) -> mx.array:
        """``(rows, 1, 1, slots)``, or ``(1, 1, n, slots)`` for one row."""
        if window not in self.made:
            mask = self.visible
            if window is not None:
                new = self.depths[len(self.depths) - len(mask) :]
                mask = mask & (new[:, None] - self.depths < window)
            axes = (1, 2) if self.rows else (0, 1)
            self.made[window] = mx.array(np.expand_dims(mask, axes))
        return self.made[window]


@dataclass(frozen=True, slots=True, eq=False)
class RowMasks:
    """Bool masks of chains side by side, one per window, made when a layer first asks."""

    bucket: Bucket
    made: dict[int | None, mx.array] = field(default_factory=dict)

    def of(self, window: int | None) -> mx.array:
        """``(rows, 1, width, past + width)``."""
        if window not in self.made:
            self.made[window] = mx.array(self.bucket.visible(window)[:, None])
        return self.made[window]


LONG_RUN = 32  # tokens; a longer chain within a tree goes as one row of its own rather than as rows of width 1


def parts_of(step: Step) -> Iterator[tuple[Step, bool]]:
    """The parts of a tree call, and whether a part's tokens are batch rows of their own.

    In order, so that a later part finds the keys of an earlier one.
    """
    assert step.mask is not None
    base = int(step.slots[0])
    breaks = np.flatnonzero(~_follows(step.mask, base)) + 1
    edges = [0, *breaks.tolist(), len(step.tokens)]
    pending = 0
    for start, stop in itertools.pairwise(edges):
        if stop - start >= LONG_RUN or (start == 0 and stop == len(step.tokens)):
            if pending < start:
                yield part_of(step, pending, start), True
            yield part_of(step, start, stop), False
            pending = stop
    if pending < len(step.tokens):
        yield part_of(step, pending, len(step.tokens)), True


def _follows(mask: Any, base: int) -> Any:
    """``(n - 1,)``: whether token j + 1 sees token j, which as its neighbour must be its parent."""
    j = np.arange(len(mask) - 1)
    return mask[j + 1, base + j]


def part_of(step: Step, start: int, stop: int) -> Step:
    """Tokens `start` to `stop` of a step, which come after those before them."""
    inside = (step.want >= start) & (step.want < stop)
    end = int(step.slots[stop - 1]) + 1
    return replace(
        step,
        tokens=step.tokens[start:stop],
        slots=step.slots[start:stop],
        positions=step.positions[start:stop],
        want=step.want[inside] - start,
        mask=None if step.mask is None else step.mask[start:stop, :end],
        stacks=None if step.stacks is None else step.stacks.part(slice(start, stop)),
    )
