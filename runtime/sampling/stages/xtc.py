"""XTC removes the top choices now and then (p-e-w), as llama.cpp and mlx-lm have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from runtime.numerics.select import RankedToken
from runtime.options.checking import number
from runtime.sampling.spec import QT_TRANSLATE_NOOP, Chance, Chosen, Kernel, Parameter, Slider, StageKind, StageSpec

if TYPE_CHECKING:
    from runtime.sampling.history import History
    from runtime.sampling.pool import CandidatePool


def xtc(pool: CandidatePool, threshold: float) -> None:
    """Removes all tokens that reach the probability `threshold` except the least likely of them and its ties."""
    order = pool.order
    last = order.last_at_least(threshold * pool.mass)
    start = pool.first.rank if pool.first else 0
    if last.rank <= start or last.mass < threshold * pool.mass:
        return
    if pool.last is not None and last.rank > pool.last.rank:
        last = pool.last
    row = order.row
    ties = np.flatnonzero(row == row[last.token])
    before = int(np.count_nonzero(ties < last.token))  # ties before it in the order
    if last.rank - before > start:
        pool.first = RankedToken(last.rank - before, int(ties[0]), last.before - before * last.mass, last.mass)


def _kernel(chosen: Chosen) -> Kernel:
    probability, threshold = float(chosen["xtc_probability"]), float(chosen["xtc_threshold"])

    def apply(pool: CandidatePool, _history: History, u: float) -> None:
        if u < probability:
            xtc(pool, threshold)

    return apply


SPEC = StageSpec(
    name="xtc",
    number=11,
    kind=StageKind.CUT,
    kernel=_kernel,
    draws=1,
    chance=Chance(
        acted=QT_TRANSLATE_NOOP("Stages", "{0}: of the tokens that reach {1}, only the least likely one is kept."),
        idle=QT_TRANSLATE_NOOP("Stages", "{0}, but no two tokens reach {1}: nothing was cut."),
    ),
    label="XTC",
    parameters=(
        Parameter(
            "xtc_probability", 0.0, number(0.0, 1.0),
            QT_TRANSLATE_NOOP("Options", "XTC"),
            QT_TRANSLATE_NOOP("Options", "how often all top choices but the least likely are removed; 0 is off"),
            slider=Slider(0.0, 1.0),
        ),
        Parameter(
            "xtc_threshold", 0.1, number(0.0, 0.5, open_low=True),
            QT_TRANSLATE_NOOP("Options", "XTC from"),
            QT_TRANSLATE_NOOP("Options", "the probability from which XTC counts a token as a top choice"),
            switch=False,
            folded=True,
        ),
    ),
)  # fmt: skip
