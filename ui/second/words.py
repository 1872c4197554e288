"""How the numbers of two models are said beside each other."""

from __future__ import annotations

from PySide6.QtWidgets import QApplication

from ui.port import PathComparison
from ui.second.compared import DIFFERENCE_STEPS_BITS, SpanFacts
from ui.widgets.numbers import UNKNOWN, bits, logprob, signed, to_bits

LEFT, RIGHT = "A", "B"


def in_nats(value: float | None) -> str:
    """A log-probability, or a dash."""
    return UNKNOWN if value is None else logprob(value)


def difference(nats: float | None) -> str:
    """What the second model gives more: "+1.20 bits"."""
    if nats is None:
        return UNKNOWN
    return f"+{bits(nats)}" if to_bits(nats) >= 0.005 else bits(nats)


def divergence(nats: float | None) -> str:
    """A KL, or a dash."""
    return UNKNOWN if nats is None else f"{signed(nats, 3)} nats"


def compared_lines(facts: SpanFacts) -> tuple[tuple[str, str], ...]:
    """For the card: the two log-probabilities, their difference, and the KL where it is known."""
    translate = QApplication.translate
    lines = [
        (f"{LEFT}  {in_nats(facts.left.logprob)}", f"{RIGHT}  {in_nats(facts.right.logprob)} nats"),
        (translate("Second", "B − A"), difference(facts.difference)),
    ]
    if facts.kl is not None:
        lines.append(("KL", divergence(facts.kl)))
    return tuple(lines)


def summary(comparison: PathComparison) -> tuple[str, str]:
    """What either model's perplexity is, a line for each; and where they disagree."""
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
    where = translate("Second", "{0:,} of {1:,} places disagree about the likeliest token")
    where = where.format(found.disagrees(), len(found))
    if found.aligned_by == "bytes":
        where += translate("Second", "; the tokenizers differ, so they are aligned by bytes, and have no KL")
    elif found.kl is None:
        where += translate("Second", "; their logits differ in width, so they have no KL")
    if found.kl is not None and comparison.kl_from:
        where += translate("Second", "; KL is known of the last {0:,} tokens").format(comparison.read - comparison.kl_from)
    return "\n".join(parts), where


def difference_ranges() -> list[str]:
    """What the steps of the colour stand for, in the palette's order."""
    translate = QApplication.translate
    one, two, three = (f"{border:g}" for border in DIFFERENCE_STEPS_BITS)
    steps = [
        translate("Second", "{0} to {1} bits").format(one, two),
        translate("Second", "{0} to {1} bits").format(two, three),
        translate("Second", "{0} bits and more").format(three),
    ]
    return [
        translate("Second", "less than {0} bits apart").format(one),
        *(translate("Second", "B gave less: {0}").format(step) for step in steps),
        *(translate("Second", "B gave more: {0}").format(step) for step in steps),
    ]


def _perplexity(value: float | None, places: int) -> str:
    return UNKNOWN if value is None else signed(value, places)
