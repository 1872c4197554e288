"""Draws: the tokens kept by transformers' own warpers, the distribution, and one random number per place of a stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from runtime.numerics.ranking import SHALLOW
from runtime.numerics.scoring import log_softmax
from runtime.options.checking import LARGEST
from runtime.options.generation import SamplingOptions
from runtime.records import Float32
from runtime.sampling.chain import Sampler, fresh_seed, uniform

MASK = (1 << 64) - 1


def sampler_of(seed: int = 1, branch: int = 0, **settings: Any) -> Sampler:
    return Sampler(SamplingOptions(**settings), seed, branch)


def row(seed: int, vocab: int = 1000, scale: float = 2.0) -> Float32:
    logits = np.random.default_rng(seed).normal(size=(1, vocab)) * scale
    logprobs: Float32 = log_softmax(logits.astype(np.float32))[0]
    return logprobs


def drawn(sampler: Sampler, logprobs: Float32, n: int) -> npt.NDArray[np.int64]:
    """How often each id is drawn at the first n places of the stream."""
    ids = [sampler.draw(logprobs, position)[0] for position in range(n)]
    return np.bincount(ids, minlength=len(logprobs))


def warped(sampler: Sampler, logprobs: Float32) -> npt.NDArray[np.float64]:
    """The distribution after transformers' own warpers, in the order `generate` applies them."""
    import torch
    from transformers import (
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
        TypicalLogitsWarper,
    )

    warpers: list[Any] = [TemperatureLogitsWarper(sampler.temperature)]
    given = sampler.settings
    if given.top_k:
        warpers.append(TopKLogitsWarper(given.top_k))
    if given.top_p is not None:
        warpers.append(TopPLogitsWarper(given.top_p))
    if given.min_p:
        warpers.append(MinPLogitsWarper(given.min_p))
    if given.typical_p is not None:
        warpers.append(TypicalLogitsWarper(given.typical_p))
    scores = torch.tensor(logprobs.astype(np.float64))[None]
    for warper in warpers:
        scores = warper(torch.zeros((1, 1), dtype=torch.long), scores)
    probs: npt.NDArray[np.float64] = torch.softmax(scores, -1)[0].numpy()
    return probs


def by_inverse_cdf(probs: npt.NDArray[np.float64], u: float) -> int:
    """The draw written out: descending probability, ties by id."""
    order = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
    reached = 0.0
    for token in order:
        reached += probs[token]
        if u < reached:
            return token
    return order[-1]


# ---- the random number of a draw ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "position", "branch"), [(0, 0, 0), (7, 123, 0), (7, 123, 4), (MASK, 100_000, 65_535)])
def test_u_is_philox_of_seed_and_place(seed: int, position: int, branch: int) -> None:
    for stage in (0, 1):
        word = int(np.random.Philox(key=seed, counter=[0, position, branch, stage]).random_raw())
        assert uniform(seed, position, branch, stage) == (word >> 11) / 2**53


def test_numbers_of_different_places_differ_and_are_uniform() -> None:
    places = {(s, p, b): uniform(s, p, b) for s in range(10) for p in range(20) for b in range(5)}
    assert len(set(places.values())) == 1000
    assert 0.0 <= min(places.values()) < 0.01
    assert 0.99 < max(places.values()) < 1.0
    assert abs(np.mean(list(places.values())) - 0.5) < 0.05


def test_fresh_seeds_fit_into_a_signed_64_bit_integer() -> None:
    seeds = {fresh_seed() for _ in range(50)}
    assert len(seeds) == 50
    assert all(0 <= seed < 1 << 63 for seed in seeds)


# ---- greedy ---------------------------------------------------------------------------------------------------------


def test_greedy_takes_the_lowest_id_of_equal_scores() -> None:
    logprobs = log_softmax(np.array([[0, 3, 1, 3, 3]], np.float32))[0]
    token, u = sampler_of(temperature=0.0).draw(logprobs, 5)
    assert token == 1
    assert np.isnan(u)


@pytest.mark.parametrize("temperature", [1e-300, 1e-5])
def test_a_temperature_near_zero_is_greedy(temperature: float) -> None:
    logprobs = row(3)
    got = drawn(sampler_of(temperature=temperature), logprobs, 50)
    assert got[int(logprobs.argmax())] == 50


@pytest.mark.parametrize("stages", [{}, {"top_p": 0.5}, {"min_p": 0.5}, {"typical_p": 0.5}], ids=str)
def test_at_the_highest_temperature_all_tokens_weigh_the_same(stages: dict[str, Any]) -> None:
    # and float32 must not overflow, which would be a warning
    logprobs = row(3)
    sampler = sampler_of(temperature=LARGEST, **stages)
    traced = sampler.trace(logprobs, 0)
    heated = next(step.view for step in traced.steps if step.stage == "temperature")
    assert heated.mass == pytest.approx(len(logprobs), rel=1e-6)
    assert sampler.draw(logprobs, 0)[0] == traced.token


# ---- the stages -----------------------------------------------------------------------------------------------------

STAGES = [
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 5000},
    {"top_p": 0.9},
    {"top_p": 1e-6},
    {"top_p": 0.9999},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"min_p": 1e-6},
    {"top_k": 50, "top_p": 0.8},
    {"top_k": 300, "top_p": 0.99, "min_p": 0.01},
    {"top_p": 0.95, "min_p": 0.02, "temperature": 0.6},
    {"top_k": 20, "temperature": 1.7},
    {"temperature": 3.0},
    {"typical_p": 0.5},
    {"typical_p": 0.95, "temperature": 2.0},
    {"top_k": 30, "typical_p": 0.8},
    {"top_p": 0.99, "typical_p": 0.2},
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stages", STAGES, ids=str)
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_draws_equal_the_inverse_cdf_of_transformers_warpers(stages: dict[str, Any], scale: float) -> None:
    sampler = sampler_of(**stages)
    logprobs = row(11, scale=scale)
    probs = warped(sampler, logprobs)
    for position in range(60):
        token, u = sampler.draw(logprobs, position)
        assert u == uniform(1, position)
        assert token == by_inverse_cdf(probs, u)


@pytest.mark.parametrize("stages", STAGES, ids=str)
def test_the_least_likely_kept_token_is_that_of_the_warpers(stages: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # u close to 1 draws the least likely kept token: the kept set equals that of the warpers
    monkeypatch.setattr("runtime.sampling.chain.uniform", lambda *_: 1.0 - 2.0**-53)
    for seed in range(20):
        sampler = sampler_of(**stages)
        logprobs = row(seed)
        probs = warped(sampler, logprobs)
        kept = np.flatnonzero(probs)
        assert sampler.draw(logprobs, 0)[0] == kept[np.argmin(probs[kept])]


def test_draws_reach_beyond_the_head() -> None:
    # given a flat distribution over many more ids than the sorted head has
    vocab = 40 * SHALLOW.head
    logprobs = log_softmax(np.random.default_rng(0).normal(size=(1, vocab)).astype(np.float32) * 0.01)[0]
    cases: tuple[dict[str, Any], ...] = ({}, {"top_p": 0.97}, {"min_p": 0.5})
    for stages in cases:
        sampler = sampler_of(**stages)
        ids = [sampler.draw(logprobs, position)[0] for position in range(60)]
        order = np.argsort(np.argsort(-logprobs, kind="stable"))
        assert np.mean(order[ids] >= SHALLOW.head) > 0.9
        probs = warped(sampler, logprobs)
        assert ids == [by_inverse_cdf(probs, uniform(1, position)) for position in range(60)]


@pytest.mark.parametrize("temperature", [1.0, 0.8, 2.5])
def test_ties_beyond_the_head_are_ordered_by_id(temperature: float) -> None:
    # given few distinct scores, most draws beyond the head, and ids in another order than the scores
    rng = np.random.default_rng(4)
    levels = np.sort(rng.normal(size=200)).astype(np.float32)
    logprobs = log_softmax(rng.choice(levels, size=(1, 60 * SHALLOW.head)))[0]
    sampler = sampler_of(temperature=temperature)
    probs = warped(sampler, logprobs)
    order = np.lexsort((np.arange(len(probs)), -logprobs))
    reached = np.cumsum(probs[order])
    for position in range(80):
        token, u = sampler.draw(logprobs, position)
        at = int(np.searchsorted(reached, u, side="right"))
        near = order[max(at - 1, 0) : at + 2]  # rounding may move a border by one
        assert token in near


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "stages", [{}, {"temperature": 0.7}, {"top_k": 12}, {"top_p": 0.8}, {"min_p": 0.1}, {"typical_p": 0.6}], ids=str
)
def test_draws_follow_the_distribution(stages: dict[str, Any]) -> None:
    sampler = sampler_of(seed=20_261_121, **stages)
    logprobs = row(5, vocab=24, scale=1.0)
    expected = warped(sampler, logprobs) * 6000
    counts = drawn(sampler, logprobs, 6000)
    assert not counts[expected == 0].any()
    kept = expected > 0
    chi_square = ((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    freedom = int(kept.sum()) - 1
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)


def test_another_seed_or_branch_draws_differently() -> None:
    logprobs = row(8)
    samplers = [sampler_of(seed=seed, branch=branch) for seed, branch in ((1, 0), (1, 1), (2, 0))]
    streams = [[sampler.draw(logprobs, position)[0] for position in range(20)] for sampler in samplers]
    assert streams[0] != streams[1] != streams[2] != streams[0]
