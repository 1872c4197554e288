"""A comparison as the transcript and the inspector read it: by turn and token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ui.port import PathComparison

DIFFERENCE_STEPS_BITS: Final = (0.5, 1.5, 4.0)  # where the three steps of either direction begin
LESS, MORE = 0, 3  # before the steps of what the second model gave less, and more


@dataclass(frozen=True, slots=True)
class SideFacts:
    """What one model says of a span; None where it says nothing."""

    name: str
    logprob: float | None  # nats, of all its tokens together
    rank: int | None  # of a span that is one token of its own
    likeliest: bytes  # b"" unknown
    tokens: int


@dataclass(frozen=True, slots=True)
class SpanFacts:
    """What two models say of the span that a token is in.

    Attributes:
        text: The span's bytes.
        left: The model in use.
        right: The second one.
        difference: What the second gives more, nats.
        kl: KL(left || right) there, nats; None where full vectors were not compared.
        kl_of_last: Of so many tokens at the end the KL is known, and of this one it is not; 0 where that is not why.
        disagree: Whether the two would have gone on differently.
    """

    text: bytes
    left: SideFacts
    right: SideFacts
    difference: float | None
    kl: float | None
    disagree: bool
    kl_of_last: int = 0


class Compared:
    """Looks the numbers of a comparison up.

    Args:
        comparison: What was found.
    """

    def __init__(self, comparison: PathComparison) -> None:
        self.comparison = comparison
        found = comparison.found
        self._logprobs = found.left.logprob, found.right.logprob
        self._ranks = found.left.rank, found.right.rank
        self._difference = found.difference
        self._disagree = found.disagree
        self.steps = difference_steps(self._difference)

    @property
    def disagreements(self) -> int:
        """Places where the two would have gone on differently."""
        return int(self._disagree.sum())

    def marks(self, node_id: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
        """For a turn's tokens: ``(n,)`` the steps of their spans, ``(n,)`` which of them begin a span that is disagreed on.

        Nothing where the turn was not compared.
        """
        spans = self.comparison.spans.get(node_id)
        if spans is None:
            return np.empty(0, np.uint8), np.empty(0, np.bool_)
        opens = np.diff(spans, prepend=-1) != 0
        return self.steps[spans], self._disagree[spans] & opens

    def facts(self, node_id: int, index: int) -> SpanFacts | None:
        """Of the span that token `index` of a turn is in; None where it was not compared."""
        spans = self.comparison.spans.get(node_id)
        if spans is None or not 0 <= index < len(spans):
            return None
        span, found = int(spans[index]), self.comparison.found
        names = self.comparison.left, self.comparison.right
        left, right = (
            SideFacts(name, _known(logprob[span]), int(rank[span]) or None, side.top_of(span), len(side.tokens_of(span)))
            for name, side, logprob, rank in zip(names, found.sides, self._logprobs, self._ranks, strict=True)
        )
        text = b"".join(found.left.tokens_of(span))
        kl = None if found.kl is None else _known(found.kl[span])
        cut = found.kl is not None and found.left.borders[span] < self.comparison.kl_from
        of_last = self.comparison.read - self.comparison.kl_from if cut else 0
        return SpanFacts(text, left, right, _known(self._difference[span]), kl, bool(self._disagree[span]), of_last)


def difference_steps(difference: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """``(m,)`` of 0 (alike, or not known), 1 to 3 (the second model gave less), 4 to 6 (it gave more), from nats."""
    bits = np.where(np.isnan(difference), 0.0, np.abs(difference)) / math.log(2)
    size = np.searchsorted(np.array(DIFFERENCE_STEPS_BITS), bits, side="right")
    return np.where(size == 0, 0, size + np.where(difference > 0, MORE, LESS)).astype(np.uint8)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
