"""transformers with one cache that is cropped to what the next request shares with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import DynamicCache

from benchmarks.ideal import common_prefix
from benchmarks.measure import Float32, Ids
from benchmarks.peers.transformers_model import TransformersModel


class OneCache(TransformersModel):
    """What most programs do: requests one after the other, each continuing the last one's cache where it can."""

    name = "transformers, one cache"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._held: list[int] = []  # the tokens in the cache
        self._cache: Any = DynamicCache()

    def logprobs(self, contexts: Sequence[Ids]) -> Float32:
        """One after the other."""
        rows = []
        for context in contexts:
            kept = self._crop(context)
            rows.append(self.logprobs_after(self.tensor([context[kept:]]), self._cache)[0])
            self._held = list(context)
        return np.stack(rows)

    def answers(self, prompts: Sequence[Ids], n: int) -> list[list[int]]:
        """One after the other."""
        answers = []
        for prompt in prompts:
            self._crop(prompt)
            answers.append(self.greedy(prompt, n, self._cache))
            self._held = [*prompt, *answers[-1][:-1]]  # generate does not push its last token
        return answers

    def forget(self) -> None:
        """An empty cache."""
        self._held, self._cache = [], DynamicCache()

    def _crop(self, ids: Ids) -> int:
        """Crops the cache to what `ids` share with it, less their last token, whose logits are wanted; tokens left."""
        kept = min(common_prefix(self._held, ids), len(ids) - 1)
        if kept < len(self._held):
            self._cache.crop(kept - len(self._held))
        return kept
