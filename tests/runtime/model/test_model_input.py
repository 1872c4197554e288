"""The calls of the library's own model, counted: the metrics agree, and no more is computed than needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel, load
from runtime.errors import NonFiniteLogitsError
from runtime.options.generation import GenerationOptions, SamplingOptions
from tests.fakes import engine_of, settled, some_ids
from tests.runtime.backends.reference import TOLERANCE, expected
from tests.runtime.model.trouble import poison
from tests.tiny_models import tiny_path

ATTENTION = [("hf", "llama"), ("hf", "gemma3"), ("mlx", "llama"), ("mlx", "gemma3")]
RECURRENT = [("hf", "mamba"), ("hf", "lfm2"), ("hf", "falcon_h1"), ("mlx", "mamba"), ("mlx", "lfm2"), ("mlx", "falcon_h1")]
GREEDY = GenerationOptions(max_tokens=6, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, top_k=0)


class Door:
    """Stands in for an mlx-lm model: records the number of tokens of each call."""

    def __init__(self, model: Any) -> None:
        self._inside = model
        self.calls: list[int] = []

    def watch(self, prepare: Callable[..., Any]) -> Callable[..., Any]:
        """A prepared forward counts once it is begun: until then nothing is computed."""

        def prepared(*args: Any) -> Any:
            before = len(self.calls)
            rest = prepare(*args)
            made = self.calls[before:]
            del self.calls[before:]

            def begin(tokens: Any) -> Any:
                self.calls += made
                return rest(tokens)

            return None if rest is None else begin

        return prepared

    def __call__(self, tokens: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(int(tokens.size))
        return self._inside(tokens, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inside, name)


@contextmanager
def watched(backend: str, name: str, **options: Any) -> Iterator[tuple[LanguageModel, list[int]]]:
    """A tiny model, and the number of tokens of each call of the library's model."""
    with load(tiny_path(name), backend=backend, threads=1 if backend == "hf" else None, **options) as model:
        inner: Any = engine_of(model).backend
        if backend == "mlx":
            inner.model = door = Door(inner.model)
            inner.prepare = door.watch(inner.prepare)
            calls = door.calls
        else:
            calls = []
            inner.model.register_forward_pre_hook(
                lambda _, args, kwargs: calls.append(int(kwargs["input_ids"].numel())), with_kwargs=True
            )
        yield model, calls
        metrics = settled(model)[0]
        assert metrics.tokens_computed == sum(calls)
        assert metrics.forward_calls == len(calls)


def distinct(paths: Sequence[Sequence[int]]) -> int:
    """The number of tokens in a trie of the paths."""
    return len({tuple(path[:n]) for path in paths for n in range(1, len(path) + 1)})


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("backend", "name"), [*ATTENTION, *RECURRENT])
def test_every_computed_token_is_counted(backend: str, name: str) -> None:
    # given all kinds of work: branches of a prompt, unrelated prompts, scores, streams that end early
    stem = some_ids(1, 40, 900)
    branches = [[*stem, *some_ids(10 + i, 1 + 3 * i, 900)] for i in range(5)]

    async def main(model: LanguageModel) -> None:
        await model.batch_next_token_logprobs([*branches, some_ids(2, 7, 900), branches[1]])
        await asyncio.gather(model.score(branches[4]), model.score(some_ids(3, 30, 900)), model.next_token_logprobs(stem[:9]))
        await model.batch_sample([stem, branches[2]], 5, [], temperature=0.0)
        async with aclosing(model.generate(branches[3], GREEDY)) as stream:
            async for _ in stream:
                break

    with watched(backend, name) as (model, _):
        asyncio.run(main(model))


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "name"), [("hf", "llama"), ("mlx", "llama"), ("hf", "lfm2"), ("mlx", "lfm2")])
def test_the_tokens_of_failed_calls_are_counted_too(backend: str, name: str) -> None:
    # given a model that gives NaN after one token
    guilty = 950
    paths = [[*some_ids(seed, 9, 900), token] for seed, token in enumerate((5, guilty, 7, 8))]

    async def main(model: LanguageModel) -> list[Any]:
        return await asyncio.gather(*(model.next_token_logprobs(path) for path in paths), return_exceptions=True)

    with watched(backend, name) as (model, calls):
        engine_of(model).call(lambda: poison(model, guilty, np.nan)).result()
        answers = asyncio.run(main(model))
        assert [isinstance(answer, NonFiniteLogitsError) for answer in answers] == [False, True, False, False]
        # then the batch was computed again in parts, and the metrics include that
        assert sum(calls) > distinct(paths)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "name"), RECURRENT)
def test_prompts_that_end_inside_others_are_computed_once(backend: str, name: str) -> None:
    # given prompts that are prefixes of one another, in any order, and a branch
    longest = some_ids(1, 90, 900)
    prompts = [longest[:50], longest, longest[:20], longest[:50], [*longest[:20], 7, 8]]
    with watched(backend, name) as (model, calls):
        rows = model.batch_next_token_logprobs_sync(prompts)
        # then each token of their tree is computed once
        assert sum(calls) == distinct(prompts)
        for prompt, row in zip(prompts, rows, strict=True):
            np.testing.assert_allclose(row, expected(name, prompt)[-1], atol=TOLERANCE, rtol=0)
        # and a request that continues one of them, together with others or later, computes only its own tokens
        tails = asyncio.run(model.batch_sample(prompts, 4, [], temperature=0.0))
        paths = [[*prompt, *tail[:-1]] for prompt, tail in zip(prompts, tails, strict=True)]
        assert sum(calls) == distinct(paths)
        for end in (20, 50, 90):
            paths.append([*longest[:end], 11, 12])
            model.next_token_logprobs_sync(paths[-1])
            assert sum(calls) == distinct(paths)
