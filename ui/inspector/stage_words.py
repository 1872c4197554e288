"""What one stage of the sampler did, in a sentence or two."""

from __future__ import annotations

from runtime import SamplingOptions, Stage
from ui.inspector import words
from ui.inspector.replaying import Outcome
from ui.numbers import count, probability
from ui.port import translate

CUTTING = ("top_k", "top_p", "min_p", "typical", "xtc")  # remove tokens and change no score


def stage_words(outcome: Outcome, stage: Stage, sampling: SamplingOptions) -> str:
    """How many tokens the stage left, what they weighed before it, and the number that it drew."""
    place = outcome.stages.index(stage)
    if place == 0:
        return translate("Stages", "What the model said: {0} tokens, nothing is changed yet.").format(count(stage.kept))
    before = outcome.stages[place - 1]
    said = _numbered(stage, before, sampling) if stage.name in ("draw", "xtc") else ""
    return " ".join(part for part in (_left(stage, before), said) if part)


def _left(stage: Stage, before: Stage) -> str:
    if stage.kept == before.kept:
        all_left = translate("Stages", "All {0} tokens are left.").format(count(stage.kept))
        return "" if stage.name in ("draw", "xtc") else all_left
    left = translate("Stages", "{0} of {1} tokens are left").format(count(stage.kept), count(before.kept))
    if stage.name not in CUTTING:
        return f"{left}."
    # both normalisers are sums of the same weights
    mass = probability(stage.normaliser / before.normaliser)
    return translate("Stages", "{0}, which had {1} of the mass.").format(left, mass)


def _numbered(stage: Stage, before: Stage, sampling: SamplingOptions) -> str:
    """What a stage's random number decided."""
    if stage.name == "draw":
        if stage.u is None:
            return translate("Stages", "Temperature 0: the likeliest is taken, without a number.")
        said = translate("Stages", "u\u00a0=\u00a0{0} points into the {1} that are left.")
        return said.format(words.share(stage.u), count(before.kept))
    if stage.u is None:
        return ""
    chance = sampling.xtc_probability
    number = translate("Stages", "u\u00a0=\u00a0{0}").format(words.share(stage.u))
    if chance is None:
        return f"{number}."
    if stage.u >= chance:
        return translate("Stages", "{0} is not below its chance of {1}: it did nothing.").format(number, probability(chance))
    least = probability(0.1 if sampling.xtc_threshold is None else sampling.xtc_threshold)
    said = translate("Stages", "{0} is below its chance of {1}").format(number, probability(chance))
    if stage.kept == before.kept:
        return translate("Stages", "{0}, but no two tokens reach {1}: nothing went.").format(said, least)
    return translate("Stages", "{0}: of the tokens that reach {1} only the least likely one stayed.").format(said, least)
