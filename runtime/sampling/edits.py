"""Stages that change scores: bias and bans, penalties, DRY."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.options.sampling import LARGEST
from runtime.records import Int32
from runtime.sampling.history import History
from runtime.sampling.pool import Pool

LONGEST_MATCH = 50  # tokens of a repetition that DRY counts, as text-generation-webui
_BACK = np.arange(LONGEST_MATCH)


class Bias:
    """Adds `logit_bias`, bans `banned_tokens`."""

    name = "bias"

    def __init__(self, bias: dict[int, float], banned: Collection[int]) -> None:
        amounts = {**bias, **dict.fromkeys(banned, -np.inf)}
        self._ids = np.array(list(amounts), np.int64)
        self._amounts = np.array(list(amounts.values()), np.float32)

    def apply(self, pool: Pool, _: History) -> None:
        """Changes the scores of the named tokens."""
        pool.add(self._ids, self._amounts)


@dataclass(frozen=True, slots=True)
class Penalties:
    """Repetition as transformers' `RepetitionPenaltyLogitsProcessor`; presence and frequency as OpenAI's API."""

    repetition: float
    presence: float
    frequency: float
    name = "penalties"

    def apply(self, pool: Pool, history: History) -> None:
        """Lowers (or raises) what occurred in the history's window."""
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
    name = "dry"

    def apply(self, pool: Pool, history: History) -> None:
        """Lowers what would prolong a repetition."""
        ids = history.ids[-self.range :] if self.range else history.ids
        following, lengths = self.repetitions(ids)
        enough = lengths >= self.allowed_length
        if enough.any():
            with np.errstate(over="ignore"):  # bounded below
                grown = self.multiplier * np.power(self.base, (lengths[enough] - self.allowed_length).astype(np.float64))
            pool.add(following[enough], -np.minimum(grown, LARGEST).astype(np.float32))

    def repetitions(self, ids: Int32) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The tokens that followed the end of `ids` where it stood before, and the longest match each followed."""
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
        back = ends[:, None] - _BACK[: len(end)]  # (ends, n): the places that must hold the same
        same = (ids[back] == end) & (back >= 0)
        lengths = np.where(same.all(axis=1), len(end), same.argmin(axis=1))
        if len(following) == 1:
            return following, lengths
        tokens, places = np.unique(following, return_inverse=True)
        longest = np.zeros(len(tokens), np.int64)
        np.maximum.at(longest, places, lengths)
        return tokens, longest
