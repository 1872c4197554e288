"""The numbers of a model comparison, by turn and token, for the transcript and the inspector."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from PySide6.QtWidgets import QApplication

from ui.port import PathComparison
from ui.widgets.numbers import UNKNOWN, bits, logprob, signed, to_bits

DIFFERENCE_STEPS_BITS: Final = (0.5, 1.5, 4.0)  # lower borders of the three colour steps in either direction
LESS, MORE = 0, 3  # offsets of the steps: less, or more, likely for the second model


class SideFacts(Struct, frozen=True):
    """The numbers of one model for a span; None where they are not known."""

    name: str
    logprob: float | None  # nats, the sum over the span's tokens
    rank: int | None  # only of a span that is a single token
    likeliest: bytes  # b"" unknown
    tokens: int


class SpanFacts(Struct, frozen=True):
    """The numbers of two models for the span that a token is in.

    Attributes:
        text: The span's bytes.
        left: The model in use.
        right: The second model.
        difference: Log-probability of the second model minus that of the first, nats.
        kl: KL(left || right), nats; None where full distributions were not compared.
        disagree: Whether the two models would have continued differently here.
        kl_of_last: KL is known only for this many last tokens, which do not include this span; else 0.
    """

    text: bytes
    left: SideFacts
    right: SideFacts
    difference: float | None
    kl: float | None
    disagree: bool
    kl_of_last: int = 0


class Compared:
    """Looks up the numbers of a comparison."""

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
        """The number of places where the two models would have continued differently."""
        return int(self._disagree.sum())

    def marks(self, node_id: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
        """For a turn's tokens: ``(n,)`` the colour steps of their spans, ``(n,)`` whether a token begins a disagreement.

        Both are empty if the turn was not compared.
        """
        spans = self.comparison.spans.get(node_id)
        if spans is None:
            return np.empty(0, np.uint8), np.empty(0, np.bool_)
        opens = np.diff(spans, prepend=-1) != 0
        return self.steps[spans], self._disagree[spans] & opens

    def facts(self, node_id: int, index: int) -> SpanFacts | None:
        """The numbers of the span with token `index` of a turn; None if it was not compared."""
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
    """Colour steps ``(m,)`` from nats: 0 alike or unknown, 1 to 3 less likely for the second model, 4 to 6 more likely."""
    bits = np.where(np.isnan(difference), 0.0, np.abs(difference)) / math.log(2)
    size = np.searchsorted(np.array(DIFFERENCE_STEPS_BITS), bits, side="right")
    return np.where(size == 0, 0, size + np.where(difference > 0, MORE, LESS)).astype(np.uint8)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


LEFT, RIGHT = "A", "B"


def in_nats(value: float | None) -> str:
    """A log-probability, or a dash for None."""
    return UNKNOWN if value is None else logprob(value)


def difference(nats: float | None) -> str:
    """Second minus first log-probability: "+1.20 bits"."""
    if nats is None:
        return UNKNOWN
    return f"+{bits(nats)}" if to_bits(nats) >= 0.005 else bits(nats)


def divergence(nats: float | None) -> str:
    """A KL divergence, or a dash for None."""
    return UNKNOWN if nats is None else f"{signed(nats, 3)} nats"


def compared_lines(facts: SpanFacts) -> tuple[tuple[str, str], ...]:
    """Lines of the card: the two log-probabilities, their difference, and the KL if it is known."""
    translate = QApplication.translate
    lines = [
        (f"{LEFT}  {in_nats(facts.left.logprob)}", f"{RIGHT}  {in_nats(facts.right.logprob)} nats"),
        (translate("Second", "B − A"), difference(facts.difference)),
    ]
    if facts.kl is not None:
        lines.append(("KL", divergence(facts.kl)))
    return tuple(lines)


def summary(comparison: PathComparison) -> tuple[str, str]:
    """The perplexities, one line per model; and a sentence about the disagreements."""
    translate = QApplication.translate
    found = comparison.found
    parts = [
        translate("Second", "{0} {1}: perplexity {2} a token, {3} a byte").format(
            sign, name, _perplexity(total.perplexity, 1), _perplexity(total.byte_perplexity, 2)
        )
        for sign, name, total in zip(
            (LEFT, RIGHT), (comparison.left, comparison.right), found.totals(), strict=True
        )
    ]  # fmt: skip
    where = translate("Second", "the likeliest token differs at {0:,} of {1:,} places")
    where = where.format(found.disagrees(), len(found))
    if found.aligned_by == "bytes":
        where += translate("Second", "; the tokenizers differ: aligned by bytes, without KL")
    elif found.kl is None:
        where += translate("Second", "; the vocabulary sizes differ: no KL")
    if found.kl is not None and comparison.kl_from:
        where += translate("Second", "; KL for the last {0:,} tokens").format(comparison.read - comparison.kl_from)
    return "\n".join(parts), where


def difference_ranges() -> list[str]:
    """The meanings of the colour steps, in the palette's order."""
    translate = QApplication.translate
    one, two, three = (f"{border:g}" for border in DIFFERENCE_STEPS_BITS)
    steps = [
        translate("Second", "{0} to {1} bits").format(one, two),
        translate("Second", "{0} to {1} bits").format(two, three),
        translate("Second", "{0} bits and more").format(three),
    ]
    return [
        translate("Second", "less than {0} bits apart").format(one),
        *(translate("Second", "less likely for B: {0}").format(step) for step in steps),
        *(translate("Second", "more likely for B: {0}").format(step) for step in steps),
    ]


def _perplexity(value: float | None, places: int) -> str:
    return UNKNOWN if value is None else signed(value, places)
