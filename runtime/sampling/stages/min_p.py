"""Keeps tokens that have a share of the likeliest one's probability (arXiv:2407.01082), as transformers' `MinPLogitsWarper`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.options.checking import number
from runtime.sampling.spec import QT_TRANSLATE_NOOP, Chosen, Kernel, Parameter, Search, Slider, StageKind, StageSpec

if TYPE_CHECKING:
    from runtime.sampling.pool import CandidatePool


def min_p(pool: CandidatePool, share: float) -> None:
    """Keeps tokens with at least `share` of the likeliest one's probability."""
    most = pool.first.mass if pool.first else 1.0
    last = pool.order.last_at_least(share * most)
    if pool.first is not None and last.rank < pool.first.rank:
        last = pool.first
    pool.keep_to(last)


def _kernel(chosen: Chosen) -> Kernel:
    share = float(chosen["min_p"])
    return lambda pool, _history, _u: min_p(pool, share)


SPEC = StageSpec(
    name="min_p",
    number=9,
    kind=StageKind.CUT,
    kernel=_kernel,
    search=Search.WEIGHT,
    label="min-p",
    parameters=(
        Parameter(
            "min_p", 0.0, number(0.0, 1.0),
            QT_TRANSLATE_NOOP("Options", "min-p"),
            QT_TRANSLATE_NOOP("Options", "keeps tokens with at least this share of the likeliest one's probability; 0 is off"),
            slider=Slider(0.0, 1.0, "square", always=True),
        ),
    ),
)  # fmt: skip
