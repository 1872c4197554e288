"""Bool masks for mlx-lm's attention, and the parts of a tree call."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.base import create_causal_mask

from runtime.backends.packs.chains import Bucket
from runtime.backends.packs.tree import ForwardStep, Int64


class SlidingWindow:
    """A cache for one plain forward of whole texts: stores nothing, and masks by a sliding window.

    Args:
        size: Positions that a token sees, itself included.
    """

    offset = 0

    def __init__(self, size: int) -> None:
        self._size = size

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return keys, values

    def make_mask(self, N: int, **_: Any) -> Any:  # noqa: N803  # mlx-lm's own name
        return create_causal_mask(N, 0, window_size=self._size)


@dataclass(frozen=True, slots=True, eq=False)
class TreeMasks:
    """Bool masks of one tree call, one per window, made at the first use."""

    visible: Any  # (n, slots) the slots that each token sees
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
    """Bool masks of chains as rows, one per window, made at the first use."""

    bucket: Bucket
    made: dict[int | None, mx.array] = field(default_factory=dict)

    def of(self, window: int | None) -> mx.array:
        """``(rows, 1, width, past + width)``."""
        if window not in self.made:
            self.made[window] = mx.array(self.bucket.visible(window)[:, None])
        return self.made[window]


LONG_RUN = 32  # least tokens of a chain within a tree that is one row instead of rows of width 1


def parts_of(step: ForwardStep) -> Iterator[tuple[ForwardStep, bool]]:
    """The parts of a tree call, and whether the tokens of each are batch rows.

    In order: later parts attend to the keys of earlier ones.
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
    """``(n - 1,)``: whether token j + 1 sees token j, which is then its parent."""
    j = np.arange(len(mask) - 1)
    return mask[j + 1, base + j]


def part_of(step: ForwardStep, start: int, stop: int) -> ForwardStep:
    """Tokens `start` to `stop` of a step, to be computed after those before them."""
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
