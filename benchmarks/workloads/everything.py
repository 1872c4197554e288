"""W8: everything at once, by awaiting: a chat, particles, a text being scored, branches, until the time is up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import numpy as np

from benchmarks.measure import Ids
from runtime import GenerationOptions, LanguageModel, SamplingOptions

PARTICLES = 8
STEM, TURN, TEXT = 64, 48, 256  # tokens of the particles' prompt, a chat's turn, a text to be scored
CHAT_TOKENS = 1500  # from which a new chat begins
STEPS = 16  # after which the particles begin again
BRANCHES = 4


class Everything:
    """Tasks that use a model in every way at once.

    They choose tokens without looking at the answers: what an event loop is kept busy with is then the library's own.

    Args:
        model: In this process or another.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._vocabulary = model.info.vocab_size
        self.finished = {"chat": 0, "particles": 0, "score": 0, "branches": 0}  # how often each of them came round

    async def run(self, seconds: float) -> None:
        """Until then; what is in work is finished first."""
        end = time.monotonic() + seconds
        tasks = {"chat": self._chat, "particles": self._particles, "score": self._score, "branches": self._branches}
        await asyncio.gather(*(self._repeat(name, task, end) for name, task in tasks.items()))

    async def _repeat(self, name: str, task: Callable[[np.random.Generator, float], Awaitable[None]], end: float) -> None:
        rng = np.random.default_rng(len(name))
        while time.monotonic() < end:
            await task(rng, end)
            self.finished[name] += 1

    async def _chat(self, rng: np.random.Generator, end: float) -> None:
        transcript: list[int] = []
        while len(transcript) < CHAT_TOKENS and time.monotonic() < end:
            transcript += self._tokens(rng, TURN)
            transcript += await self._answer(transcript, TURN // 2)

    async def _particles(self, rng: np.random.Generator, end: float) -> None:
        population = [self._tokens(rng, STEM)] * PARTICLES
        for _ in range(STEPS):
            await self._model.batch_next_token_logprobs(population)
            if time.monotonic() >= end:
                return
            population = [[*particle, *self._tokens(rng, 1)] for particle in population]

    async def _score(self, rng: np.random.Generator, _end: float) -> None:
        await self._model.score_run(self._tokens(rng, TEXT))

    async def _branches(self, rng: np.random.Generator, _end: float) -> None:
        text = self._tokens(rng, TEXT)
        await asyncio.gather(*(self._answer([*text, token], TURN // 2) for token in self._tokens(rng, BRANCHES)))

    async def _answer(self, prompt: Ids, n: int) -> list[int]:
        options = GenerationOptions(
            max_tokens=n, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, seed=0, resolve=False
        )
        answer: list[int] = []
        async with aclosing(self._model.generate_runs(prompt, options)) as runs:
            async for run in runs:
                answer += run.ids.tolist()
        return answer

    def _tokens(self, rng: np.random.Generator, n: int) -> list[int]:
        drawn: list[int] = rng.integers(self._vocabulary, size=n).tolist()
        return drawn
