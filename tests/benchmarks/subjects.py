"""Subjects without a model, for tests of the code around them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.measure import Float32, Ids

VOCABULARY = 50


class Scripted:
    """Answers from the last token alone, and counts every token of its input, like a program without a cache."""

    name = "scripted"

    def __init__(self, *, short: bool = False) -> None:
        self.tokens_computed = 0
        self.forgotten = 0
        self.batches: list[list[list[int]]] = []
        self.prompts: list[list[list[int]]] = []
        self._short = short

    def logprobs(self, contexts: Sequence[Ids]) -> Float32:
        self.batches.append([list(context) for context in contexts])
        self.tokens_computed += sum(map(len, contexts))
        rows = np.zeros((len(contexts), VOCABULARY), np.float32)
        for row, context in zip(rows, contexts, strict=True):
            row[(context[-1] + 1) % VOCABULARY] = 100.0  # nothing else is ever drawn
        return rows

    def answers(self, prompts: Sequence[Ids], n: int) -> list[list[int]]:
        self.prompts.append([list(prompt) for prompt in prompts])
        self.tokens_computed += sum(len(prompt) + n - 1 for prompt in prompts)
        made = n - 1 if self._short else n
        return [[(prompt[-1] + 1 + i) % VOCABULARY for i in range(made)] for prompt in prompts]

    def forget(self) -> None:
        self.forgotten += 1

    def close(self) -> None:
        pass
