"""What whole rows weigh at a temperature: worked out beside the normaliser, for all rows of a forward at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runtime.options import GenerationOptions
from runtime.ranking import Ranked
from runtime.records import Float32
from runtime.sampling.chain import make_sampler
from runtime.sampling.falling import Falling
from runtime.sampling.report import report
from runtime.sampling.settings import SamplingOptions
from runtime.scheduler.logits import ChunkLogits, Distributions, normalise
from runtime.scoring import COLDEST, heated_masses
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


@pytest.mark.parametrize("vocab", [1, 700, 1009, 50_000])  # the third is a prime
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_it_is_the_sum_of_float64(vocab: int, temperature: float) -> None:
    below = logits(4, vocab)
    below -= below.max(axis=-1, keepdims=True)
    exact = np.exp(below.astype(np.float64) / temperature).sum(axis=-1)
    np.testing.assert_allclose(heated_masses(below, np.full(4, temperature)), exact, rtol=3e-6)


def test_rows_weigh_the_same_alone_among_others_and_remembered() -> None:
    # given rows of several blocks, each with a temperature of its own
    raw = logits(11, 60_000)
    raw.flags.writeable = False
    temperatures = [0.5 + i / 7 for i in range(11)]
    together = normalise(raw, entropy=True, temperatures=temperatures)
    # then each has the same bits by itself, and as one that is remembered from a prompt
    remembered = ChunkLogits(raw, range(11))
    for i, temperature in enumerate(temperatures):
        alone = normalise(raw[i : i + 1], entropy=True, temperatures=[temperature])
        known = Distributions.known(remembered.end(i, i), [temperature])
        assert together.ranked[i].heated == alone.ranked[0].heated == known.ranked[0].heated
        assert together.ranked[i].heated is not None


def test_nothing_is_worked_out_where_nobody_asks() -> None:
    assert normalise(logits(2, 100), entropy=True, temperatures=[1.0, 1.0]).ranked[0].heated is None
    assert normalise(logits(2, 100), entropy=True).ranked[1].heated is None


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_draws_and_stages_are_those_without_it(settings: dict[str, Any]) -> None:
    raw = logits(40, 3000)
    sampler = make_sampler(SamplingOptions(**settings), 3)
    after = normalise(raw.copy(), entropy=True, temperatures=[sampler.heats(traced=True)] * 40)
    for i, row in enumerate(after.ranked):
        bare = Ranked(row.row, row.mass, row.entropy)
        assert row.heated is not None
        told, alone = report(sampler.trace(row, i)), report(sampler.trace(bare, i))
        assert told.token == alone.token == sampler.draw(Ranked(row.row, row.mass, row.entropy), i)[0]
        assert told.kept.tolist() == alone.kept.tolist()
        np.testing.assert_allclose(told.mass, alone.mass, rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "traced", "plain"),
    [
        ({"temperature": 0.8, "top_p": 0.9}, 0.8, 0.8),
        ({"temperature": 0.8, "top_k": 5}, 0.8, 1.0),  # a cut by rank: what lies below it is not asked for
        ({"temperature": 0.8, "min_p": 0.1}, 0.8, 1.0),
        ({"temperature": 0.8, "presence_penalty": 1.0}, 1.0, 1.0),  # the row is another one by then
        ({"temperature": 0.0}, 1.0, 1.0),
        ({"temperature": 1e-31}, 1.0, 1.0),
        ({"top_p": 0.9}, 1.0, 1.0),
        ({"temperature": 0.8, "top_p": 0.5, "order": ("top_p", "temperature")}, 1.0, 1.0),
    ],
    ids=str,
)
def test_when_it_is_asked_for(settings: dict[str, Any], traced: float, plain: float) -> None:
    sampler = make_sampler(SamplingOptions(**settings), 0)
    assert (sampler.heats(traced=True), sampler.heats(traced=False)) == (traced, plain)


def test_streams_find_it_made(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a model, and nobody who would work it out for one row
    def alone(_: Falling) -> float:
        raise AssertionError("it was to be there")

    monkeypatch.setattr(Falling, "_heated_mass", alone)
    prompt = some_ids(3, 20)
    options = GenerationOptions(
        max_tokens=12, seed=4, ignore_eos=True, stages=True, resolve=False, sampling=SamplingOptions(temperature=0.8, top_p=0.9)
    )
    with fake_model() as model:

        async def main() -> list[list[Any]]:
            async def one(seed: int) -> list[Any]:
                return [record async for record in model.generate(prompt, replace(options, seed=seed))]

            return await asyncio.gather(*(one(seed) for seed in range(4, 9)))

        # when a prompt is new, when others go on from it at a time, and when what follows it is remembered
        fresh = list(model.generate_sync(prompt, options))
        first, *_ = asyncio.run(main())
        again = list(model.generate_sync(prompt, options))
    # then all that is told is the same to the bit
    assert [record.stages for record in fresh] == [record.stages for record in first] == [record.stages for record in again]
