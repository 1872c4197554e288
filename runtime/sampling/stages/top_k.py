"""Keeps the k likeliest tokens, as transformers' `TopKLogitsWarper`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.options.checking import whole
from runtime.sampling.spec import QT_TRANSLATE_NOOP, Chosen, Kernel, Parameter, Search, Slider, StageKind, StageSpec

if TYPE_CHECKING:
    from runtime.sampling.pool import CandidatePool

MOST_SHOWN = 10_000  # at the right end of the slider, "off": more tokens make no visible difference


def top_k(pool: CandidatePool, k: int) -> None:
    """Keeps the k likeliest tokens that are left."""
    start = pool.first.rank if pool.first else 0
    if pool.last is None or pool.last.rank >= start + k:
        pool.last = pool.order.at_rank(start + k - 1)


def _kernel(chosen: Chosen) -> Kernel:
    k = int(chosen["top_k"])
    return lambda pool, _history, _u: top_k(pool, k)


SPEC = StageSpec(
    name="top_k",
    number=7,
    kind=StageKind.CUT,
    kernel=_kernel,
    search=Search.RANK,
    label="top-k",
    parameters=(
        Parameter(
            "top_k", 0, whole(0, least_is="off"),
            QT_TRANSLATE_NOOP("Options", "top-k"),
            QT_TRANSLATE_NOOP("Options", "keeps the k likeliest tokens; 0 is off"),
            slider=Slider(0, MOST_SHOWN, "count", always=True),
        ),
    ),
)  # fmt: skip
