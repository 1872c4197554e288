"""Divides the scores; `Sampler` treats 0 as greedy."""

from __future__ import annotations

from runtime.options.checking import LARGEST, number
from runtime.sampling.spec import QT_TRANSLATE_NOOP, Chosen, Kernel, Parameter, Slider, StageKind, StageSpec


def _kernel(chosen: Chosen) -> Kernel:
    temperature = float(chosen["temperature"])
    return lambda pool, _history, _u: pool.heat(temperature)


SPEC = StageSpec(
    name="temperature",
    number=6,
    kind=StageKind.TEMPERATURE,
    kernel=_kernel,
    parameters=(
        Parameter(
            "temperature", 1.0, number(0.0, LARGEST),
            QT_TRANSLATE_NOOP("Options", "temperature"),
            QT_TRANSLATE_NOOP("Options", "0 always takes the likeliest token"),
            slider=Slider(0.0, 2.0, label="temp", always=True),
            aliases=("temp",),
        ),
    ),
)  # fmt: skip
