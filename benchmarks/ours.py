"""Elsewise itself, through the runtime's public members."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from benchmarks.findings import Case
from benchmarks.forwards import Forwards
from benchmarks.measure import Float32, Ids
from runtime import GenerationOptions, LanguageModel, Metrics, SamplingOptions, load


def one_thread(backend: str) -> dict[str, Any]:
    """The load options that keep a backend to one thread of its library."""
    return {"threads": 1} if backend == "hf" else {}


def open_model(folder: Path, backend: str, *, kv_cache_bytes: int | None = None, **options: Any) -> LanguageModel:
    """A model in this process, as the benchmark loads it."""
    return load(folder, backend, kv_cache_bytes=kv_cache_bytes, **one_thread(backend), **options)


class Ours:
    """A model in this process, on one thread of the library; generation records the usual ten alternatives per token.

    Args:
        folder: The model.
        backend: Its backend's name.
        kv_cache_bytes: Its budget; None for the usual one.
    """

    name = "elsewise"

    def __init__(self, folder: Path, backend: str, *, kv_cache_bytes: int | None = None) -> None:
        self._model = open_model(folder, backend, kv_cache_bytes=kv_cache_bytes)
        self._runner = asyncio.Runner()

    @property
    def tokens_computed(self) -> int:
        """As the scheduler counts them."""
        return self._model.metrics().tokens_computed

    @property
    def metrics(self) -> Metrics:
        """All counters."""
        return self._model.metrics()

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV that a token takes."""
        return self._model.info.kv_bytes_per_token

    def forwards(self) -> Forwards:
        """What stops the time of its forwards."""
        return Forwards(self._model)

    def logprobs(self, contexts: Sequence[Ids]) -> Float32:
        """One batch query."""
        loop = self._runner.get_loop()  # its own `run` would print the answer: signal.getsignal shows what it does not know
        return loop.run_until_complete(self._model.batch_next_token_logprobs(contexts))

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


def our_subject(case: Case) -> Ours:
    """The one of a case, with the usual budget."""
    return case.loaded.get(Ours, lambda: Ours(case.folder, case.backend))
