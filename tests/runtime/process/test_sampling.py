"""Sampling over the pipe: every setting is sent, and stages come back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from runtime import (
    GenerationOptions,
    Grammar,
    GrammarError,
    InvalidRequestError,
    LanguageModel,
    SamplingOptions,
    load,
    replay_draw,
    spawn,
)

EVERYTHING = GenerationOptions(
    max_tokens=8,
    sampling=SamplingOptions(
        temperature=1.2, top_k=50, top_p=0.97, min_p=0.001, typical_p=0.98, xtc_probability=0.5, xtc_threshold=0.05,
        repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1, penalty_window=9, dry_multiplier=0.5, dry_base=2.0,
        dry_allowed_length=3, dry_range=40, dry_breakers=("a", 7), logit_bias={3: 1.5}, banned_tokens=(9,),
        order=("penalties", "bias", "dry", "top_k", "temperature", "top_p", "min_p", "typical", "xtc"),
    ),
    stages=True,
    ignore_eos=True,
    seed=3,
)  # fmt: skip


@pytest.mark.slow
def test_a_spawned_model_samples_like_one_in_this_process() -> None:
    async def scenario() -> None:
        async with await spawn("mock", "mock") as client:
            with load("mock", "mock") as model:
                ids = model.tokenize("One two three.")
                ours = list(model.generate_sync(ids, EVERYTHING))
                theirs = [record async for record in client.generate(ids, EVERYTHING)]
                assert theirs == ours
                assert all(record.stages for record in theirs)
                assert [replay_draw(record).token for record in theirs] == [record.token_id for record in theirs]
                assert client.resolve_options(EVERYTHING) == model.resolve_options(EVERYTHING)
                bad = replace(EVERYTHING, sampling=SamplingOptions(banned_tokens=(10**6,)))
                with pytest.raises(InvalidRequestError, match="outside the vocabulary"):
                    [record async for record in client.generate(ids, bad)]

    asyncio.run(scenario())


def test_the_models_own_options_are_available_without_a_call(client: LanguageModel) -> None:
    assert client.own_options == GenerationOptions(max_tokens=77, sampling=SamplingOptions(temperature=0.5))
    resolved = client.resolve_options({"top_p": 0.5})
    assert (resolved.options.max_tokens, resolved.sources["max_tokens"]) == (77, "model")
    assert resolved.options.sampling.top_p == 0.5
    assert (resolved.options.eos_token_ids, resolved.options.stop) == ((7, 8), ("\nUser:",))
    assert (resolved.sources["eos_token_ids"], resolved.sources["stop"]) == ("model and format", "format")


@pytest.mark.slow
def test_a_mapping_as_options_is_refused_in_process_and_over_the_pipe() -> None:
    wrong: Any = {"max_tokenz": 3, "max_tokens": 2}

    async def refusals(model: LanguageModel) -> list[str]:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: model.complete("x", wrong),
            lambda: anext(model.generate([1], wrong)),
            lambda: anext(model.continue_many([1], 2, wrong)),
        ]
        told = []
        for call in calls:
            with pytest.raises(InvalidRequestError, match="from_mapping") as refused:
                await call()
            told.append(str(refused.value))
        return told

    async def scenario() -> None:
        async with await spawn("mock", "mock") as client, load("mock", "mock") as model:
            assert await refusals(client) == await refusals(model)

    asyncio.run(scenario())


@pytest.mark.slow
def test_eos_token_ids_of_a_request_apply_in_process_and_over_the_pipe() -> None:
    async def scenario() -> None:
        async with await spawn("mock", "mock") as client:
            with load("mock", "mock") as model:
                ids = model.tokenize("One two three.")
                free = GenerationOptions(max_tokens=20, seed=3, ignore_eos=True, resolve=False)
                drawn = [record.token_id for record in model.generate_sync(ids, free)]
                end = next(token for token in drawn[3:] if not model.is_eos(token))
                ended = replace(free, ignore_eos=False, eos_token_ids=(end,))
                ours = list(model.generate_sync(ids, ended))
                assert [record.token_id for record in ours] == drawn[: drawn.index(end) + 1]
                assert ours[-1].finish_reason == "eos"
                assert [record async for record in client.generate(ids, ended)] == ours
                nothing = replace(ended, eos_token_ids=())
                assert [record.token_id for record in model.generate_sync(ids, nothing)] == drawn
                before = model.metrics().tokens_computed
                outside = replace(ended, eos_token_ids=(10**6,))
                with pytest.raises(InvalidRequestError, match="eos_token_ids: token id 1000000 is outside the vocabulary"):
                    list(model.generate_sync(ids, outside))
                with pytest.raises(InvalidRequestError, match="outside the vocabulary"):
                    [record async for record in client.generate(ids, outside)]
                with pytest.raises(GrammarError, match="eos_token_ids contradicts a grammar"):
                    list(model.generate_sync(ids, replace(ended, grammar=Grammar.regex("a+"))))
                assert model.metrics().tokens_computed == before

    asyncio.run(scenario())
