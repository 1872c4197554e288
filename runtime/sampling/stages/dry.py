"""DRY ("don't repeat yourself") makes a token less likely, the longer the repetition it would prolong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from runtime.errors import InvalidRequestError
from runtime.options.checking import LARGEST, as_tuple, check_token, many, number, whole
from runtime.sampling.spec import QT_TRANSLATE_NOOP, Chosen, Kernel, Parameter, Slider, StageKind, StageSpec

if TYPE_CHECKING:
    from runtime.sampling.history import History
    from runtime.sampling.pool import CandidatePool

LONGEST_MATCH = 50  # tokens of a repetition that DRY counts at most, as text-generation-webui
_BACK = np.arange(LONGEST_MATCH)


@dataclass(frozen=True, slots=True)
class Dry:
    """DRY ("don't repeat yourself") by p-e-w, as text-generation-webui's `DRYLogitsProcessor` and llama.cpp have it.

    A token that would prolong a repetition of n tokens loses ``multiplier * base ** (n - allowed_length)``.
    """

    multiplier: float
    base: float
    allowed_length: int
    range: int
    breakers: npt.NDArray[np.int32]

    def apply(self, pool: CandidatePool, history: History, _u: float = 0.0) -> None:
        """Lowers the scores of tokens that would prolong a repetition."""
        ids = history.ids[-self.range :] if self.range else history.ids
        following, lengths = self.repetitions(ids)
        enough = lengths >= self.allowed_length
        if enough.any():
            with np.errstate(over="ignore"):  # bounded below
                grown = self.multiplier * np.power(self.base, (lengths[enough] - self.allowed_length).astype(np.float64))
            pool.add(following[enough], -np.minimum(grown, LARGEST).astype(np.float32))

    def repetitions(self, ids: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Tokens that followed earlier occurrences of the end of `ids`, and the length of the longest match before each."""
        nothing = np.empty(0, np.int64)
        if len(ids) < 2 or ids[-1] in self.breakers:
            return nothing, nothing
        ends = np.flatnonzero(ids[:-1] == ids[-1])
        following = ids[ends + 1].astype(np.int64)
        if len(self.breakers) and len(ends):
            sound = ~np.isin(following, self.breakers)
            ends, following = ends[sound], following[sound]
        if not len(ends):
            return nothing, nothing
        end = ids[: -LONGEST_MATCH - 1 : -1]  # backwards
        if len(self.breakers) and (broken := np.isin(end, self.breakers)).any():
            end = end[: broken.argmax()]
        back = ends[:, None] - _BACK[: len(end)]  # (ends, n): places to compare with `end`
        same = (ids[back] == end) & (back >= 0)
        lengths = np.where(same.all(axis=1), len(end), same.argmin(axis=1))
        if len(following) == 1:
            return following, lengths
        tokens, places = np.unique(following, return_inverse=True)
        longest = np.zeros(len(tokens), np.int64)
        np.maximum.at(longest, places, lengths)
        return tokens, longest


def _kernel(chosen: Chosen) -> Kernel:
    amounts = float(chosen["dry_multiplier"]), float(chosen["dry_base"])
    breakers = np.array(chosen["dry_breakers"], np.int32)
    return Dry(*amounts, chosen["dry_allowed_length"], chosen["dry_range"], breakers).apply


def _check(chosen: Chosen, vocab: int | None) -> None:
    for breaker in chosen.get("dry_breakers", ()):
        if breaker == "":
            raise InvalidRequestError("dry_breakers: an empty text stands in every token; leave it out")
        if not isinstance(breaker, str):
            check_token("dry_breakers", breaker, vocab)


SPEC = StageSpec(
    name="dry",
    number=5,
    kind=StageKind.EDIT,
    kernel=_kernel,
    remembers=True,
    check=_check,
    parameters=(
        Parameter(
            "dry_multiplier", 0.0, number(0.0, math.inf),
            QT_TRANSLATE_NOOP("Options", "DRY"),
            QT_TRANSLATE_NOOP("Options", "makes long repetitions less likely; 0 is off"),
            slider=Slider(0.0, 2.0),
        ),
        Parameter(
            "dry_base", 1.75, number(1.0, math.inf),
            QT_TRANSLATE_NOOP("Options", "DRY growth"),
            QT_TRANSLATE_NOOP("Options", "factor for each further token that is repeated"),
            switch=False,
            folded=True,
        ),
        Parameter(
            "dry_allowed_length", 2, whole(1),
            QT_TRANSLATE_NOOP("Options", "DRY allows"),
            QT_TRANSLATE_NOOP("Options", "shorter repetitions, in tokens, are not penalised"),
            switch=False,
            folded=True,
        ),
        Parameter(
            "dry_range", 0, whole(0, least_is="all"),
            QT_TRANSLATE_NOOP("Options", "DRY looks at"),
            QT_TRANSLATE_NOOP("Options", "how many of the last tokens; 0 is all"),
            switch=False,
            folded=True,
            aliases=("dry_penalty_last_n",),
        ),
        Parameter(
            "dry_breakers", ("\n", ":", '"', "*"), many("token ids and texts"),
            QT_TRANSLATE_NOOP("Options", "DRY breakers"),
            QT_TRANSLATE_NOOP("Options", 'repetitions end at them: texts such as "\\n", ":", or token ids'),
            switch=False,
            folded=True,
            aliases=("dry_sequence_breakers",),
            read=lambda _, value: as_tuple(value, str),
        ),
    ),
)  # fmt: skip
