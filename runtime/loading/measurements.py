"""Measurements of a model, stored on the shelf by the digest of its weights; missing ones are measured again."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resources.files import read_regular
from runtime.loading.integrity import write_atomically
from runtime.loading.paths import make_private, models_dir

MAX_BYTES = 1 << 20
THREADS = "threads"
_PLACE = ".measured"


def measurement(digest: str, key: str) -> dict[str, Any]:
    """The values under a key; empty without one.

    Args:
        digest: `ModelFolder.weights_digest`, or `ShelfEntry.fingerprint`.
        key: The measurement and its conditions ("perplexity", "threads, ...").
    """
    found = _read(_file(digest)).get(key)
    return dict(found) if isinstance(found, Mapping) else {}


def measured_threads(digest: str) -> dict[str, dict[int, float]]:
    """Seconds per token by number of threads, for each "FORM OF THE WEIGHTS, MACHINE" that was measured."""
    found: dict[str, dict[int, float]] = {}
    for key in _read(_file(digest)):
        kind, comma, what = key.partition(", ")
        if kind == THREADS and comma:
            times = measurement(digest, key).items()
            found[what] = {int(n): seconds for n, seconds in times if n.isdigit() and isinstance(seconds, float)}
    return found


def keep_measurement(digest: str, key: str, value: Mapping[str, Any]) -> None:
    """Replaces the values under a key; does nothing on a read-only shelf."""
    file = _file(digest)
    with contextlib.suppress(OSError):
        make_private(file.parent)
        write_atomically(file, json.dumps({**_read(file), key: dict(value)}, indent=1).encode())


def forget_measurements(digest: str) -> None:
    """Removes the measurements of a removed model."""
    with contextlib.suppress(OSError):
        _file(digest).unlink()


def _file(digest: str) -> Path:
    return models_dir() / _PLACE / f"{digest}.json"


def _read(file: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_regular(file, MAX_BYTES))
        return found if isinstance(found, dict) else {}
    return {}


PLAIN = "float32"
KEY = "perplexity"
FORMAT = 1  # increased when the text or a kernel changes, which discards stored perplexities
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
    """Perplexities of a model on the fixed text.

    Attributes:
        weights: Form of the weights, as in `LoadOptions.weights`.
        plain: With weights in float32.
        packed: With weights in that form.
    """

    weights: str
    plain: float
    packed: float

    def __str__(self) -> str:
        """For example "41.06, float32 41.02 (+0.1 %)"."""
        change = f" ({100 * (self.packed / self.plain - 1):+.1f} %)" if math.isfinite(self.plain) and self.plain > 0 else ""
        return f"{self.packed:.4g}, {PLAIN} {self.plain:.4g}{change}"


def kept_perplexities(digest: str) -> dict[str, float]:
    """The stored perplexities of a model by form of its weights."""
    found = measurement(digest, KEY)
    if found.pop("format", None) != FORMAT:
        return {}
    return {str(name): value for name, value in found.items() if isinstance(value, float)}


def keep_perplexities(digest: str, found: Mapping[str, float]) -> None:
    """Stores perplexities for `kept_perplexities`."""
    keep_measurement(digest, KEY, {"format": FORMAT, **found})


def measured_perplexities(digest: str) -> list[Perplexities]:
    """Perplexities of each measured form of a model's weights except float32; the digest is `ShelfEntry.fingerprint`."""
    found = kept_perplexities(digest)
    plain = found.get(PLAIN)
    return [] if plain is None else [Perplexities(name, plain, value) for name, value in found.items() if name != PLAIN]
