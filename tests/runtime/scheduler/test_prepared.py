"""Forwards that are prepared while the previous one computes: used wherever that is possible, and never wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel, load
from runtime.adapters.stacks import Tags
from runtime.backends.fake import Behaviour
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.records import Float32
from runtime.scheduler.kv.kv_budget import KvBudget
from runtime.scheduler.kv.workspace import PartialForward, Workspace, begin, forward, prepare
from tests.fakes import engine_of, query_job, reference, settled
from tests.runtime.backends.reference import HF, RECURRENT, TOLERANCE, expected, log_softmax
from tests.runtime.model.trouble import NativePanic, audit
from tests.tiny_models import tiny_path

N = 24
WAYS = {
    "greedy": SamplingOptions(temperature=0.0),
    "drawn": SamplingOptions(temperature=1.0, top_p=0.95),
}
SOURCES = [("fake", "overlapping"), *(("mlx", name) for name in HF if name not in RECURRENT)]


class Counted:
    """How many forwards a model has prepared, and how many of these it has begun.

    Args:
        model: The model whose forwards are counted.
        at_fifth: Called on the owner thread when the fifth of them is begun.
    """

    def __init__(self, model: LanguageModel, at_fifth: Callable[[], None] = lambda: None) -> None:
        self.prepared = self.begun = 0
        backend: Any = engine_of(model).backend

        def counting(prepare: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*args: Any) -> Any:
                rest = prepare(*args)
                self.prepared += rest is not None

                def begin(tokens: Any) -> Any:
                    self.begun += 1
                    if self.begun == 5:
                        at_fifth()
                    return rest(tokens)

                return None if rest is None else begin

            return counted

        backend.prepare = counting(backend.prepare)


def opened(backend: str, name: str) -> LanguageModel:
    """A model, the toy or a tiny one."""
    model = load((Behaviour(overlaps=True), None) if backend == "fake" else tiny_path(name), backend=backend)
    assert isinstance(model, LanguageModel)
    return model


def options(way: str, seed: int = 3) -> GenerationOptions:
    return GenerationOptions(max_tokens=N, sampling=WAYS[way], ignore_eos=True, seed=seed, resolve=False)


async def said(model: LanguageModel, prompt: list[int], how: GenerationOptions) -> list[tuple[int, float | None]]:
    async with aclosing(model.generate(prompt, how)) as records:
        return [(record.token_id, record.logprob) async for record in records]


def after(backend: str, name: str, ids: list[int]) -> Float32:
    """``(vocab,)`` log-probabilities after a text, by the reference."""
    return reference(ids) if backend == "fake" else expected(name, ids)[-1]


def check(backend: str, name: str, prompt: list[int], answer: list[tuple[int, float | None]]) -> None:
    """Every token has the log-probability that the reference gives it."""
    path = [*prompt, *(token for token, _ in answer)]
    if backend == "fake":
        rows = np.stack([reference(path[: at + 1]) for at in range(len(prompt) - 1, len(path) - 1)])
    else:
        rows = expected(name, path)[len(prompt) - 1 : -1]
    own = rows[np.arange(len(answer)), [token for token, _ in answer]]
    np.testing.assert_allclose([logprob or 0.0 for _, logprob in answer], own, atol=TOLERANCE, rtol=0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("backend", "name"), SOURCES)
def test_all_but_the_first_and_the_last_of_a_streams_forwards_are_prepared(backend: str, name: str, way: str) -> None:
    prompt = list(range(5, 45))
    with opened(backend, name) as model:
        counted = Counted(model)
        before = model.metrics().tokens_computed
        answer = asyncio.run(said(model, prompt, options(way)))
        check(backend, name, prompt, answer)
        # the first token comes from the prompt, and the forwards of the second and the third are not prepared
        assert (counted.prepared, counted.begun) == (N - 3, N - 3)
        assert model.metrics().tokens_computed - before == len(prompt) + N - 1
        audit(model)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "name"), [("fake", "overlapping"), ("mlx", "llama"), ("mlx", "gemma3")])
def test_streams_that_run_beside_other_work_have_the_same_tokens_as_alone(backend: str, name: str) -> None:
    """Branches of one prompt and unrelated prompts, of different lengths, with queries between them in the same packs."""
    stem = list(range(5, 30))
    prompts = [[*stem, 31], [*stem, 32], [*stem[:9], 33], [40, 41, 42], stem]

    async def all_of_them(model: LanguageModel) -> list[list[tuple[int, float | None]]]:
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
        # a query that certainly arrives in the middle of the answers
        asked: Future[Float32] = Future()
        counted = Counted(model, lambda: engine_of(model).submit([query_job(model, [*stem, 200], asked)]))
        together = asyncio.run(all_of_them(model))
        np.testing.assert_allclose(asked.result(60)[0], after(backend, name, [*stem, 200]), atol=TOLERANCE, rtol=0)
        for prompt, answer in zip(prompts, together, strict=True):
            check(backend, name, prompt, answer)
        assert 0 < counted.begun < counted.prepared  # some were dropped because a query came in between
        audit(model)
    with opened(backend, name) as model:
        for i, (prompt, answer) in enumerate(zip(prompts, together, strict=True)):
            alone = asyncio.run(said(model, prompt, options("drawn" if i % 2 else "greedy", seed=i)))
            assert [token for token, _ in alone] == [token for token, _ in answer]


@pytest.mark.slow
@pytest.mark.parametrize("error", [ValueError("broken"), NativePanic("panic"), MemoryError()])
def test_a_library_that_fails_to_prepare_a_forward_does_not_affect_the_answer(error: BaseException) -> None:
    prompt = [5, 6, 7]
    with opened("mlx", "llama") as model:
        backend: Any = engine_of(model).backend

        def broken(*_: Any) -> None:
            raise error

        backend.prepare = broken
        check("mlx", "llama", prompt, asyncio.run(said(model, prompt, options("greedy"))))
        audit(model)


def test_a_prepared_forward_that_does_not_fit_is_freed_before_another_begins() -> None:
    """A prepared forward holds the buffers: while it is alive, the other forward would copy all of them."""
    import mlx.core as mx

    with opened("mlx", "llama") as model:
        backend = engine_of(model).backend
        workspace = Workspace(backend, Tags(backend.info.kv_fingerprint), KvBudget(backend, 1 << 30, enabled=True))
        prompt = [5, 6, 7, 8]
        for at, token in enumerate(prompt):
            workspace.paths.add(at - 1, token)
        forward([PartialForward(workspace, prompt, range(-1, 3), [])], workspace.backend.compute)
        workspace.resize(40_000)
        path = list(prompt)
        for at in range(4, 12):
            workspace.paths.add(at - 1, at)
            path.append(at)
            mx.reset_peak_memory()
            before = mx.get_active_memory()
            begin([PartialForward(workspace, [at], [at - 1], [0])])  # for other parents than was prepared, from the second on
            prepare([PartialForward(workspace, [0, 0], [at, at], range(2))])
            assert workspace.prepared is not None
            logits = workspace.collect()
            assert isinstance(logits, np.ndarray)
            assert mx.get_peak_memory() - before < workspace.nbytes / 16, at
            np.testing.assert_allclose(log_softmax(logits)[0], expected("llama", path)[-1], atol=TOLERANCE, rtol=0)
        workspace.close()


@pytest.mark.parametrize(("n", "some"), [(2, True), (3, False)])
def test_nothing_is_prepared_where_other_rows_are_computed_first(n: int, some: bool) -> None:
    """With more rows than a batch may have, each step computes the remaining ones, and a prepared forward would be dropped."""
    with load((Behaviour(overlaps=True), None), backend="fake", max_batch_rows=2) as model:
        assert isinstance(model, LanguageModel)
        counted, said = Counted(model), dict[int, list[tuple[int, float | None]]]()

        async def main() -> None:
            async with aclosing(model.continue_many([5, 6, 7], n, options("drawn"))) as records:
                async for branch, record in records:
                    said.setdefault(branch, []).append((record.token_id, record.logprob))

        asyncio.run(main())
        assert [len(said[branch]) for branch in range(n)] == [N] * n
        for answer in said.values():
            check("fake", "overlapping", [5, 6, 7], answer)
        assert (counted.prepared > 0) == some


@pytest.mark.parametrize("ends", ["eos", "closed", "cut"])
def test_no_prepared_forward_outlives_its_stream(ends: str) -> None:
    """A prepared forward holds the pack's buffers, and the weights of the adapters that it would be computed under."""
    with opened("fake", "overlapping") as model:
        prompt, counted = [5, 6, 7], Counted(model)
        plain = asyncio.run(said(model, prompt, options("greedy")))
        assert counted.prepared > 0
        eos = tuple(token for token, _ in plain[9:10])
        how = options("greedy") if ends != "eos" else replace(options("greedy"), ignore_eos=False, eos_token_ids=eos)

        async def some() -> None:
            async with aclosing(model.generate(prompt, how)) as records:
                async for _ in records:
                    if ends == "closed":
                        break

        asyncio.run(some())
        settled(model)
        assert all(workspace.prepared is None for workspace in engine_of(model).scheduler.cache.workspaces.open)
        assert engine_of(model).scheduler.cache.workspaces.open
        audit(model)
