"""From a traced draw to what a record tells of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from runtime.records import Float32
from runtime.sampling.chain import Traced
from runtime.sampling.falling import Falling
from runtime.sampling.pool import View
from runtime.stages import HEAD, STAGE_NAMES, StageTable

Ids = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
SHOWN = HEAD  # tokens that a report shows: so many of the raw distribution, and so many of the last

_NUMBERS = {name: number for number, name in enumerate(STAGE_NAMES)}


def report(traced: Traced) -> StageTable:
    """One row."""
    views = [step.view for step in traced.steps]
    raw, last = views[0], views[-1]
    raw.order.reach(SHOWN)
    if last.order is not raw.order:
        last.order.reach(SHOWN)
    orders = [raw.order]  # the first one of each row of scores, the raw one first
    numbers, kept, mass = [0], [raw.count], [raw.mass]  # by view
    for before, view in pairwise(views):
        if view is before:
            numbers.append(numbers[-1])
            kept.append(kept[-1])
            mass.append(mass[-1])
            continue
        if view.order is not before.order and view.order.row is not before.order.row:
            orders.append(view.order)
        numbers.append(len(orders) - 1)
        kept.append(view.count)
        mass.append(view.mass)
    ids = _shown(raw.order, last.order, [int(order.ids[0]) for order in orders], traced.token, same=len(orders) == 1)
    scores = np.empty((1, len(orders), len(ids)), np.float32)
    for order, column in zip(orders, scores[0], strict=True):
        order.row.take(ids, out=column)
    names, rows = _constant(tuple([step.stage for step in traced.steps]), tuple(numbers))
    below = last.first.before if last.first else 0.0
    floats = np.array([_temperature(traced), below, traced.u, _number_of_xtc(traced), traced.before])
    return StageTable(
        names=names,
        rows=rows,
        kept=np.array([kept], np.int32),
        mass=np.array([mass]),
        held=_held(views, numbers, ids, scores[0]),
        temperature=floats[:1],
        below=floats[1:2],
        u=floats[2:3],
        u_xtc=floats[3:4],
        token=np.array([traced.token], np.int32),
        before=floats[4:],
        shift=np.array([traced.shift], np.float32),
        ids=ids.astype(np.int32)[None],
        scores=scores,
    )


def _temperature(traced: Traced) -> float:
    """What the stage of that name divided by; 1 where it is off."""
    return next((step.view.order.temperature for step in traced.steps if step.stage == "temperature"), 1.0)


def _number_of_xtc(traced: Traced) -> float:
    return next((step.u for step in traced.steps if step.stage == "xtc"), np.nan)


@lru_cache(maxsize=256)
def _constant(stages: tuple[str, ...], rows: tuple[int, ...]) -> tuple[UInt8, UInt8]:
    """``(1, s)`` each, read-only: the stages' numbers and their rows', which are the same for most draws of a stream."""
    names, numbered = np.array([[_NUMBERS[stage] for stage in stages]], np.uint8), np.array([rows], np.uint8)
    names.flags.writeable = numbered.flags.writeable = False
    return names, numbered


def _shown(raw: Falling, last: Falling, tops: Sequence[int], token: int, *, same: bool) -> Ids:
    """The likeliest of the raw distribution in their order, then what else is to be known; `same`: in one order."""
    head = raw.ids[:SHOWN]
    known = set(head.tolist())
    rest = {*tops, token} if same else {*tops, token, *last.ids[:SHOWN].tolist()}
    rest -= known
    return np.concatenate([head, np.array(sorted(rest), np.int64)]) if rest else head


def _held(views: Sequence[View], rows: Sequence[int], ids: Ids, scores: Float32) -> UInt8:
    """Which of the tokens each view holds, in bits."""
    raw = views[0].order
    head, whole = min(len(raw.ids), SHOWN), raw.alive == len(raw.row)
    bits: list[int] = []
    for place, (view, row) in enumerate(zip(views, rows, strict=True)):
        if place and view is views[place - 1]:
            bits.append(bits[-1])
        elif row or not whole:
            bits.append(_bits(view.holds(ids, scores[row])))
        else:  # the first ones stand in the order
            start, stop = view.first.rank if view.first else 0, view.last.rank + 1 if view.last else head
            held = (1 << min(stop, head)) - 1 & -1 << min(start, head)
            rest = _bits(view.holds(ids[head:], scores[0, head:])) if head < len(ids) else 0
            bits.append(held | rest << head)
    length = -(-len(ids) // 8)
    data = b"".join([each.to_bytes(length, "little") for each in bits])
    return np.frombuffer(data, np.uint8).reshape(1, len(views), length)


def _bits(held: npt.NDArray[np.bool_]) -> int:
    return int.from_bytes(np.packbits(held, bitorder="little").tobytes(), "little")
