"""Draws of whole models on both backends: transformers' warpers over transformers' logits, chi-square tests, and replay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from runtime import GenerationOptions, LanguageModel, SamplingOptions, TokenRecord, load, replay_draw
from runtime.sampling.chain import uniform
from tests.runtime.backends.reference import expected, random_ids
from tests.runtime.sampling.test_draw import sampler_of, warped
from tests.tiny_models import tiny_path

PROMPT = [int(i) for i in random_ids(21, 12)]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.8},
    {"temperature": 1.5, "top_k": 30},
    {"top_p": 0.8, "min_p": 0.01},
    {"typical_p": 0.7},
]
NEAR = 1e-3  # of probability: log-probabilities within 1e-4 move borders between tokens by less


@pytest.fixture(scope="module", params=["hf", "mlx"])
def model(request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    with load(tiny_path("llama"), backend=request.param, threads=1) as model:
        yield model


def interval(probs: npt.NDArray[np.float64], token: int) -> tuple[float, float]:
    """The range of random numbers for which a token is drawn: descending probability, ties by id."""
    order = np.lexsort((np.arange(len(probs)), -probs))
    at = int(np.flatnonzero(order == token)[0])
    reached = np.cumsum(probs[order])
    return float(reached[at] - probs[token]), float(reached[at])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_draw_equals_that_of_transformers_warpers(model: LanguageModel, settings: dict[str, Any]) -> None:
    options = GenerationOptions(max_tokens=30, sampling=SamplingOptions(**settings), seed=77, ignore_eos=True, resolve=False)
    ids = [record.token_id for record in model.generate_sync(PROMPT, options)]
    rows = expected("llama", [*PROMPT, *ids])[len(PROMPT) - 1 : -1]
    for i, (token, row) in enumerate(zip(ids, rows, strict=True)):
        low, high = interval(warped(sampler_of(**settings), row), token)
        assert low - NEAR <= uniform(77, len(PROMPT) + i) <= high + NEAR


@pytest.mark.sampled(1)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_many_draws_follow_the_distribution(model: LanguageModel, settings: dict[str, Any]) -> None:
    # given the first tokens of a thousand branches
    options = GenerationOptions(max_tokens=1, sampling=SamplingOptions(**settings), seed=5, ignore_eos=True, resolve=False)

    async def main() -> list[int]:
        return [record.token_id async for _, record in model.continue_many(PROMPT, 1000, options)]

    counts = np.bincount(asyncio.run(main()), minlength=model.info.vocab_size)
    probs = warped(sampler_of(**settings), expected("llama", PROMPT)[-1])
    # then no removed token is drawn, and the likely ones are drawn with their frequencies
    assert not counts[probs == 0].any()
    likely = probs * 1000 >= 5
    wanted = np.append(probs[likely], probs[~likely].sum()) * 1000
    got = np.append(counts[likely], counts[~likely].sum())
    some = wanted > 0.5
    chi_square = ((got[some] - wanted[some]) ** 2 / wanted[some]).sum()
    freedom = int(some.sum()) - 1
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("settings", [*SETTINGS, {"repetition_penalty": 1.3, "dry_multiplier": 0.8}], ids=str)
def test_replaying_a_record_gives_the_original_draw(model: LanguageModel, settings: dict[str, Any]) -> None:
    options = GenerationOptions(
        max_tokens=25,
        sampling=SamplingOptions(**{"temperature": 0.5} | settings),
        seed=9,
        ignore_eos=True,
        resolve=False,
        stages=True,
    )
    records: list[TokenRecord] = list(model.generate_sync(PROMPT, options))
    told = [replay_draw(record).token for record in records]
    # then the token is always the same: the record suffices also beyond the stored head
    assert told == [record.token_id for record in records]
    # and with other settings it gives the draw under those
    greedy = [replay_draw(record, SamplingOptions(temperature=0.0)).token for record in records]
    if set(settings) <= {"temperature", "top_k", "top_p", "min_p"}:
        assert greedy == [record.top_ids[0] for record in records]
