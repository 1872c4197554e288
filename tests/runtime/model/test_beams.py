"""Beam search is transformers' beam search, on every backend and architecture, and costs what it must."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from runtime import BeamOptions, BeamStep, GenerationOptions, Hypothesis, LanguageModel, SamplingOptions, load
from tests.fakes import settled
from tests.runtime.backends.reference import TOLERANCE, expected, in_turn, random_ids
from tests.runtime.model.beam_reference import by_transformers
from tests.tiny_models import tiny_path

CASES = in_turn(("llama", "gemma3", "lfm2"))
EOS = tuple(range(2, 60))  # so many that hypotheses end
PROMPTS = ([5, 6, 7], [int(i) for i in random_ids(3, 24)])


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Iterator[tuple[LanguageModel, str]]:
    backend, name = request.param
    with load(tiny_path(name), backend=backend, threads=1) as model:
        yield model, name


@pytest.fixture(autouse=True)
def fresh(case: tuple[LanguageModel, str]) -> Iterator[None]:
    case[0].clear_cache()
    yield
    assert settled(case[0])[1].leases == 0


def search(model: LanguageModel, prompt: list[int], options: BeamOptions) -> list[Hypothesis]:
    return asyncio.run(model.beam_generate(prompt, options))


def assert_same(model: LanguageModel, name: str, prompt: list[int], options: BeamOptions) -> list[Hypothesis]:
    """Ids and normalised scores are the library's."""
    ours = search(model, prompt, options)
    theirs = by_transformers(name, tuple(prompt), options)
    assert [one.ids for one in ours] == [one.ids for one in theirs]
    if options.width > 1:
        power = max(len(ours[0].ids) ** -options.length_penalty, 1.0)
        np.testing.assert_allclose([o.score for o in ours], [t.score for t in theirs], rtol=1e-4, atol=TOLERANCE * power)
    return ours


EARLY: tuple[bool | Literal["never"], ...] = (True, False, "never")
SOME: list[Any] = [(1, False, 1.0), (3, False, -1.0), (4, True, 0.5), (5, "never", 1.0)]
PENALTIES = (-1.0, 0.0, 0.6, 1.0, 2.0)
MORE = [(w, early, PENALTIES[(w + i) % 5]) for w in range(2, 6) for i, early in enumerate(EARLY)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("width", "early", "penalty"), SOME)
def test_it_is_the_search_of_transformers(
    case: tuple[LanguageModel, str], width: int, early: bool | Literal["never"], penalty: float
) -> None:
    model, name = case
    options = BeamOptions(width, 8, length_penalty=penalty, early_stopping=early, eos_token_ids=EOS)
    assert_same(model, name, PROMPTS[0], options)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "early", "penalty"), MORE)
def test_so_it_is_in_many_ways(
    case: tuple[LanguageModel, str], width: int, early: bool | Literal["never"], penalty: float
) -> None:
    model, name = case
    for prompt in (*PROMPTS, [9]):
        first = search(model, prompt, BeamOptions(width, 8, ignore_eos=True))
        for eos in (EOS, (first[0].ids[3], first[-1].ids[5])):
            options = BeamOptions(width, 14, length_penalty=penalty, early_stopping=early, eos_token_ids=eos)
            assert_same(model, name, prompt, options)


def test_an_end_that_is_reached_is_an_eos(case: tuple[LanguageModel, str]) -> None:
    # given the ids that an unhindered search says at some places, where short hypotheses are better
    model, name = case
    first = search(model, PROMPTS[1], BeamOptions(3, 6, ignore_eos=True))
    eos = (first[0].ids[3], first[2].ids[4])
    found = assert_same(model, name, PROMPTS[1], BeamOptions(3, 9, length_penalty=-2.0, eos_token_ids=eos))
    # then hypotheses end there, with the token and its text left out
    ended = [one for one in found if one.finish_reason == "eos"]
    assert ended
    for one in ended:
        assert one.ids[-1] in eos
        assert not set(one.ids[:-1]) & set(eos)
        assert one.text == "".join(one.run.texts[:-1])


def test_so_it_is_where_no_eos_is_reached(case: tuple[LanguageModel, str]) -> None:
    model, name = case
    found = assert_same(model, name, PROMPTS[1], BeamOptions(4, 9, ignore_eos=True, num_return=2))
    assert [one.finish_reason for one in found] == ["length"] * 2


def test_it_is_deterministic_and_the_same_from_the_cache(case: tuple[LanguageModel, str]) -> None:
    model, _ = case
    options = BeamOptions(4, 8, eos_token_ids=EOS)
    first = search(model, PROMPTS[1], options)
    again = search(model, PROMPTS[1], options)
    assert [one.ids for one in first] == [one.ids for one in again]
    np.testing.assert_allclose([o.score for o in first], [o.score for o in again], atol=TOLERANCE)


def test_one_beam_is_greedy(case: tuple[LanguageModel, str]) -> None:
    model, _ = case
    [found] = search(model, PROMPTS[1], BeamOptions(1, 10, ignore_eos=True))
    greedy = GenerationOptions(max_tokens=10, sampling=SamplingOptions(temperature=0.0), ignore_eos=True)
    records = list(model.generate_sync(PROMPTS[1], greedy))
    assert found.ids == [record.token_id for record in records]
    np.testing.assert_allclose(found.run.logprob, np.array([r.logprob for r in records], np.float32), atol=TOLERANCE)
    assert [r.rank for r in found.run] == [1] * 10


def test_numbers_of_a_hypothesis_are_the_models_own(case: tuple[LanguageModel, str]) -> None:
    model, name = case
    best = search(model, PROMPTS[0], BeamOptions(3, 8, ignore_eos=True, top_k=4, length_penalty=0.5))
    for one in best:
        rows = expected(name, [*PROMPTS[0], *one.ids])[len(PROMPTS[0]) - 1 : -1]
        own = rows[np.arange(8), one.ids]
        np.testing.assert_allclose(one.run.logprob, own, atol=TOLERANCE)
        assert one.logprob == pytest.approx(float(own.sum()), abs=8 * TOLERANCE)
        assert one.score == pytest.approx(one.logprob / 8**0.5)
        np.testing.assert_allclose(one.run.entropy, -(np.exp(rows) * rows).sum(-1), atol=1e-3)
        np.testing.assert_allclose(one.run.top_logprobs, -np.sort(-rows)[:, :4], atol=TOLERANCE)
        np.testing.assert_allclose(one.run.covered_mass, np.exp(-np.sort(-rows)[:, :4]).sum(-1), atol=1e-3)
        above = (rows > own[:, None] + TOLERANCE).sum(-1)
        assert (one.run.rank > above).all()
        assert (one.run.rank <= (rows > own[:, None] - TOLERANCE).sum(-1) + 1).all()
        assert one.text == "".join(one.run.texts)
    assert [one.score for one in best] == sorted((one.score for one in best), reverse=True)


def test_a_step_is_one_forward_and_the_prefix_is_computed_once(case: tuple[LanguageModel, str]) -> None:
    model, _ = case
    before = settled(model)[0]
    steps: list[BeamStep] = []

    async def main() -> list[Hypothesis]:
        options = BeamOptions(4, 7, ignore_eos=True)
        return await model.beam_generate(PROMPTS[1], options, on_step=steps.append)

    best = asyncio.run(main())
    after = settled(model)[0]
    assert after.tokens_computed - before.tokens_computed == len(PROMPTS[1]) + 4 * 6
    if "recurrent" not in model.info.attention_kinds:  # whose calls are cut inside
        assert after.forward_calls - before.forward_calls == 1 + 6
    assert [step.step for step in steps] == [1, 2, 3, 4, 5, 6, 7]
    assert steps[-1].finished == 4
    # and the steps tell how the answer came about
    paths = [[token] for token in steps[0].tokens]
    for step in steps[1:-1]:
        paths = [[*paths[parent], token] for parent, token in zip(step.parents, step.tokens, strict=True)]
    assert best[0].ids[:-1] in paths


def test_what_was_found_is_in_the_cache(case: tuple[LanguageModel, str]) -> None:
    model, name = case
    best = search(model, PROMPTS[1], BeamOptions(3, 6, ignore_eos=True))
    for one in best:
        path = [*PROMPTS[1], *one.ids[:-1]]
        assert model.prefix_match(path).tokens == len(path)
    before = settled(model)[0].tokens_computed
    path = [*PROMPTS[1], *best[0].ids]
    np.testing.assert_allclose(model.next_token_logprobs_sync(path), expected(name, path)[-1], atol=TOLERANCE)
    assert settled(model)[0].tokens_computed - before == 1
    # its scores as well
    again = asyncio.run(model.score_run(path, top_k=5, start=len(PROMPTS[1])))
    np.testing.assert_allclose(again.logprob, best[0].run.logprob, atol=TOLERANCE)


@pytest.mark.slow
def test_searches_run_beside_each_other_and_beside_streams(case: tuple[LanguageModel, str]) -> None:
    model, _ = case
    options = BeamOptions(3, 6, eos_token_ids=EOS)
    alone: Any = [search(model, prompt, replace(options, width=w)) for prompt, w in zip(PROMPTS, (3, 2), strict=True)]
    stream = GenerationOptions(max_tokens=8, seed=3, ignore_eos=True)
    said = [r.token_id for r in model.generate_sync(PROMPTS[1], stream)]
    model.clear_cache()

    async def answer() -> list[int]:
        return [record.token_id async for record in model.generate(PROMPTS[1], stream)]

    async def main() -> list[Any]:
        searches = [model.beam_generate(p, replace(options, width=w)) for p, w in zip(PROMPTS, (3, 2), strict=True)]
        return await asyncio.gather(*searches, answer())

    *together, beside = asyncio.run(main())
    assert [[one.ids for one in found] for found in together] == [[one.ids for one in found] for found in alone]
    assert beside == said
