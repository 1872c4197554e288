"""Elsewise itself, through the runtime's public members."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from app.bench.measure import Float32, Ids
from runtime import GenerationOptions, SamplingOptions, load


class Ours:
    """A model in this process, on one thread of the library; generation records the usual ten alternatives per token.

    Args:
        folder: The model.
        backend: Its backend's name.
    """

    name = "elsewise"

    def __init__(self, folder: Path, backend: str) -> None:
        self._model = load(folder, backend, **({"threads": 1} if backend == "hf" else {}))
        self._runner = asyncio.Runner()

    @property
    def tokens_computed(self) -> int:
        """As the scheduler counts them."""
        return self._model.metrics().tokens_computed

    def logprobs(self, contexts: Sequence[Ids]) -> Float32:
        """One batch query."""
        return self._runner.run(self._model.batch_next_token_logprobs(contexts))

    def answers(self, prompts: Sequence[Ids], n: int) -> list[list[int]]:
        """All at once."""

        async def all_of_them() -> list[list[int]]:
            return await asyncio.gather(*(self._answer(prompt, n) for prompt in prompts))

        return self._runner.run(all_of_them())

    def forget(self) -> None:
        """Clears KV and vectors."""
        self._model.clear_cache()

    def close(self) -> None:
        """Ends the owner thread and the loop."""
        self._model.close()
        self._runner.close()

    async def _answer(self, prompt: Ids, n: int) -> list[int]:
        greedy = SamplingOptions(temperature=0.0)
        options = GenerationOptions(max_tokens=n, sampling=greedy, ignore_eos=True, seed=0, resolve=False)
        async with aclosing(self._model.generate(prompt, options)) as records:
            return [record.token_id async for record in records]
