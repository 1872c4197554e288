"""SmolLM2 through the whole model, compared with plain transformers: a few tokens, both backends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel, load
from runtime.loading.model_folder import ModelFolder
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.records import TokenRecord
from runtime.shelf.source import resolve
from tests.runtime.backends.reference import log_softmax

pytestmark = pytest.mark.slow
TOLERANCE = {"hf": 1e-4, "mlx": 1e-3}  # nats, as docs/tolerances.md prints them
TEXT = "Once upon a time, a small robot wanted to"


@pytest.fixture(scope="module")
def folder() -> ModelFolder:
    return resolve("smollm2")  # where it is missing, the error names the command that fetches it


@pytest.fixture(scope="module")
def plain(folder: ModelFolder) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder.path, dtype=torch.float32).eval()


@pytest.fixture(scope="module", params=["hf", "mlx"])
def model(request: pytest.FixtureRequest, folder: ModelFolder) -> Iterator[LanguageModel]:
    with load(folder.path, backend=request.param) as made:
        yield made


def expected(plain: Any, ids: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    import torch

    with torch.inference_mode():
        return log_softmax(plain(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy())


def test_a_chat_turn_equals_plain_transformers(model: LanguageModel, plain: Any) -> None:
    # given a short prompt, when it is scored, answered and branched
    tolerance = TOLERANCE[model.info.backend]
    ids = model.tokenize("The capital of France is")

    async def main() -> tuple[list[TokenRecord], list[TokenRecord], Any]:
        greedy = GenerationOptions(max_tokens=4, sampling=SamplingOptions(temperature=0.0), ignore_eos=True)
        scores = await model.score(ids)
        answer = [record async for record in model.generate(ids, greedy)]
        return scores, answer, await model.next_token_logprobs([*ids, answer[1].token_id])

    scores, answer, branch = asyncio.run(main())
    # then every number is the one of the plain model, and nothing was computed twice
    path = [*ids, *(record.token_id for record in answer)]
    rows = expected(plain, path)
    for at, record in enumerate([*scores, *answer]):
        if at:
            assert record.logprob == pytest.approx(float(rows[at - 1][path[at]]), abs=tolerance)
            assert record.top_logprobs == pytest.approx(np.sort(rows[at - 1])[::-1][:10].tolist(), abs=tolerance)
    assert [record.token_id for record in answer] == rows[len(ids) - 1 : -1].argmax(-1).tolist()
    assert answer[0].text == " Paris"
    other = [*ids, answer[1].token_id]
    np.testing.assert_allclose(branch, expected(plain, other)[-1], atol=tolerance, rtol=0)
    assert model.metrics().tokens_computed == len(ids) + 3 + 1


def test_a_cached_answer_equals_an_uncached_one(model: LanguageModel) -> None:
    # given a cached text, one that continues it, and one that branches from it half way
    ids = model.tokenize(TEXT)
    model.clear_cache()
    model.cache_kv(ids)
    asked = [ids, [*ids, *model.tokenize(" fly")], [*ids[:5], *model.tokenize(" cat")]]
    for path in asked:
        held = model.prefix_match(path).tokens
        assert held == (5 if path is asked[2] else len(ids))
        # when, then
        computed = model.metrics().tokens_computed
        cached = model.next_token_logprobs_sync(path)
        assert model.metrics().tokens_computed - computed <= max(len(path) - held, 1)
        uncached = model.next_token_logprobs_uncached(path)
        np.testing.assert_allclose(cached, uncached, atol=TOLERANCE[model.info.backend], rtol=0)


def test_a_batch_equals_each_alone(model: LanguageModel) -> None:
    # given paths of different lengths: with a common prefix, prefixes of one another, and unrelated ones
    ids = model.tokenize(TEXT)
    batch = [ids, ids[:4], [*ids[:7], *model.tokenize(" the moon")], model.tokenize("def main():"), ids[:1]]
    # when they are queried together with an empty cache, and then one by one, likewise
    model.clear_cache()
    together = model.batch_next_token_logprobs_sync(batch)
    for path, row in zip(batch, together, strict=True):
        model.clear_cache()
        alone = model.next_token_logprobs_sync(path)
        # then
        np.testing.assert_allclose(row, alone, atol=TOLERANCE[model.info.backend], rtol=0)


def test_streams_of_a_batch_are_the_same_as_alone(model: LanguageModel) -> None:
    # given two prompts and the greedy answer to each
    prompts = [model.tokenize("The capital of France is"), model.tokenize("One, two, three,")]
    model.clear_cache()
    alone = [asyncio.run(model.sample(ids, 4, [], temperature=0.0)) for ids in prompts]
    # when
    model.clear_cache()
    together = asyncio.run(model.batch_sample(prompts, 4, [], temperature=0.0))
    # then
    assert [list(tokens) for tokens in together] == [list(tokens) for tokens in alone]
