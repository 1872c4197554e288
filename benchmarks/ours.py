"""Elsewise as a subject and as a contender, mostly through the runtime's public API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.clock import Lap, Stopwatch
from benchmarks.findings import Case
from benchmarks.forwards import Forwards
from benchmarks.measure import Float32, Ids, distinct_prefixes
from runtime import BeamOptions, GenerationOptions, LanguageModel, Metrics, SamplingOptions, load


def one_thread(backend: str) -> dict[str, Any]:
    """Load options that limit the backend's library to one thread."""
    return {"threads": 1} if backend == "hf" else {}


def open_model(folder: Path, backend: str, *, kv_cache_bytes: int | None = None, **options: Any) -> LanguageModel:
    """Loads a model in this process with the benchmark's options; None is the backend's default KV budget."""
    return load(folder, backend, kv_cache_bytes=kv_cache_bytes, **{**one_thread(backend), **options})


class _Opened:
    """A model in this process, on one thread of its library, with an event loop.

    Args:
        folder: The folder of the model.
        backend: Name of the backend.
        options: Further fields of `LoadOptions`.
    """

    def __init__(self, folder: Path, backend: str, **options: Any) -> None:
        self.model = open_model(folder, backend, **options)
        self._runner = asyncio.Runner()

    @property
    def tokens_computed(self) -> int:
        """Tokens pushed through the model, as the scheduler counts them."""
        return self.model.metrics().tokens_computed

    def close(self) -> None:
        self.model.close()
        self._runner.close()


class _Watched(_Opened):
    """A model whose laps can be timed by its forwards alone, or without them: `_watch` makes the stopwatch of a lap."""

    _watch: Callable[[], Stopwatch] = Stopwatch

    def forwards(self, run: Callable[[], Lap]) -> Lap:
        """A lap that counts only the time of its forwards."""
        return self._watched(run, Forwards.watch)

    def rest(self, run: Callable[[], Lap]) -> Lap:
        """A lap that counts only the time outside its forwards; these are waited for, so that no work overlaps with them."""
        return self._watched(run, Forwards.watch_rest)

    def _watched(self, run: Callable[[], Lap], watch: Callable[[Forwards], Stopwatch]) -> Lap:
        with Forwards(self.model) as forwards:
            self._watch = partial(watch, forwards)
            try:
                return run()
            finally:
                del self._watch


class Ours(_Opened):
    """Elsewise as a subject; generation makes records with the usual ten alternatives per token."""

    name = "elsewise"

    @property
    def metrics(self) -> Metrics:
        return self.model.metrics()

    @property
    def kv_bytes_per_token(self) -> int:
        return self.model.info.kv_bytes_per_token

    def logprobs(self, contexts: Sequence[Ids]) -> Float32:
        """Log-probabilities after each context, by one batch query."""
        loop = self._runner.get_loop()  # Runner.run ends with signal.getsignal, which formats the whole answer as text
        return loop.run_until_complete(self.model.batch_next_token_logprobs(contexts))

    def answers(self, prompts: Sequence[Ids], n: int) -> list[list[int]]:
        """Greedy answers of `n` tokens, all generated at once."""

        async def all_of_them() -> list[list[int]]:
            return await asyncio.gather(*(self._answer(prompt, n) for prompt in prompts))

        return self._runner.run(all_of_them())

    def forget(self) -> None:
        self.model.clear_cache()

    async def _answer(self, prompt: Ids, n: int) -> list[int]:
        greedy = SamplingOptions(temperature=0.0)
        options = GenerationOptions(max_tokens=n, sampling=greedy, ignore_eos=True, seed=0, resolve=False)
        async with aclosing(self.model.generate(prompt, options)) as records:
            return [record.token_id async for record in records]


def our_subject(case: Case) -> Ours:
    """The subject of a case, with the default KV budget; loaded on first use."""
    return case.loaded.get(Ours, lambda: Ours(case.folder, case.backend))


class OurBranches(_Watched):
    """Branches and beams; every lap begins with an empty cache and includes the prefill."""

    computed = 0  # tokens that the last lap pushed through the model
    needed = 0  # fewest tokens that its branches need, see `benchmarks.measure`

    def branches(self, prompt: Ids, n: int, tokens: int) -> Lap:
        """Draws `tokens` tokens in each of `n` continuations of the prompt, with records of ten alternatives."""
        sampling = SamplingOptions(temperature=1.0)
        options = GenerationOptions(max_tokens=tokens, sampling=sampling, ignore_eos=True, seed=0, resolve=False)

        async def main() -> list[list[int]]:
            answers: list[list[int]] = [[] for _ in range(n)]
            async with aclosing(self.model.continue_many(prompt, n, options)) as records:
                async for branch, record in records:
                    answers[branch].append(record.token_id)
            return answers

        watch = self._begin()
        answers = self._runner.run(main())
        lap = self._end(watch.lap(sum(map(len, answers))))
        self.needed = distinct_prefixes([*prompt, *answer[:-1]] for answer in answers)  # last tokens are not pushed
        return lap

    def beams(self, prompt: Ids, width: int, tokens: int) -> Lap:
        """Beam search with `width` beams of `tokens` tokens."""
        options = BeamOptions(width, tokens, ignore_eos=True)
        watch = self._begin()
        found = self._runner.run(self.model.beam_generate(prompt, options))
        return self._end(watch.lap(width * tokens, [one.ids for one in found]))

    def _begin(self) -> Stopwatch:
        self.model.clear_cache()
        self.computed = -self.model.metrics().tokens_computed
        return self._watch().start()

    def _end(self, lap: Lap) -> Lap:
        self.model.prefix_match([0])  # runs after the last step, whose tokens are then counted
        self.computed += self.model.metrics().tokens_computed
        return lap


class OurStreams(_Watched):
    """Streams and scores; a lap begins with an empty cache unless `warm` is given."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of the linear modules' weights that a token of one stream reads (hf)."""
        backend: Any = self.model.transport.engine.backend  # type: ignore[attr-defined]  # no public access
        return int(backend.weight_bytes)

    def decode(self, prompts: Sequence[Ids], n: int, *, top_k: int = 10, warm: bool = False) -> Lap:
        """Decodes `n` greedy tokens after each prompt, all at once, with records of `top_k` alternatives.

        The clock starts when every stream has its first token. With `warm`, the cache is not cleared before.
        """
        if not warm:
            self.model.clear_cache()
        return self._runner.run(self._decode(prompts, n, top_k))

    def score(self, ids: Ids) -> Lap:
        """Scores a text: makes the records of all its tokens."""
        self.model.clear_cache()
        watch = self._watch().start()
        records = self._runner.run(self.model.score(ids))
        return watch.lap(len(records))

    async def _decode(self, prompts: Sequence[Ids], n: int, top_k: int) -> Lap:
        greedy = SamplingOptions(temperature=0.0)
        options = GenerationOptions(max_tokens=n, sampling=greedy, ignore_eos=True, seed=0, resolve=False, top_k=top_k)
        watch = self._watch()
        answers: list[list[int]] = [[] for _ in prompts]
        before = 0  # tokens that came before the clock started

        async def stream(prompt: Ids, answer: list[int]) -> None:
            nonlocal before
            async with aclosing(self.model.generate(prompt, options)) as records:
                async for record in records:
                    answer.append(record.token_id)
                    if len(answer) == 1 and all(answers):
                        before = sum(map(len, answers))
                        watch.start()

        await asyncio.gather(*map(stream, prompts, answers))
        return watch.lap(len(prompts) * n - before, answers)


def our_streams(case: Case) -> OurStreams:
    """The streams of a case; loaded on first use."""
    return case.loaded.get(OurStreams, lambda: OurStreams(case.folder, case.backend))
