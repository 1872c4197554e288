"""Small budgets: refusals with numbers, eviction that changes no answer."""

from __future__ import annotations

import asyncio

import pytest

from runtime.backends.fake import Behaviour
from runtime.errors import InvalidRequestError, MemoryBudgetError
from tests.fakes import KINDS, assert_right, fake_model, reference, settled, some_ids

TOKEN = 2 * 16 * 8  # bytes of one token's KV in the fake model


def test_a_prompt_larger_than_the_budget_is_refused_with_the_numbers() -> None:
    with fake_model(kv_cache_bytes=50 * TOKEN) as model:
        model.next_token_logprobs_sync(some_ids(1, 20))
        for ask in (model.next_token_logprobs, model.score):
            with pytest.raises(
                MemoryBudgetError, match=r"60 tokens need 15,360 bytes of KV, the budget is 12,800.*kv_cache_bytes"
            ):
                asyncio.run(ask(some_ids(2, 60)))
        with pytest.raises(MemoryBudgetError):
            asyncio.run(model.sample(some_ids(2, 60), 4, []))
        # then nothing was computed and nothing evicted
        assert model.metrics().tokens_computed == 20
        assert model.prefix_match(some_ids(1, 20)).tokens == 20
        # and another request in the same batch is not affected

        async def main() -> list[object]:
            works = (model.next_token_logprobs(some_ids(s, n)) for s, n in ((2, 60), (3, 10)))
            return list(await asyncio.gather(*works, return_exceptions=True))

        refused, row = asyncio.run(main())
        assert isinstance(refused, MemoryBudgetError)
        assert_right(row, some_ids(3, 10))  # type: ignore[arg-type]  # the other outcome


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [64, 130, 400])
def test_eviction_changes_no_answer(kind: str, tokens: int) -> None:
    # given a budget of a few prompts, when many related ones arrive in turn and together
    stem = some_ids(0, 25)
    prompts = [[*stem[: 5 * (i % 6)], *some_ids(i, 20)] for i in range(25)]
    with fake_model(
        Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping"), kv_cache_bytes=tokens * TOKEN
    ) as model:
        for prompt in prompts:
            assert_right(model.next_token_logprobs_sync(prompt), prompt, kind)
            report = settled(model)[1]
            assert report.bytes <= tokens * TOKEN
            assert report.leased_bytes == 0
        for row, prompt in zip(model.batch_next_token_logprobs_sync(prompts), prompts, strict=True):
            assert_right(row, prompt, kind)
        ids = asyncio.run(model.sample(prompts[0], 30, [], temperature=0.0))
        path = list(prompts[0])
        for token in ids:
            assert token == int(reference(path, kind).argmax())
            path.append(token)
        records = asyncio.run(model.score(prompts[3]))
        for at in range(1, len(prompts[3])):
            assert records[at].logprob == pytest.approx(float(reference(prompts[3][:at], kind)[prompts[3][at]]), abs=1e-5)
        assert settled(model)[1].bytes <= tokens * TOKEN


def test_a_smaller_budget_evicts_at_once() -> None:
    with fake_model() as model:
        for seed in range(10):
            model.cache_kv(some_ids(seed, 50))
        assert settled(model)[1].tokens == 500
        model.set_kv_budget(200 * TOKEN)
        metrics, report = settled(model)
        assert report.bytes <= report.budget == 200 * TOKEN
        assert metrics.kv_evicted_bytes >= 300 * TOKEN
        assert metrics.kv_budget == 200 * TOKEN
        # the latest texts are the ones that remain
        if report.tokens >= 50:
            assert model.prefix_match(some_ids(9, 50)).tokens == 50
        assert model.prefix_match(some_ids(0, 50)).tokens == 0
        assert_right(model.next_token_logprobs_sync(some_ids(0, 50)), some_ids(0, 50))


@pytest.mark.parametrize("budget", [0, -1, 1.5, True])
def test_a_budget_is_a_number_of_bytes(budget: int) -> None:
    with fake_model() as model, pytest.raises(InvalidRequestError, match="budget_bytes must be a whole number, 1 or more"):
        model.set_kv_budget(budget)


def test_the_report_contains_the_edges_held_and_the_reason_why_a_prefix_ended() -> None:
    with fake_model() as model:
        prompt = some_ids(1, 30)
        asyncio.run(model.sample(prompt, 1, []))
        assert "token 1 of 30 is new" in settled(model)[1].last_reason
        asyncio.run(model.sample([*prompt[:20], 255 - prompt[20]], 1, []))
        report = settled(model)[1]
        assert (report.last_prefix, report.last_reason) == (20, "the whole prompt was held")
        asyncio.run(model.sample([*prompt[:10], *some_ids(2, 10)], 1, []))
        report = settled(model)[1]
        assert report.last_prefix == 10
        assert "token 11 of 20" in report.last_reason
        assert report.tokens == 30 + 1 + 10
        assert sum(edge.tokens for edge in report.largest) == report.tokens
        assert all(edge.leases == 0 for edge in report.largest)
