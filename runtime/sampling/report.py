"""From a traced draw to what a record tells of it."""

from __future__ import annotations

import numpy as np

from runtime.sampling.chain import Traced
from runtime.stages import STAGE_NAMES, StageTable

SHOWN = 64  # tokens that a report shows: so many of the raw distribution, and so many of the last


def report(traced: Traced) -> StageTable:
    """One row."""
    raw, last = traced.steps[0].view.order, traced.steps[-1].view.order
    tops = [order.ids[:SHOWN][order.weights[:SHOWN] > 0] for order in (raw, last)]
    ids = tops[0] if raw is last else np.concatenate([tops[0], np.setdiff1d(tops[1], tops[0])])
    views = [step.view for step in traced.steps]
    return StageTable(
        names=np.array([[STAGE_NAMES.index(step.stage) for step in traced.steps]], np.uint8),
        kept=np.array([[view.count for view in views]], np.int32),
        mass=np.array([[view.mass for view in views]]),
        below=np.array([[view.first.before if view.first else 0.0 for view in views]]),
        u=np.array([[step.u for step in traced.steps]]),
        ids=ids[None].astype(np.int32),
        logprobs=np.array([[view.logprobs(ids) for view in views]], np.float32),
        weights=last.weights_of(ids)[None],
        shift=np.array([traced.shift], np.float32),
    )
