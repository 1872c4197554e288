"""n continuations of one prefix: it is computed once, a step is one forward, each branch is the same as alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace

import pytest

from runtime import GenerationOptions, LanguageModel, PromptProgress, SamplingOptions, TokenRecord, load
from tests.fakes import settled
from tests.runtime.backends.reference import in_turn, random_ids
from tests.tiny_models import tiny_path

CASES = in_turn(("llama", "gemma3", "lfm2"))
PREFIX = [int(i) for i in random_ids(11, 40)]
WARM = GenerationOptions(max_tokens=7, seed=5, ignore_eos=True, top_k=3, sampling=SamplingOptions(temperature=1.3))


@pytest.fixture(scope="module", params=CASES)
def model(request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    backend, name = request.param
    with load(tiny_path(name), backend=backend, threads=1) as model:
        yield model


@pytest.fixture(autouse=True)
def fresh(model: LanguageModel) -> Iterator[None]:
    model.clear_cache()
    yield
    assert settled(model)[1].leases == 0


async def branches(model: LanguageModel, n: int, options: GenerationOptions) -> dict[int, list[TokenRecord]]:
    said: dict[int, list[TokenRecord]] = {}
    async with aclosing(model.continue_many(PREFIX, n, options)) as records:
        async for branch, record in records:
            said.setdefault(branch, []).append(record)
    return said


def ids(records: list[TokenRecord]) -> list[int]:
    return [record.token_id for record in records]


def test_the_prefix_is_computed_once_and_a_step_is_one_forward(model: LanguageModel) -> None:
    before = settled(model)[0]
    heard: list[PromptProgress] = []

    async def main() -> dict[int, list[TokenRecord]]:
        said: dict[int, list[TokenRecord]] = {}
        async with aclosing(model.continue_many(PREFIX, 8, WARM, on_progress=heard.append)) as records:
            async for branch, record in records:
                said.setdefault(branch, []).append(record)
        return said

    said = asyncio.run(main())
    after = settled(model)[0]
    assert sorted(said) == list(range(8))
    assert {len(records) for records in said.values()} == {7}
    assert len({tuple(ids(records)) for records in said.values()}) > 4  # the branches differ
    shared = sum(len({tuple(ids(r)[:m]) for r in said.values()}) for m in range(1, 7))  # equal beginnings are computed once
    assert after.tokens_computed - before.tokens_computed == len(PREFIX) + shared <= len(PREFIX) + 8 * 6
    if "recurrent" not in model.info.attention_kinds:  # recurrent models may split a call
        assert after.forward_calls - before.forward_calls == 1 + 6
    assert heard[-1] == PromptProgress(len(PREFIX), len(PREFIX), 0, len(PREFIX))
    # and again from the cache: nothing of the prefix is computed
    asyncio.run(branches(model, 8, WARM))
    assert settled(model)[0].tokens_computed - after.tokens_computed == shared


def test_a_branch_is_the_same_as_alone(model: LanguageModel) -> None:
    said = asyncio.run(branches(model, 4, WARM))
    model.clear_cache()
    for branch in (0, 3):
        alone = replace(WARM, branch=branch)
        records = list(model.generate_sync(PREFIX, alone))
        assert ids(records) == ids(said[branch])
        for one, other in zip(records, said[branch], strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert one.rank == other.rank
    # and branches are numbered from the given one on
    more = replace(WARM, branch=2)
    assert ids(asyncio.run(branches(model, 2, more))[3]) == ids(said[3])


def test_greedy_branches_share_their_rows(model: LanguageModel) -> None:
    greedy = GenerationOptions(max_tokens=6, sampling=SamplingOptions(temperature=0.0), ignore_eos=True)
    before = settled(model)[0].tokens_computed
    said = asyncio.run(branches(model, 5, greedy))
    assert len({tuple(ids(records)) for records in said.values()}) == 1
    assert settled(model)[0].tokens_computed - before == len(PREFIX) + 5
