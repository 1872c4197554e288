"""From a traced draw to what a record tells of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runtime.sampling.chain import Step, Traced
from runtime.sampling.pool import View
from runtime.stages import HEAD, STAGE_NAMES, StageTable

Ids = npt.NDArray[np.int64]
SHOWN = HEAD  # tokens that a report shows: so many of the raw distribution, and so many of the last

_NUMBERS = {name: number for number, name in enumerate(STAGE_NAMES)}


def report(traced: Traced) -> StageTable:
    """One row."""
    views = [step.view for step in traced.steps]
    for view in (views[0], views[-1]):
        view.order.reach(SHOWN)
    arrays = [view.order.row for view in views]
    places: dict[int, int] = {}  # by a row of scores: its number, the raw one's first
    numbers = [places.setdefault(id(row), len(places)) for row in arrays]
    edits = [numbers.index(number) for number in range(len(places))]  # the first view of each
    ids = _shown(views, [int(views[at].order.ids[0]) for at in edits], traced.token, same=numbers[-1] == 0)
    last = views[-1]
    return StageTable(
        names=np.array([[_NUMBERS[step.stage] for step in traced.steps]], np.uint8),
        rows=np.array([numbers], np.uint8),
        kept=np.array([[view.count for view in views]], np.int32),
        mass=np.array([[view.mass for view in views]]),
        held=np.packbits(_known(views, numbers, ids), axis=-1, bitorder="little")[None],
        temperature=np.array([_temperature(traced.steps)]),
        below=np.array([last.first.before if last.first else 0.0]),
        u=np.array([traced.u]),
        u_xtc=np.array([next((step.u for step in traced.steps if step.stage == "xtc"), np.nan)]),
        token=np.array([traced.token], np.int32),
        before=np.array([traced.before]),
        shift=np.array([traced.shift], np.float32),
        ids=ids.astype(np.int32)[None],
        scores=np.array([[arrays[at][ids] for at in edits]]),
    )


def _shown(views: Sequence[View], tops: Sequence[int], token: int, *, same: bool) -> Ids:
    """The likeliest of the raw distribution in their order, then what else is to be known; `same`: in one order."""
    head, last = views[0].order.ids[:SHOWN], views[-1].order.ids[:SHOWN]
    others = np.array([*tops, token])
    rest = others if same else np.concatenate([last, others])
    rest = rest[~(rest[:, None] == head).any(axis=1)]
    return np.concatenate([head, np.unique(rest)]) if len(rest) else head


def _known(views: Sequence[View], rows: Sequence[int], ids: Ids) -> list[npt.NDArray[np.bool_]]:
    """Which of the tokens each view holds; many stages leave what the one before did."""
    held: list[npt.NDArray[np.bool_]] = []
    before: tuple[object, ...] = ()
    for view, row in zip(views, rows, strict=True):
        now = row, view.first, view.last
        held.append(held[-1] if now == before else view.holds(ids))
        before = now
    return held


def _temperature(steps: tuple[Step, ...]) -> float:
    """What the stage of that name divided by; 1 where it is off."""
    return next((step.view.order.temperature for step in steps if step.stage == "temperature"), 1.0)
