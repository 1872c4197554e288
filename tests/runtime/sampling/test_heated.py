"""The mass of whole rows at a temperature, computed with the normaliser for all rows of a forward at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runtime.numerics import sorted_row
from runtime.numerics.ranking import Ranked
from runtime.numerics.scoring import COLDEST, heated_masses, log_softmax
from runtime.numerics.sorted_row import SortedRow
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.records import Float32
from runtime.sampling import chain
from runtime.sampling.chain import make_sampler
from runtime.sampling.pool import View
from runtime.sampling.report import report
from runtime.scheduler.prefill.distributions import ChunkLogits, Distributions, normalise
from tests.fakes import fake_model, some_ids

TEMPERATURES = (COLDEST, 0.01, 0.7, 1.3, 40.0)
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.8, "top_p": 0.95, "min_p": 0.05},
    {"temperature": 1.4},
    {"temperature": 0.3, "top_p": 0.9},
    {"temperature": 0.8, "typical_p": 0.9, "xtc_probability": 0.5, "xtc_threshold": 0.05},
]


def logits(n: int, vocab: int, seed: int = 0) -> Float32:
    spread = np.linspace(0.5, 6.0, n)[:, None]
    return (np.random.default_rng(seed).normal(size=(n, vocab)) * spread).astype(np.float32)


def always(u: float) -> Callable[[int], float]:
    """The same number for every stage."""
    return lambda _: u


@pytest.mark.parametrize("vocab", [1, 700, 1009, 50_000])  # 1009 is a prime
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_heated_masses_equal_float64_sums(vocab: int, temperature: float) -> None:
    logprobs = log_softmax(logits(4, vocab))
    tops = logprobs.max(axis=-1)
    exact = np.exp((logprobs.astype(np.float64) - tops[:, None]) / temperature).sum(axis=-1)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(heated_masses(logprobs, tops, np.full(4, temperature)), exact, rtol=3e-6)


def test_a_row_has_the_same_heated_mass_alone_in_a_batch_and_when_cached() -> None:
    # given rows of several blocks, each with its own temperature
    raw = logits(11, 60_000)
    raw.flags.writeable = False
    temperatures = [0.5 + i / 7 for i in range(11)]
    together = normalise(raw, entropy=True, temperatures=temperatures)
    # then each is bit-identical alone and as a cached row of a prompt
    remembered = ChunkLogits(raw, dict.fromkeys(range(11), True))
    for i, temperature in enumerate(temperatures):
        alone = normalise(raw[i : i + 1], entropy=True, temperatures=[temperature])
        row = remembered.after[i]
        assert row is not None
        known = Distributions.known(row, temperature)
        assert together.ranked[i].heated == alone.ranked[0].heated == known.ranked[0].heated
        assert together.ranked[i].heated is not None


def test_heated_masses_are_computed_only_when_requested() -> None:
    assert normalise(logits(2, 100), entropy=True, temperatures=[1.0, 1.0]).ranked[0].heated is None
    assert normalise(logits(2, 100), entropy=True).ranked[1].heated is None


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_heated_masses_change_no_draw_and_no_report(settings: dict[str, Any]) -> None:
    raw = logits(40, 3000)
    sampler = make_sampler(SamplingOptions(**settings), 3)
    after = normalise(raw.copy(), entropy=True, temperatures=[sampler.heats[True]] * 40)
    for i, row in enumerate(after.ranked):
        bare = Ranked(row.row, row.mass, row.entropy)
        assert row.heated is not None
        told, alone = report(sampler.trace(row, i)), report(sampler.trace(bare, i))
        assert told.token == alone.token == sampler.draw(Ranked(row.row, row.mass, row.entropy), i)[0]
        assert told.kept.tolist() == alone.kept.tolist()
        assert told.mass.tolist() == alone.mass.tolist()


def test_a_cut_exactly_at_a_border_is_the_same_with_and_without_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    # given rows, and shares that end at a token border as exactly as float64 allows
    after = normalise(logits(40, 3000), entropy=True, temperatures=[0.8] * 40)
    for i, row in enumerate(after.ranked):
        order = SortedRow(Ranked(row.row, row.mass, row.entropy), 0.8)
        share = float(order.edges[i]) / order.total()
        sampler = make_sampler(SamplingOptions(temperature=0.8, top_p=share, min_p=1e-6), 1)
        # then draw and trace agree, also when the last remaining token is drawn
        for u in (0.5, 1 - 1e-9):
            monkeypatch.setattr(chain, "uniform", lambda *_, u=u: u)
            assert sampler.draw(Ranked(row.row, row.mass, row.entropy), i)[0] == sampler.trace(row, i).token


@pytest.mark.parametrize("temperature", [0.8, 1.0, 1.7])
def test_a_number_near_one_draws_no_token_of_negligible_mass(temperature: float) -> None:
    # given six likely tokens among many with almost no probability
    sampler = make_sampler(SamplingOptions(temperature=temperature), 0)
    for seed in range(30):
        raw = logits(1, 50_000, seed)
        raw[0, :6] = 40 + np.arange(6) / 7
        row = normalise(raw, entropy=True, temperatures=[temperature]).ranked[0]
        exact = np.exp((row.row.astype(np.float64) - row.row.max()) / temperature)
        beyond = 1 - exact[:6].sum() / exact.sum()
        for u in (1 - 5e-8, 1 - 1e-12):
            traced = sampler.trace(row, 0, number=always(u))
            assert traced.rank <= 5 or beyond >= 1 - u


@pytest.mark.parametrize("threshold", [1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("temperature", [0.8, 1.0])
def test_the_mass_without_the_likeliest_tokens_is_exact(temperature: float, threshold: float) -> None:
    raw = logits(1, 50_000, 3)
    raw[0, :60] = np.linspace(40, 20, 60)
    row = normalise(raw, entropy=True, temperatures=[temperature]).ranked[0]
    settings = SamplingOptions(temperature=temperature, xtc_probability=1.0, xtc_threshold=threshold)
    pool = sampler_steps(settings, row)
    assert pool.first is not None
    weights = np.sort(np.exp((row.row.astype(np.float64) - row.row.max()) / temperature))[::-1]
    np.testing.assert_allclose(pool.mass, weights[pool.first.rank :].sum(), rtol=1e-5)


def sampler_steps(settings: SamplingOptions, row: Ranked) -> View:
    """The view from which the token is drawn."""
    return make_sampler(settings, 0).trace(row, 0, number=always(0.0)).steps[-1].view


def test_very_low_finite_logits_cause_no_warning() -> None:
    raw = logits(2, 900)
    raw[:, 5:20] = np.finfo(np.float32).min
    after = normalise(raw, entropy=True, temperatures=[0.5, COLDEST])
    assert all(row.heated is not None and np.isfinite(row.heated[1]) for row in after.ranked)
    assert np.isfinite(SortedRow(Ranked(after.ranked[0].row), 0.5).total())


@pytest.mark.parametrize(
    ("settings", "traced", "plain"),
    [
        ({"temperature": 0.8, "top_p": 0.9}, 0.8, 0.8),
        ({"temperature": 0.8, "top_k": 5}, 0.8, 1.0),  # a cut by rank needs no mass below it
        ({"temperature": 0.8, "min_p": 0.1}, 0.8, 1.0),
        ({"temperature": 0.8, "presence_penalty": 1.0}, 1.0, 1.0),  # the row is changed before the temperature
        ({"temperature": 0.0}, 1.0, 1.0),
        ({"temperature": 1e-31}, 1.0, 1.0),
        ({"top_p": 0.9}, 1.0, 1.0),
        ({"temperature": 0.8, "top_p": 0.5, "order": ("top_p", "temperature")}, 1.0, 1.0),
    ],
    ids=str,
)
def test_heated_masses_are_requested_for_these_settings_alone(settings: dict[str, Any], traced: float, plain: float) -> None:
    sampler = make_sampler(SamplingOptions(**settings), 0)
    assert (sampler.heats[True], sampler.heats[False]) == (traced, plain)


def test_streams_use_heated_masses_of_the_forward_and_never_compute_them_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a model, and an error when a single row is computed
    def alone(*_: object) -> float:
        raise AssertionError("it was to be there")

    monkeypatch.setattr(sorted_row, "heated_masses", alone)
    prompt = some_ids(3, 20)
    options = GenerationOptions(
        max_tokens=12, seed=4, ignore_eos=True, stages=True, resolve=False, sampling=SamplingOptions(temperature=0.8, top_p=0.9)
    )
    with fake_model() as model:

        async def main() -> list[list[Any]]:
            async def one(seed: int) -> list[Any]:
                return [record async for record in model.generate(prompt, replace(options, seed=seed))]

            return await asyncio.gather(*(one(seed) for seed in range(4, 9)))

        # when a prompt is new, when others continue from it together, and when its distribution is cached
        fresh = list(model.generate_sync(prompt, options))
        first, *_ = asyncio.run(main())
        again = list(model.generate_sync(prompt, options))
        monkeypatch.setattr(sorted_row, "heated_masses", heated_masses)
        model.clear_cache()

        async def beside() -> list[Any]:
            async def one(temperature: float, **how: Any) -> list[Any]:
                sampling = SamplingOptions(temperature=temperature, top_p=0.9)
                chosen = replace(options, sampling=sampling, **how)
                return [record async for record in model.generate(prompt, chosen)]

            each = await asyncio.gather(one(0.8), one(0.7), one(0.81, stages=False), one(1.0))
            return list(each[0])

        # and beside others with other temperatures, some of which run in the same forwards
        mixed = asyncio.run(beside())
    # then all reports are bit-identical
    assert [record.stages for record in mixed] == [record.stages for record in fresh]
    assert [record.stages for record in fresh] == [record.stages for record in first] == [record.stages for record in again]
