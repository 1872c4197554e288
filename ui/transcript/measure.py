"""How the path is shown: the mode, and the number that colours tokens."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from resources.ramp import STEPS_BITS
from ui.port import TokenRun, TurnDepth


class Mode(StrEnum):
    """How the conversation is rendered."""

    TOKENS = "tokens"
    READ = "read"


_LN2 = math.log(2)


class Measure(StrEnum):
    """The number of a token that its colour shows."""

    SURPRISAL = "surprisal"
    PROBABILITY = "probability"
    RANK = "rank"
    ENTROPY = "entropy"
    MARGIN = "margin"
    LAYER = "layer"  # known only for turns for which it was requested, see `layer_steps`


class ColourScale(Struct, frozen=True):
    """The borders of the five colour steps of a measure, from the weakest to the strongest."""

    borders: tuple[float, float, float, float, float]
    unit: str = ""
    falls: bool = False  # smaller numbers have stronger colours
    counts: bool = False  # whole numbers from 1


SCALES: Final = {
    Measure.SURPRISAL: ColourScale(STEPS_BITS, "bits"),
    Measure.PROBABILITY: ColourScale((0.9, 0.5, 0.2, 0.05, 0.01), falls=True),
    Measure.RANK: ColourScale((2, 3, 6, 11, 101), counts=True),
    Measure.ENTROPY: ColourScale((0.5, 1.5, 2.5, 4.0, 6.0), "bits"),
    Measure.MARGIN: ColourScale((4.0, 2.0, 1.0, 0.5, 0.2), "bits", falls=True),  # between the two likeliest tokens
    Measure.LAYER: ColourScale((40, 60, 80, 95, 101)),  # per cent of the layers; 101: not even after the last layer
}


def steps(run: TokenRun, measure: Measure) -> npt.NDArray[np.uint8]:
    """The step of each token on the ramp, ``(n,) uint8`` from 0 (no colour) to 5."""
    scale, numbers = SCALES[measure], _numbers(run, measure)
    borders = np.array(scale.borders)
    if scale.falls:
        numbers, borders = -numbers, -borders
        found = np.searchsorted(borders, numbers, side="left")  # a value equal to a border is in the weaker step
    else:
        found = np.searchsorted(borders, numbers, side="right")
    return np.where(np.isnan(numbers) | np.isnan(run.logprob), 0, found).astype(np.uint8)


def layer_steps(depth: TurnDepth) -> npt.NDArray[np.uint8]:
    """Steps by the layer after which each token of a turn leads, ``(n,) uint8``; 5 if it never does."""
    shares = 100 * depth.leads / max(depth.layers, 1)
    found = np.searchsorted(np.array(SCALES[Measure.LAYER].borders), shares, side="right")
    return np.select([depth.leads < -1, depth.leads < 0], [0, 5], found).astype(np.uint8)


def _numbers(run: TokenRun, measure: Measure) -> npt.NDArray[np.float64]:
    """The values of the measure, ``(n,) float64``; NaN if unknown."""
    if measure is Measure.PROBABILITY:
        return np.exp(run.logprob.astype(np.float64))
    if measure is Measure.LAYER:  # not stored in a run
        return np.full(len(run), np.nan)
    if measure is Measure.RANK:
        return np.where(run.rank > 0, run.rank, np.nan)
    if measure is Measure.ENTROPY:
        return run.entropy.astype(np.float64) / _LN2
    if measure is Measure.MARGIN:
        if run.top_logprobs.shape[1] < 2:
            return np.full(len(run), np.nan)
        top = run.top_logprobs[:, :2].astype(np.float64)
        with np.errstate(invalid="ignore"):  # -inf minus -inf
            return (top[:, 0] - top[:, 1]) / _LN2
    return run.logprob.astype(np.float64) / -_LN2
