"""From traced draws to the stage table of their records."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.numerics.sorted_row import SortedRow
from runtime.numerics.stage_table import NUMBER_COLUMNS, REPORTED, StageTable
from runtime.options.generation import NUMBERS, RANDOM_STAGES
from runtime.records import Float32, Int64, UInt8
from runtime.sampling.chain import Traced
from runtime.sampling.pool import View


class DrawReport(NamedTuple):
    """A draw as a row of a `StageTable`, by the table's columns: s stages, k shown tokens, o score rows, b bytes."""

    names: UInt8  # (s,)
    rows: UInt8  # (s,)
    kept: list[int]
    mass: list[float]
    held: bytes  # (s * b,)
    numbers: tuple[float, ...]  # temperature, below, before, then those of NUMBER_COLUMNS
    token: int
    shift: float
    ids: Int64  # (k,)
    scores: Float32  # (o, k)


def draw_report(traced: Traced) -> DrawReport:
    """The report of a draw; it refers to no row of the vocabulary's size."""
    steps = traced.steps
    views = [step.view for step in steps]
    raw, last = views[0].order, views[-1].order
    raw.reach(REPORTED)
    if last is not raw:
        last.reach(REPORTED)
    if last.row is raw.row:  # no stage changed the scores
        numbers = (0,) * len(views)
        ids, scores, kept, held = _in_one_order(views, traced)
    else:
        numbers, ids, scores, held = _in_several_orders(views, traced.token)
        kept = [view.count for view in views]
    stages = tuple([step.stage for step in steps])
    names, rows = _constant(stages, numbers)
    first = views[-1].first
    return DrawReport(
        names,
        rows,
        kept,
        [view.mass for view in views],
        held,
        (
            views[stages.index("temperature")].order.temperature if "temperature" in stages else 1.0,
            first.before if first else 0.0,
            traced.before,
            traced.u,
            *[steps[stages.index(name)].u if name in stages else np.nan for name in RANDOM_STAGES],
        ),
        traced.token,
        traced.shift,
        ids,
        scores,
    )


def report(traced: Traced) -> StageTable:
    """The stage table of one draw."""
    return report_table([draw_report(traced)])


def report_table(reports: Sequence[DrawReport]) -> StageTable:
    """A row for each draw, at least one."""
    if len({(len(each.names), each.scores.shape) for each in reports}) > 1:
        return StageTable.concat([report_table([each]) for each in reports])
    names, rows, kept, mass, held, numbers, token, shift, ids, scores = zip(*reports, strict=True)
    temperature, below, before, *drawn = np.array(numbers).T  # columns
    return StageTable(
        names=np.array(names),
        rows=np.array(rows),
        kept=np.array(kept, np.int32),
        mass=np.array(mass),
        held=np.frombuffer(b"".join(held), np.uint8).reshape(len(reports), len(kept[0]), -1),
        temperature=temperature,
        below=below,
        token=np.array(token, np.int32),
        before=before,
        shift=np.array(shift, np.float32),
        ids=np.array(ids, np.int32),
        scores=np.array(scores),
        **dict(zip(NUMBER_COLUMNS.values(), drawn, strict=True)),
    )


@lru_cache(maxsize=256)
def _constant(stages: tuple[str, ...], rows: tuple[int, ...]) -> tuple[UInt8, UInt8]:
    """Stage numbers and score rows, ``(s,)`` each, read-only: the same for most draws of a stream."""
    names, numbered = np.array([NUMBERS[stage] for stage in stages], np.uint8), np.array(rows, np.uint8)
    names.flags.writeable = numbered.flags.writeable = False
    return names, numbered


def _in_one_order(views: Sequence[View], traced: Traced) -> tuple[Int64, Float32, list[int], bytes]:
    """The shown tokens ``(k,)``, their scores ``(1, k)``, the size of each view, and packed masks of the shown tokens.

    Each view is a range of the same sorted row. Its first tokens are shown, and the drawn one.
    """
    order, rank, token = views[0].order, traced.rank, traced.token
    ids, scores = order.ids[:REPORTED], order.ranked.values[None, :REPORTED]
    head, alive = len(ids), order.alive
    beyond = rank >= head  # the drawn token is none of the first
    if beyond:
        ids = np.concatenate([ids, [token]])
        scores = np.concatenate([scores, order.row[None, token : token + 1]], axis=1)
    kept: list[int] = []
    held: list[int] = []
    for view in views:
        start, stop = view.first.rank if view.first else 0, view.last.rank + 1 if view.last else alive
        bits = (1 << min(stop, head)) - 1 & -1 << min(start, head)
        held.append(bits | 1 << head if beyond and start <= rank < stop else bits)
        kept.append(stop - start)
    return ids, scores, kept, _packed(held, len(ids))


def _in_several_orders(views: Sequence[View], token: int) -> tuple[tuple[int, ...], Int64, Float32, bytes]:
    """Where stages changed scores: the score row of each view, shown tokens, scores ``(o, k)``, and packed masks."""
    orders = [views[0].order]  # the first of each row of scores; the raw one first
    numbers = [0]
    for before, view in pairwise(views):
        if view.order is not before.order and view.order.row is not before.order.row:
            orders.append(view.order)
        numbers.append(len(orders) - 1)
    ids = _shown(orders[0], views[-1].order, [int(order.ids[0]) for order in orders], token)
    scores = np.empty((len(orders), len(ids)), np.float32)
    for order, column in zip(orders, scores, strict=True):
        order.row.take(ids, out=column)
    held: list[int] = []
    for place, (view, row) in enumerate(zip(views, numbers, strict=True)):
        held.append(held[-1] if place and view is views[place - 1] else _bits(view.holds(ids, scores[row])))
    return tuple(numbers), ids, scores, _packed(held, len(ids))


def _shown(raw: SortedRow, last: SortedRow, tops: Sequence[int], token: int) -> Int64:
    """The likeliest raw tokens in order, then the likeliest and drawn ones of later rows by id."""
    head = raw.ids[:REPORTED]
    rest = {*tops, token, *last.ids[:REPORTED].tolist()} - set(head.tolist())
    return np.concatenate([head, np.array(sorted(rest), np.int64)]) if rest else head


def _packed(held: Sequence[int], shown: int) -> bytes:
    length = -(-shown // 8)
    return b"".join([bits.to_bytes(length, "little") for bits in held])


def _bits(held: npt.NDArray[np.bool_]) -> int:
    return int.from_bytes(np.packbits(held, bitorder="little").tobytes(), "little")
