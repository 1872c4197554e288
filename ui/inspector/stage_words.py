"""What one stage of the sampler did, in a sentence or two."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from runtime import SamplingOptions, Stage
from ui.inspector import words
from ui.inspector.replaying import Outcome
from ui.numbers import count, probability

CUTTING = ("top_k", "top_p", "min_p", "typical", "xtc")  # remove tokens and change no score


def tr(text: str) -> str:
    """The text in the window's language."""
    return QCoreApplication.translate("stages", text)


def stage_words(outcome: Outcome, stage: Stage, sampling: SamplingOptions) -> str:
    """How many tokens the stage left, what they weighed before it, and the number that it drew."""
    place = outcome.stages.index(stage)
    if place == 0:
        return tr("What the model said: {0} tokens, nothing is changed yet.").format(count(stage.kept))
    before = outcome.stages[place - 1]
    said = _numbered(stage, before, sampling) if stage.name in ("draw", "xtc") else ""
    return " ".join(part for part in (_left(stage, before), said) if part)


def _left(stage: Stage, before: Stage) -> str:
    if stage.kept == before.kept:
        all_left = tr("All {0} tokens are left.").format(count(stage.kept))
        return "" if stage.name in ("draw", "xtc") else all_left
    left = tr("{0} of {1} tokens are left").format(count(stage.kept), count(before.kept))
    if stage.name not in CUTTING:
        return f"{left}."
    # both normalisers are sums of the same weights
    return tr("{0}, which had {1} of the mass.").format(left, probability(stage.normaliser / before.normaliser))


def _numbered(stage: Stage, before: Stage, sampling: SamplingOptions) -> str:
    """What a stage's random number decided."""
    if stage.name == "draw":
        if stage.u is None:
            return tr("Temperature 0: the likeliest is taken, without a number.")
        return tr("u\u00a0=\u00a0{0} points into the {1} that are left.").format(words.share(stage.u), count(before.kept))
    if stage.u is None:
        return ""
    chance = sampling.xtc_probability
    number = tr("u\u00a0=\u00a0{0}").format(words.share(stage.u))
    if chance is None:
        return f"{number}."
    if stage.u >= chance:
        return tr("{0} is not below its chance of {1}: it did nothing.").format(number, probability(chance))
    least = probability(0.1 if sampling.xtc_threshold is None else sampling.xtc_threshold)
    said = tr("{0} is below its chance of {1}").format(number, probability(chance))
    if stage.kept == before.kept:
        return tr("{0}, but no two tokens reach {1}: nothing went.").format(said, least)
    return tr("{0}: of the tokens that reach {1} only the least likely one stayed.").format(said, least)
