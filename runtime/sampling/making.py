"""From resolved settings to stages that can be applied, and how much of a row's order they look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from runtime.numerics.ranking import SHALLOW, Look
from runtime.numerics.scoring import COLDEST
from runtime.options.sampling import DEFAULTS
from runtime.sampling.cuts import CUTS
from runtime.sampling.edits import Bias, Dry, Penalties

LONGEST_HEAD = 256  # that are sorted at first because top-k asks for so many
_FEWEST = 512  # that are looked for by value where a stage looks for a mass: most of those that the head does not settle
_USUAL = 0.9  # a share of the mass
_TIMES = 4.0  # times as many tokens have it, mostly, as equally likely ones of that entropy would be
_MORE_TIMES = 8.0  # have more than that; and where it is warm
_COLD = 0.9  # a temperature at which they are fewer
_COLD_TIMES = 2.0


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


def first_look(stages: Sequence[tuple[str, object]], chosen: Mapping[str, Any], *, traced: bool) -> Look:
    """How much of the order is looked for at first.

    As much as top-k asks for where it cuts first and nobody is told what the others did; more where the place of a mass is
    looked for. That of top-p is not, where min-p keeps less and nobody is told what top-p did. In the cold it lies less deep.
    """
    names = [name for name, _ in stages]
    cutting = [name for name in names if name in ("top_k", "top_p", "min_p", "typical")]
    if cutting[:1] == ["top_k"]:
        return SHALLOW if traced else Look(min(int(chosen["top_k"]), LONGEST_HEAD))
    if "typical" not in cutting and ("top_p" not in cutting or ("min_p" in cutting and not traced)):
        return SHALLOW
    first, temperature = cutting[0], float(chosen["temperature"])
    if "temperature" in names[: names.index(first)]:  # the share is one of another distribution than the row's
        return Look(times=_COLD_TIMES, fewest=_FEWEST // 2) if temperature <= _COLD else Look(times=_MORE_TIMES, fewest=_FEWEST)
    share = 0.0 if first == "min_p" else float(chosen[CUTS[first][0]])
    return Look(times=_TIMES if share <= _USUAL else _MORE_TIMES, fewest=_FEWEST, share=share)


def heats(stages: Sequence[tuple[str, object]], temperature: float, *, traced: bool) -> float:
    """The temperature at which the weight of a whole raw row is asked for; 1 where it is not.

    It is wherever somebody is told what each stage left, and where nothing cuts by rank or by weight before the draw.
    """
    names = [name for name, _ in stages]
    asked = names[:1] == ["temperature"] and (traced or not {"top_k", "min_p"}.intersection(names))
    return temperature if asked and temperature >= COLDEST else 1.0
