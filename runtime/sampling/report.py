"""From a traced draw to what a record tells of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from runtime.sampling.chain import Step, Traced
from runtime.stages import HEAD, STAGE_NAMES, StageTable

Ids = npt.NDArray[np.int64]
SHOWN = HEAD  # tokens that a report shows: so many of the raw distribution, and so many of the last


def report(traced: Traced) -> StageTable:
    """One row."""
    views = [step.view for step in traced.steps]
    for view in (views[0], views[-1]):
        view.order.reach(SHOWN)
    orders = list({id(view.order.row): view.order for view in views}.values())  # one for each row of scores, the raw one first
    ids = _shown(views[0].order.ids, views[-1].order.ids, *(order.ids[:1] for order in orders), np.array([traced.token]))
    place = {id(order.row): row for row, order in enumerate(orders)}
    held = np.packbits([view.holds(ids) for view in views], axis=-1, bitorder="little")
    return StageTable(
        names=np.array([[STAGE_NAMES.index(step.stage) for step in traced.steps]], np.uint8),
        rows=np.array([[place[id(view.order.row)] for view in views]], np.uint8),
        kept=np.array([[view.count for view in views]], np.int32),
        mass=np.array([[view.mass for view in views]]),
        held=held[None],
        temperature=np.array([_temperature(traced.steps)]),
        below=np.array([views[-1].first.before if views[-1].first else 0.0]),
        u=np.array([traced.u]),
        u_xtc=np.array([next((step.u for step in traced.steps if step.stage == "xtc"), np.nan)]),
        token=np.array([traced.token], np.int32),
        before=np.array([traced.before]),
        shift=np.array([traced.shift], np.float32),
        ids=ids[None].astype(np.int32),
        scores=np.array([[order.row[ids] for order in orders]]),
    )


def _shown(raw: Ids, last: Ids, *others: Ids) -> Ids:
    """The likeliest of the raw distribution in their order, then what else is to be known."""
    head = raw[:SHOWN]
    rest = np.concatenate([last[:SHOWN], *others])
    rest = rest[~(rest[:, None] == head).any(axis=1)]
    return np.concatenate([head, np.unique(rest)]) if len(rest) else head


def _temperature(steps: tuple[Step, ...]) -> float:
    """What the stage of that name divided by; 1 where it is off."""
    return next((step.view.order.temperature for step in steps if step.stage == "temperature"), 1.0)
