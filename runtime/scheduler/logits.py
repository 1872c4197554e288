"""From the raw logits of a forward to distributions, as many rows at once as one forward gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from runtime.errors import NonFiniteLogitsError
from runtime.ranking import Ranked
from runtime.records import Float32
from runtime.scoring import normalised


@dataclass(frozen=True, slots=True)
class Distributions:
    """What a forward says of the next tokens."""

    logprobs: Float32  # (n, vocab); uniform where the logits are no numbers
    finite: npt.NDArray[np.bool_]  # (n,) which rows held numbers only
    entropy: Float32 | None  # (n,) nats, where it was asked for
    shift: Float32  # (n,) normalisers: raw logits less log-probabilities
    ranked: list[Ranked]  # n: the same rows, with what the draws learn of their order, for the records

    @classmethod
    def known(cls, last: Float32, shift: float = 0.0) -> Distributions:
        """One row ``(vocab,)`` that is remembered, and its normaliser."""
        return cls(last[None], np.ones(1, np.bool_), None, np.array([shift], np.float32), [Ranked(last)])


@dataclass(slots=True, eq=False)
class ChunkLogits:
    """The raw logits of one forward; the rows at which paths end are normalised together, when the first is asked for.

    Args:
        raw: ``(n, vocab)``.
        ends: Rows after which a path is complete.
    """

    raw: Float32
    ends: Sequence[int]
    _after: Distributions | None = None
    _places: dict[int, int] = field(default_factory=dict)

    def end(self, row: int, position: int) -> Float32:
        """The distribution ``(vocab,)`` of one of `ends`, after token `position` of its path.

        Raises:
            NonFiniteLogitsError: Its logits are no numbers.
        """
        if self._after is None:
            self._after = normalise(self.rows(self.ends), entropy=False)
            self._places = {place: i for i, place in enumerate(self.ends)}
        i = self._places[row]
        if not self._after.finite[i]:
            raise non_finite(position)
        last: Float32 = self._after.logprobs[i]
        return last

    def shift(self, row: int) -> float:
        """The normaliser of one of `ends`, whose distribution was asked for."""
        assert self._after is not None  # it was asked for
        return float(self._after.shift[self._places[row]])

    def rows(self, chosen: Sequence[int]) -> Float32:
        """Some rows, ascending; no copy where they lie side by side."""
        start, stop = chosen[0], chosen[-1] + 1
        rows: Float32 = self.raw[start:stop] if stop - start == len(chosen) else self.raw[np.array(chosen)]
        return rows


def normalise(logits: Float32, *, entropy: bool) -> Distributions:
    """Log-probabilities of raw logits ``(n, vocab)``."""
    n = len(logits)
    finite = np.empty(n, np.bool_)
    spread: Float32 | None = np.empty(n, np.float32) if entropy else None
    shift: Float32 = np.empty(n, np.float32)
    mass = np.empty(n)
    logprobs = normalised(logits, entropy=spread, finite=finite, shift=shift, mass=mass)
    if not finite.all():
        sound = normalise(np.where(finite[:, None], logits, np.float32(0)), entropy=entropy)
        return replace(sound, finite=finite)
    ranked = [Ranked(row, each) for row, each in zip(logprobs, mass.tolist(), strict=True)]
    return Distributions(logprobs, finite, spread, shift, ranked)


def non_finite(position: int) -> NonFiniteLogitsError:
    """The error for a row whose logits are not numbers."""
    return NonFiniteLogitsError(
        f"the model's logits at position {position:,} hold NaN or infinity; the weights may be damaged (verify the model) "
        "or the dtype too narrow (load with dtype='float32')"
    )
