"""The whole model on tiny real architectures: every way of computing a number gives that of transformers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel, load
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.records import TokenRecord
from tests.fakes import settled
from tests.runtime.backends.reference import TOLERANCE, expected, in_turn, random_ids
from tests.tiny_models import tiny_path

NAMES = ("llama", "llama_wide", "qwen3", "gpt2", "gemma3", "mistral", "mamba")
CASES = in_turn(NAMES)
GREEDY = SamplingOptions(temperature=0.0)


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Iterator[tuple[LanguageModel, str]]:
    backend, name = request.param
    with load(tiny_path(name), backend=backend, threads=1, prefill_chunk_tokens=48) as model:
        yield model, name


@pytest.fixture(autouse=True)
def fresh(case: tuple[LanguageModel, str]) -> Iterator[None]:
    case[0].clear_cache()
    yield
    assert settled(case[0])[1].leased_bytes == 0


def ids(seed: int, n: int) -> list[int]:
    return [int(i) for i in random_ids(seed, n)]


def right(got: Any, name: str, text: list[int]) -> None:
    np.testing.assert_allclose(got, expected(name, text)[-1], atol=TOLERANCE, rtol=0)


@pytest.mark.sampled(1)
def test_cached_equals_uncached_equals_transformers(case: tuple[LanguageModel, str]) -> None:
    # given a cached text (past every window), when it is continued, branched in the middle, and queried again
    model, name = case
    text = ids(1, 70)
    model.cache_kv(text)
    for path in ([*text, 5, 6], [*text[:33], 7], text[:20], text, [*text, 5, 6, 7]):
        got = model.next_token_logprobs_sync(path)
        assert got.shape == (model.info.vocab_size,)
        assert got.dtype == np.float32
        right(got, name, path)
        np.testing.assert_allclose(got, model.next_token_logprobs_uncached(path), atol=TOLERANCE, rtol=0)


def test_batched_equals_alone(case: tuple[LanguageModel, str]) -> None:
    # given ragged queries over cached and new prefixes, with duplicates
    model, name = case
    stem = ids(2, 30)
    model.cache_kv(stem)
    paths = [[*stem, *ids(seed, 1 + seed % 5)] for seed in range(6)] + [
        ids(50, 3),
        ids(51, 41),
        stem[:11],
        [*stem, 3],
        [*stem, 3],
    ]
    for row, path in zip(model.batch_next_token_logprobs_sync(paths), paths, strict=True):
        right(row, name, path)


def test_score_equals_stepwise(case: tuple[LanguageModel, str]) -> None:
    model, name = case
    text = ids(3, 60)
    reference = expected(name, text)
    for _ in range(2):  # computed, then cached
        records = asyncio.run(model.score(text, top_k=4))
        assert records[0].logprob is None
        for at in range(1, 60):
            row = reference[at - 1]
            record = records[at]
            assert record.logprob == pytest.approx(float(row[text[at]]), abs=TOLERANCE)
            assert record.entropy == pytest.approx(float(-(np.exp(row) * row).sum()), abs=1e-3)
            near = int((row > row[text[at]] + TOLERANCE).sum()), int((row > row[text[at]] - TOLERANCE).sum())
            assert record.rank is not None
            assert near[0] < record.rank <= near[1] + 1
            assert record.top_logprobs == pytest.approx(np.sort(row)[::-1][:4].tolist(), abs=TOLERANCE)


@pytest.mark.slow
def test_greedy_equals_transformers(case: tuple[LanguageModel, str]) -> None:
    model, name = case
    prompt = ids(4, 25)

    async def main() -> list[TokenRecord]:
        options = GenerationOptions(max_tokens=24, sampling=GREEDY, ignore_eos=True, top_k=3)
        return [record async for record in model.generate(prompt, options)]

    records = asyncio.run(main())
    path = list(prompt)
    for record in records:
        row = expected(name, path)[-1]
        best = np.sort(row)[::-1]
        if best[0] - best[1] > 2 * TOLERANCE:
            assert record.token_id == int(row.argmax())
        assert record.logprob == pytest.approx(float(row[record.token_id]), abs=TOLERANCE)
        path.append(record.token_id)
    # and the KV that it left in the cache is right as well
    right(model.next_token_logprobs_sync([*path, 9]), name, [*path, 9])


@pytest.mark.sampled(1)
def test_streams_of_a_batch_are_the_same_as_alone(case: tuple[LanguageModel, str]) -> None:
    model, _ = case
    prompts = [ids(5, 9), ids(6, 31), [*ids(6, 20), 4], ids(7, 2)]
    alone = [asyncio.run(model.sample(p, 10, [], seed=i)) for i, p in enumerate(prompts)]
    model.clear_cache()

    async def main() -> list[list[int]]:
        return list(await asyncio.gather(*(model.sample(p, 10, [], seed=i) for i, p in enumerate(prompts))))

    assert asyncio.run(main()) == alone


def test_tokens_are_computed_once(case: tuple[LanguageModel, str]) -> None:
    model, _ = case
    stem = ids(8, 60)
    before = model.metrics().tokens_computed
    model.cache_kv(stem)
    model.batch_next_token_logprobs_sync([[*stem, token, token + 1] for token in range(8)])
    asyncio.run(model.sample([*stem, 0, 1], 5, [], temperature=0.0))
    assert model.metrics().tokens_computed - before == 60 + 16 + 4
