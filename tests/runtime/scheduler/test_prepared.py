"""Forwards that are prepared while the one before them computes: used wherever that is possible, and never wrong."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from runtime.backends.fake import Behaviour
from runtime.model import LocalModel, load
from runtime.options import GenerationOptions, SamplingOptions
from tests.fakes import reference
from tests.runtime.backends.reference import HF, RECURRENT, TOLERANCE, expected
from tests.runtime.model.trouble import NativePanic, audit
from tests.tiny_models import tiny_path

N = 24
WAYS = {
    "greedy": SamplingOptions(temperature=0.0),
    "drawn": SamplingOptions(temperature=1.0, top_p=0.95),
}
SOURCES = [("fake", "overlapping"), *(("mlx", name) for name in HF if name not in RECURRENT)]


class Counted:
    """How many forwards a model has prepared, and how many of these it has begun."""

    def __init__(self, model: LocalModel) -> None:
        self.prepared = self.begun = 0
        backend: Any = model._engine.backend
        prepare = backend.prepare

        def counted(*args: Any) -> Any:
            rest = prepare(*args)
            self.prepared += rest is not None

            def begin(tokens: Any) -> Any:
                self.begun += 1
                return rest(tokens)

            return None if rest is None else begin

        backend.prepare = counted


def opened(backend: str, name: str) -> LocalModel:
    """A model, the toy or a tiny one."""
    model = load((Behaviour(overlaps=True), None) if backend == "fake" else tiny_path(name), backend=backend)
    assert isinstance(model, LocalModel)
    return model


def options(way: str, seed: int = 3) -> GenerationOptions:
    return GenerationOptions(max_tokens=N, sampling=WAYS[way], ignore_eos=True, seed=seed, resolve=False)


async def said(model: LocalModel, prompt: list[int], how: GenerationOptions) -> list[tuple[int, float | None]]:
    async with aclosing(model.generate(prompt, how)) as records:
        return [(record.token_id, record.logprob) async for record in records]


def check(backend: str, name: str, prompt: list[int], answer: list[tuple[int, float | None]]) -> None:
    """Every token has the log-probability that the reference gives it."""
    path = [*prompt, *(token for token, _ in answer)]
    if backend == "fake":
        rows = np.stack([reference(path[: at + 1]) for at in range(len(prompt) - 1, len(path) - 1)])
    else:
        rows = expected(name, path)[len(prompt) - 1 : -1]
    own = rows[np.arange(len(answer)), [token for token, _ in answer]]
    np.testing.assert_allclose([logprob or 0.0 for _, logprob in answer], own, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("backend", "name"), SOURCES)
def test_all_but_the_first_and_the_last_of_a_streams_forwards_are_prepared(backend: str, name: str, way: str) -> None:
    prompt = list(range(5, 45))
    with opened(backend, name) as model:
        counted = Counted(model)
        before = model.metrics().tokens_computed
        answer = asyncio.run(said(model, prompt, options(way)))
        check(backend, name, prompt, answer)
        # the first token comes of the prompt, the second's forward is not prepared, the third's is not for it was not begun
        assert (counted.prepared, counted.begun) == (N - 3, N - 3)
        assert model.metrics().tokens_computed - before == len(prompt) + N - 1
        audit(model)


@pytest.mark.parametrize(("backend", "name"), [("fake", "overlapping"), ("mlx", "llama"), ("mlx", "gemma3")])
def test_streams_that_come_and_go_say_what_they_say_alone(backend: str, name: str) -> None:
    """Branches of one prompt and strangers, of different lengths, with questions between them in the same packs."""
    stem = list(range(5, 30))
    prompts = [[*stem, 31], [*stem, 32], [*stem[:9], 33], [40, 41, 42], stem]

    async def all_of_them(model: LocalModel) -> list[list[tuple[int, float | None]]]:
        async def ask() -> None:
            for at in range(12):
                await model.next_token_logprobs([*stem, 50 + at])
                await asyncio.sleep(0.002 * (at % 3))

        how = [options("drawn" if i % 2 else "greedy", seed=i) for i in range(len(prompts))]
        asking = asyncio.create_task(ask())
        answers = await asyncio.gather(*(said(model, p, o) for p, o in zip(prompts, how, strict=True)))
        await asking
        return answers

    with opened(backend, name) as model:
        counted = Counted(model)
        together = asyncio.run(all_of_them(model))
        for prompt, answer in zip(prompts, together, strict=True):
            check(backend, name, prompt, answer)
        assert 0 < counted.begun < counted.prepared  # some were dropped for what came between
        audit(model)
    with opened(backend, name) as model:
        for i, (prompt, answer) in enumerate(zip(prompts, together, strict=True)):
            alone = asyncio.run(said(model, prompt, options("drawn" if i % 2 else "greedy", seed=i)))
            assert [token for token, _ in alone] == [token for token, _ in answer]


@pytest.mark.parametrize("error", [ValueError("broken"), NativePanic("panic"), MemoryError()])
def test_a_library_that_fails_where_there_are_no_tokens_yet_costs_nobody_anything(error: BaseException) -> None:
    prompt = [5, 6, 7]
    with opened("mlx", "llama") as model:
        backend: Any = model._engine.backend

        def broken(*_: Any) -> None:
            raise error

        backend.prepare = broken
        check("mlx", "llama", prompt, asyncio.run(said(model, prompt, options("greedy"))))
        audit(model)
