"""Elsewise as a subject and as a contender, through the runtime's public members."""

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
    """The load options that keep a backend to one thread of its library."""
    return {"threads": 1} if backend == "hf" else {}


def open_model(folder: Path, backend: str, *, kv_cache_bytes: int | None = None, **options: Any) -> LanguageModel:
    """A model in this process, as the benchmark loads it."""
    return load(folder, backend, kv_cache_bytes=kv_cache_bytes, **{**one_thread(backend), **options})


class _Opened:
    """A model in this process, on one thread of the library, and an event loop.

    Args:
        folder: The model.
        backend: Its backend's name.
        options: Of `LoadOptions`, beside those of every model here.
    """

    def __init__(self, folder: Path, backend: str, **options: Any) -> None:
        self.model = open_model(folder, backend, **options)
        self._runner = asyncio.Runner()

    @property
    def tokens_computed(self) -> int:
        """As the scheduler counts them."""
        return self.model.metrics().tokens_computed

    def close(self) -> None:
        """Ends the owner thread and the loop."""
        self.model.close()
        self._runner.close()


class _Watched(_Opened):
    """One whose laps can be timed by its forwards alone: they are stopped by the watch that `_watch` makes."""

    _watch: Callable[[], Stopwatch] = Stopwatch

    def forwards(self, run: Callable[[], Lap]) -> Lap:
        """A lap whose times are those of its forwards alone."""
        return self._watched(run, Forwards.watch)

    def rest(self, run: Callable[[], Lap]) -> Lap:
        """A lap whose times are those of all that is not a forward, one after the other: nothing hides behind a forward."""
        return self._watched(run, Forwards.watch_rest)

    def _watched(self, run: Callable[[], Lap], watch: Callable[[Forwards], Stopwatch]) -> Lap:
        with Forwards(self.model) as forwards:
            self._watch = partial(watch, forwards)
            try:
                return run()
            finally:
                del self._watch


class Ours(_Opened):
    """Generation records the usual ten alternatives per token."""

    name = "elsewise"

    @property
    def metrics(self) -> Metrics:
        """All counters."""
        return self.model.metrics()

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV that a token takes."""
        return self.model.info.kv_bytes_per_token

    def forwards(self) -> Forwards:
        """What stops the time of its forwards."""
        return Forwards(self.model)

    def logprobs(self, contexts: Sequence[Ids]) -> Float32:
        """One batch query."""
        loop = self._runner.get_loop()  # its own `run` would print the answer: signal.getsignal shows what it does not know
        return loop.run_until_complete(self.model.batch_next_token_logprobs(contexts))

    def answers(self, prompts: Sequence[Ids], n: int) -> list[list[int]]:
        """All at once."""

        async def all_of_them() -> list[list[int]]:
            return await asyncio.gather(*(self._answer(prompt, n) for prompt in prompts))

        return self._runner.run(all_of_them())

    def forget(self) -> None:
        """Clears KV and vectors."""
        self.model.clear_cache()

    async def _answer(self, prompt: Ids, n: int) -> list[int]:
        greedy = SamplingOptions(temperature=0.0)
        options = GenerationOptions(max_tokens=n, sampling=greedy, ignore_eos=True, seed=0, resolve=False)
        async with aclosing(self.model.generate(prompt, options)) as records:
            return [record.token_id async for record in records]


def our_subject(case: Case) -> Ours:
    """The one of a case, with the usual budget."""
    return case.loaded.get(Ours, lambda: Ours(case.folder, case.backend))


class OurBranches(_Watched):
    """Every lap begins without a cache, and the prompt is a part of it."""

    computed = 0  # tokens that the last lap pushed through the model
    needed = 0  # the fewest that its branches need, see `benchmarks.measure`

    def branches(self, prompt: Ids, n: int, tokens: int) -> Lap:
        """`tokens` drawn in each of `n` continuations of the prompt, with records of ten alternatives."""
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
        self.needed = distinct_prefixes([*prompt, *answer[:-1]] for answer in answers)  # the last ones are not pushed
        return lap

    def beams(self, prompt: Ids, width: int, tokens: int) -> Lap:
        """Beam search for hypotheses of `tokens`."""
        options = BeamOptions(width, tokens, ignore_eos=True)
        watch = self._begin()
        found = self._runner.run(self.model.beam_generate(prompt, options))
        return self._end(watch.lap(width * tokens, [one.ids for one in found]))

    def _begin(self) -> Stopwatch:
        self.model.clear_cache()
        self.computed = -self.model.metrics().tokens_computed
        return self._watch().start()

    def _end(self, lap: Lap) -> Lap:
        self.model.prefix_match([0])  # after the last step, so that it is counted
        self.computed += self.model.metrics().tokens_computed
        return lap


class OurStreams(_Watched):
    """A lap begins without a cache unless it says otherwise."""

    @property
    def weight_bytes(self) -> int:
        """That a token of one stream reads of linear modules (hf)."""
        backend: Any = self.model.transport.engine.backend  # type: ignore[attr-defined]  # nothing public lies so deep
        return int(backend.weight_bytes)

    def decode(self, prompts: Sequence[Ids], n: int, *, top_k: int = 10, warm: bool = False) -> Lap:
        """`n` greedy tokens after each prompt, all at once, with records of `top_k` alternatives.

        The clock starts when the last of the streams has its first token. With `warm`, the cache stays as it is.
        """
        if not warm:
            self.model.clear_cache()
        return self._runner.run(self._decode(prompts, n, top_k))

    def score(self, ids: Ids) -> Lap:
        """Records of all tokens of a text."""
        self.model.clear_cache()
        watch = self._watch().start()
        records = self._runner.run(self.model.score(ids))
        return watch.lap(len(records))

    async def _decode(self, prompts: Sequence[Ids], n: int, top_k: int) -> Lap:
        greedy = SamplingOptions(temperature=0.0)
        options = GenerationOptions(max_tokens=n, sampling=greedy, ignore_eos=True, seed=0, resolve=False, top_k=top_k)
        watch = self._watch()
        answers: list[list[int]] = [[] for _ in prompts]
        before = 0  # tokens that came before the clock ran

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
    """The one of a case."""
    return case.loaded.get(OurStreams, lambda: OurStreams(case.folder, case.backend))
