"""The fixed text that a model's perplexity is measured on, and what is kept of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from runtime.loading.measured import keep_measured, measured

PLAIN = "float32"
KEY = "perplexity"
FORMAT = 1  # of what is kept; goes up where text or kernels change
MOST_TOKENS = 256
# Lewis Carroll, Alice's Adventures in Wonderland (1865), chapter I; in the public domain.
TEXT = """Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or \
twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it, "and what is the \
use of a book," thought Alice "without pictures or conversations?"

So she was considering in her own mind (as well as she could, for the hot day made her feel very sleepy and stupid), whether \
the pleasure of making a daisy-chain would be worth the trouble of getting up and picking the daisies, when suddenly a White \
Rabbit with pink eyes ran close by her.

There was nothing so very remarkable in that; nor did Alice think it so very much out of the way to hear the Rabbit say to \
itself, "Oh dear! Oh dear! I shall be late!" (when she thought it over afterwards, it occurred to her that she ought to have \
wondered at this, but at the time it all seemed quite natural)."""


@dataclass(frozen=True, slots=True)
class Perplexities:
    """Of one model on the fixed text.

    Attributes:
        weights: How they are held, as `LoadOptions.weights` has it.
        plain: With the weights in float32.
        packed: With them held so.
    """

    weights: str
    plain: float
    packed: float

    def __str__(self) -> str:
        """For people: "41.06, float32 41.02 (+0.1 %)"."""
        change = f" ({100 * (self.packed / self.plain - 1):+.1f} %)" if math.isfinite(self.plain) and self.plain > 0 else ""
        return f"{self.packed:.4g}, {PLAIN} {self.plain:.4g}{change}"


def kept_perplexities(digest: str) -> dict[str, float]:
    """What is known of a model's perplexity, by how its weights are held."""
    found = measured(digest, KEY)
    if found.pop("format", None) != FORMAT:
        return {}
    return {str(name): value for name, value in found.items() if isinstance(value, float)}


def keep_perplexities(digest: str, found: Mapping[str, float]) -> None:
    """Keeps them for `kept_perplexities`."""
    keep_measured(digest, KEY, {"format": FORMAT, **found})


def measured_perplexities(digest: str) -> list[Perplexities]:
    """Every form of a model's weights that was measured beside the plain one; see `ShelfEntry.fingerprint`."""
    found = kept_perplexities(digest)
    plain = found.get(PLAIN)
    return [] if plain is None else [Perplexities(name, plain, value) for name, value in found.items() if name != PLAIN]
