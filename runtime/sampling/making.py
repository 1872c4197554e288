"""From resolved settings to stages that can be applied, and how much of a row's order they look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from runtime.sampling.cuts import CUTS
from runtime.sampling.edits import Bias, Dry, Penalties
from runtime.sampling.falling import DEEP, HEAD
from runtime.sampling.settings import DEFAULTS
from runtime.scoring import COLDEST

LONGEST_HEAD = 256  # that are sorted at first because top-k asks for so many
_COLD = 0.9  # a temperature at which a mass takes half as many of the likeliest, about, or fewer


def made_stage(name: str, chosen: dict[str, Any], breakers: Sequence[int]) -> Any:
    """A stage, ready to be applied; None where the settings leave it off."""
    match name:
        case "bias":
            on = bool(chosen["logit_bias"] or chosen["banned_tokens"])
            return Bias(chosen["logit_bias"], chosen["banned_tokens"]) if on else None
        case "penalties":
            numbers = chosen["repetition_penalty"], chosen["presence_penalty"], chosen["frequency_penalty"]
            return Penalties(*map(float, numbers)) if numbers != (1.0, 0.0, 0.0) else None
        case "dry":
            if not chosen["dry_multiplier"]:
                return None
            amounts = float(chosen["dry_multiplier"]), float(chosen["dry_base"])
            return Dry(*amounts, chosen["dry_allowed_length"], chosen["dry_range"], np.array(breakers, np.int32))
        case "temperature":
            temperature = float(chosen["temperature"])
            return None if temperature == 1.0 else lambda pool: pool.heat(temperature)
        case "xtc":
            on = chosen["xtc_probability"] > 0
            return (float(chosen["xtc_probability"]), float(chosen["xtc_threshold"])) if on else None
    setting, cut = CUTS[name]
    value = chosen[setting]
    return None if value == DEFAULTS[setting] else lambda pool: cut(pool, value)


def first_head(stages: Sequence[tuple[str, object]], k: int, temperature: float, *, traced: bool) -> tuple[int, int]:
    """How much of the order is sorted at first, and how much more is looked for by value.

    As much as top-k asks for where it cuts first; more where the place of a mass is looked for. That of top-p is not, where
    min-p keeps less and nobody is told what top-p did. In the cold it lies less deep.
    """
    cutting = [name for name, _ in stages if name in ("top_k", "top_p", "min_p", "typical")]
    if cutting[:1] == ["top_k"]:
        return min(k, LONGEST_HEAD), 0
    deep = "typical" in cutting or ("top_p" in cutting and (traced or "min_p" not in cutting))
    cold = stages[0][0] == "temperature" and temperature <= _COLD if stages else False
    return HEAD, 0 if not deep else DEEP // 2 if cold else DEEP


def heats(stages: Sequence[tuple[str, object]], temperature: float, *, traced: bool) -> float:
    """The temperature at which the weight of a whole raw row is asked for; 1 where it is not.

    It is wherever somebody is told what each stage left, and where nothing cuts by rank or by weight before the draw.
    """
    names = [name for name, _ in stages]
    asked = names[:1] == ["temperature"] and (traced or not {"top_k", "min_p"}.intersection(names))
    return temperature if asked and temperature >= COLDEST else 1.0
