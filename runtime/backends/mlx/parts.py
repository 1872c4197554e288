"""How a tree call of the model is cut: long chains each as one row, what lies between as rows of width 1."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from runtime.backends.packed import Step

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
                yield _part(step, pending, start), True
            yield _part(step, start, stop), False
            pending = stop
    if pending < len(step.tokens):
        yield _part(step, pending, len(step.tokens)), True


def _follows(mask: Any, base: int) -> Any:
    """``(n - 1,)``: whether token j + 1 sees token j, which as its neighbour must be its parent."""
    j = np.arange(len(mask) - 1)
    return mask[j + 1, base + j]


def _part(step: Step, start: int, stop: int) -> Step:
    assert step.mask is not None
    inside = (step.want >= start) & (step.want < stop)
    end = int(step.slots[stop - 1]) + 1
    return replace(
        step,
        tokens=step.tokens[start:stop],
        slots=step.slots[start:stop],
        positions=step.positions[start:stop],
        want=step.want[inside] - start,
        mask=step.mask[start:stop, :end],
        stacks=None if step.stacks is None else step.stacks.part(slice(start, stop)),
    )
