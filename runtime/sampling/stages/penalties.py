"""Repetition, presence and frequency penalties on the tokens that occurred."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from runtime.options.checking import LARGEST, number, whole
from runtime.sampling.spec import CHANGE, QT_TRANSLATE_NOOP, Chosen, Kernel, Parameter, Slider, StageKind, StageSpec

if TYPE_CHECKING:
    from runtime.sampling.history import History
    from runtime.sampling.pool import CandidatePool


@dataclass(frozen=True, slots=True)
class Penalties:
    """Repetition as transformers' `RepetitionPenaltyLogitsProcessor`; presence and frequency as OpenAI's API."""

    repetition: float
    presence: float
    frequency: float

    def apply(self, pool: CandidatePool, history: History, _u: float = 0.0) -> None:
        """Lowers (or raises) the scores of tokens in the history's window."""
        ids, counts = history.counted
        if not len(ids):
            return
        scores = pool.raw_scores(ids)
        if self.repetition != 1.0:
            penalty = np.float32(self.repetition)
            scores = np.where(scores < 0, scores * penalty, scores / penalty)
        if self.frequency:
            scores -= counts * np.float32(self.frequency)
        if self.presence:
            scores -= np.float32(self.presence)
        pool.replace(ids, scores)


def _kernel(chosen: Chosen) -> Kernel:
    names = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    return Penalties(*(float(chosen[name]) for name in names)).apply


SPEC = StageSpec(
    name="penalties",
    number=4,
    kind=StageKind.EDIT,
    kernel=_kernel,
    remembers=True,
    parameters=(
        Parameter(
            "repetition_penalty", 1.0, number(1 / LARGEST, LARGEST),
            QT_TRANSLATE_NOOP("Options", "repetition"),
            QT_TRANSLATE_NOOP("Options", "makes tokens that occurred less likely; 1 is off"),
            slider=Slider(1.0, 2.0, always=True),
            aliases=("repeat_penalty",),
        ),
        Parameter(
            "presence_penalty", 0.0, CHANGE,
            QT_TRANSLATE_NOOP("Options", "presence"),
            QT_TRANSLATE_NOOP("Options", "subtracted from the scores of tokens that occurred; 0 is off"),
            slider=Slider(0.0, 2.0),
        ),
        Parameter(
            "frequency_penalty", 0.0, CHANGE,
            QT_TRANSLATE_NOOP("Options", "frequency"),
            QT_TRANSLATE_NOOP("Options", "subtracted from a token's score for each time it occurred; 0 is off"),
            slider=Slider(0.0, 2.0),
        ),
        Parameter(
            "penalty_window", 0, whole(0, least_is="all"),
            QT_TRANSLATE_NOOP("Options", "penalties look at"),
            QT_TRANSLATE_NOOP("Options", "how many of the last tokens; 0 is all"),
            switch=False,
            folded=True,
            aliases=("repeat_last_n", "repetition_context_size"),  # llama.cpp, mlx-lm
        ),
    ),
)  # fmt: skip
