"""Keeps the likeliest tokens that together reach a share, as transformers' `TopPLogitsWarper`."""

from __future__ import annotations

from runtime.options.checking import number
from runtime.sampling.spec import QT_TRANSLATE_NOOP, Chosen, Kernel, Parameter, Search, Slider, StageKind, StageSpec


def _kernel(chosen: Chosen) -> Kernel:
    share = float(chosen["top_p"])
    return lambda pool, _history, _u: pool.keep_share(share)


SPEC = StageSpec(
    name="top_p",
    number=8,
    kind=StageKind.CUT,
    kernel=_kernel,
    search=Search.LAZY_MASS,
    label="top-p",
    parameters=(
        Parameter(
            "top_p", 1.0, number(0.0, 1.0, open_low=True),
            QT_TRANSLATE_NOOP("Options", "top-p"),
            QT_TRANSLATE_NOOP("Options", "keeps the likeliest tokens that together reach this probability; 1 is off"),
            slider=Slider(0.01, 1.0, always=True),
        ),
    ),
)  # fmt: skip
