"""Temperature, top-k, top-p, min-p, draw: one row at a time, over as little of the vocabulary as settles it.

Semantics follow Hugging Face transformers' logits warpers (top-p keeps the token that crosses the border); min-p is
Nguyen et al. 2024 (arXiv:2407.01082).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.options import SamplingOptions
from runtime.records import Float32
from runtime.sampling.draw import inverse_cdf, uniform
from runtime.scoring import falling, low_borders

HEAD = 256  # most distributions are settled among this many
COLDEST = 1e-30  # below it float32 knows no temperature; the likeliest has all of the weight long before


@dataclass(frozen=True, slots=True)
class Sampler:
    """Resolved settings of one stream.

    Args:
        temperature: 0 is greedy: the likeliest id, the lowest among equals.
        top_k: 0 is off.
        top_p: 1 is off.
        min_p: 0 is off.
        seed: Key of the stream's random numbers.
        branch: Separates streams that share a seed.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    branch: int = 0

    def draw(self, logprobs: Float32, position: int, *, allowed: npt.NDArray[np.bool_] | None = None) -> tuple[int, float]:
        """The token for one row ``(vocab,)`` at `position`, and the number it was drawn with (NaN when greedy).

        Args:
            logprobs: Of the model.
            position: Of the token in its path.
            allowed: ``(vocab,)``, at least one: of these alone it is drawn.
        """
        if allowed is not None:
            ids = np.flatnonzero(allowed)
            chosen, u = self.draw(logprobs[ids], position)
            return int(ids[chosen]), u
        if self.temperature == 0.0:
            return int(logprobs.argmax()), float("nan")
        u = uniform(self.seed, position, self.branch)
        vocab = len(logprobs)
        total = 0.0 if self.top_k else self._total(logprobs)
        head = min(self.top_k or HEAD, vocab)
        while True:
            ids = falling(logprobs, head, low_borders(logprobs[None], head)[0])
            weights = self._weights(logprobs[ids])
            kept = self._kept(weights, total, whole=head == vocab or head == self.top_k)
            if kept is not None:
                break
            head = min(head * 8, vocab)
        if self._open_ended and kept == head < vocab:
            return self._draw_beyond(logprobs, weights, total, ids, u), u
        return int(ids[inverse_cdf(weights[:kept], u)]), u

    def _total(self, logprobs: Float32) -> float:
        """The sum of all weights; nothing but a border at a share of it depends on it."""
        scaled = logprobs - logprobs.max()
        with np.errstate(over="ignore"):
            scaled /= np.float32(max(self.temperature, COLDEST))
        return float(np.exp(scaled, out=scaled).sum())

    def _weights(self, falling_logprobs: Float32) -> npt.NDArray[np.float64]:
        """What is drawn by: probabilities at the temperature, the likeliest of them 1."""
        scaled = falling_logprobs.astype(np.float64)
        scaled -= scaled[0]  # before the division: the likeliest stays at 0 however small the temperature
        with np.errstate(over="ignore"):
            weights: npt.NDArray[np.float64] = np.exp(scaled / self.temperature)
        return weights

    @property
    def _open_ended(self) -> bool:
        return self.top_k == 0 and self.top_p >= 1.0 and self.min_p == 0.0

    def _kept(self, weights: npt.NDArray[np.float64], total: float, *, whole: bool) -> int | None:
        """How many of the falling weights survive; None when the answer lies beyond them."""
        n = len(weights)
        if self._open_ended:
            return n
        if self.top_k:
            total = float(weights.sum())
        if self.top_p < 1.0:
            below = np.cumsum(weights) < self.top_p * total
            crossing = int(below.sum())
            if crossing >= n and not whole:
                return None
            n = min(crossing + 1, n)
        if self.min_p > 0.0:
            kept = int((weights[:n] >= self.min_p * weights[0]).sum())
            if kept == len(weights) and not whole:
                return None
            n = max(kept, 1)
        return n

    def _draw_beyond(
        self,
        logprobs: Float32,
        weights: npt.NDArray[np.float64],
        total: float,
        ids: npt.NDArray[np.int64],
        u: float,
    ) -> int:
        """No stage cuts: the head settles most draws, the whole vocabulary is sorted for the rest."""
        edges = np.cumsum(weights)
        if u * total < edges[-1]:
            return int(ids[int(np.searchsorted(edges, u * total, side="right"))])
        order = np.lexsort((np.arange(len(logprobs)), -logprobs))
        return int(order[inverse_cdf(self._weights(logprobs[order]), u)])


def resolve_sampler(options: SamplingOptions, model: SamplingOptions, seed: int, branch: int) -> Sampler:
    """Call, then the model's own settings, then: temperature 1, no cut."""

    def pick(name: str, default: float) -> float:
        for source in (options, model):
            value = getattr(source, name)
            if value is not None:
                return float(value)
        return default

    return Sampler(
        temperature=pick("temperature", 1.0),
        top_k=int(pick("top_k", 0)),
        top_p=pick("top_p", 1.0),
        min_p=pick("min_p", 0.0),
        seed=seed,
        branch=branch,
    )
