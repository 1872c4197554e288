"""transformers as it comes: every request begins at its first token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.measure import Float32, Ids
from benchmarks.peers.transformers_model import TransformersModel


class Stateless(TransformersModel):
    """One padded-free forward per length for a batch of contexts, one `generate` per prompt; nothing is kept between."""

    name = "transformers, stateless"

    def logprobs(self, contexts: Sequence[Ids]) -> Float32:
        """Contexts of equal length share a forward."""
        by_length: dict[int, list[int]] = {}
        for i, context in enumerate(contexts):
            by_length.setdefault(len(context), []).append(i)
        rows: dict[int, Float32] = {}
        for indices in by_length.values():
            rows |= zip(indices, self.logprobs_after(self.tensor([contexts[i] for i in indices])), strict=True)
        return np.stack([rows[i] for i in range(len(contexts))])

    def answers(self, prompts: Sequence[Ids], n: int) -> list[list[int]]:
        """One after the other."""
        return [self.greedy(prompt, n) for prompt in prompts]

    def forget(self) -> None:
        """There is nothing to forget."""
