"""Queries: one forward for equal ones, never another prefix's answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel
from runtime.backends.fake import Behaviour
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.options.priority import Priority
from tests.fakes import KINDS, Gate, assert_right, engine_of, fake_model, settled, some_ids, wait_for_jobs


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_suffix_after_different_prefixes_gives_different_answers(kind: str) -> None:
    # given two cached prefixes, when the same tokens follow both in one batch
    first, second, suffix = some_ids(1, 30), some_ids(2, 30), some_ids(3, 5)
    with fake_model(Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")) as model:
        model.cache_kv(first)
        model.cache_kv(second)
        rows = model.batch_next_token_logprobs_sync([[*first, *suffix], [*second, *suffix]])
        # then each row belongs to its own prefix, and nothing was shared
        assert_right(rows[0], [*first, *suffix], kind)
        assert_right(rows[1], [*second, *suffix], kind)
        assert np.abs(rows[0] - rows[1]).max() > 0.1
        assert model.metrics().queries_deduplicated == 0
        assert model.metrics().tokens_computed == 2 * (30 + 5)


def test_equal_queries_in_one_batch_are_computed_once() -> None:
    a, b = some_ids(1, 20), some_ids(2, 20)
    with fake_model() as model:
        rows = model.batch_next_token_logprobs_sync([a, b, a, a, b])
        for row, ids in zip(rows, [a, b, a, a, b], strict=True):
            assert_right(row, ids)
        metrics = model.metrics()
        assert (metrics.queries, metrics.queries_deduplicated, metrics.tokens_computed) == (5, 3, 40)
        assert metrics.forward_calls == 1


def test_a_query_joins_an_equal_query_in_flight() -> None:
    # given a query that is being computed, when the same one arrives, then one forward answers both
    gate = Gate()
    with fake_model(Behaviour(before_forward=gate)) as model:

        async def main() -> tuple[Any, Any]:
            gate.shut()
            first = asyncio.create_task(model.next_token_logprobs([1, 2, 3]))
            await asyncio.to_thread(gate.reached.wait)
            second = asyncio.create_task(model.next_token_logprobs([1, 2, 3]))
            await asyncio.sleep(0.01)
            gate.open()
            return await first, await second

        one, two = asyncio.run(main())
        assert_right(one, [1, 2, 3])
        assert np.array_equal(one, two)
        assert model.metrics().tokens_computed == 3
        assert model.metrics().forward_calls == 1


@pytest.mark.parametrize("ask", [LanguageModel.next_token_logprobs, LanguageModel.top_logprobs])
@pytest.mark.parametrize(("priority", "joins"), [(Priority.CHAT, 1), (Priority.INSPECTOR, 1), (Priority.BACKGROUND, 0)])
def test_a_query_joins_an_equal_query_only_if_that_is_as_urgent(ask: Any, priority: Priority, joins: int) -> None:
    gate = Gate()
    with fake_model(Behaviour(before_forward=gate)) as model:

        async def main() -> None:
            gate.shut()
            before = asyncio.create_task(model.next_token_logprobs([7]))
            await asyncio.to_thread(gate.reached.wait)
            first = asyncio.create_task(ask(model, [1, 2, 3], priority=priority))
            await asyncio.to_thread(wait_for_jobs, model, 1)
            second = asyncio.create_task(model.next_token_logprobs([1, 2, 3]))
            await asyncio.to_thread(wait_for_jobs, model, 2)
            gate.open()
            assert_right(await second, [1, 2, 3])
            await asyncio.gather(before, first)

        asyncio.run(main())
        assert (model.metrics().queries_deduplicated, model.metrics().tokens_computed) == (joins, 4)


def test_every_caller_gets_an_array_of_its_own() -> None:
    with fake_model() as model:

        async def main() -> list[Any]:
            return list(await asyncio.gather(*(model.next_token_logprobs([4, 5]) for _ in range(2))))

        for _ in range(2):  # computed for both, then cached
            one, two = asyncio.run(main())
            one[:] = 0
            assert_right(two, [4, 5])


def test_queries_of_one_turn_of_the_event_loop_share_one_forward() -> None:
    prompts = [some_ids(seed, 6) for seed in range(12)]
    with fake_model() as model:

        async def main() -> list[Any]:
            return list(await asyncio.gather(*(model.next_token_logprobs(p) for p in prompts)))

        for row, ids in zip(asyncio.run(main()), prompts, strict=True):
            assert_right(row, ids)
        assert model.metrics().forward_calls == 1


def test_metrics_include_a_query_as_soon_as_it_is_answered() -> None:
    with fake_model() as model:
        for n in range(1, 40):
            model.next_token_logprobs_sync(list(range(n)))
            metrics = model.metrics()
            assert (metrics.queries, metrics.tokens_computed) == (n, n)


def test_a_cached_vector_needs_no_forward() -> None:
    with fake_model() as model:
        model.next_token_logprobs_sync([1, 2, 3])
        model.next_token_logprobs_sync([1, 2, 3])
        metrics = model.metrics()
        assert (metrics.tokens_computed, metrics.full_vector_hits, metrics.tokens_reused) == (3, 1, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_cleared_kv_is_computed_again_with_the_same_result(kind: str) -> None:
    ids = some_ids(1, 50)
    with fake_model(Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")) as model:
        before = model.next_token_logprobs_sync(ids)
        assert model.prefix_match(ids).tokens == 50
        model.clear_cache()
        assert model.prefix_match(ids).tokens == 0
        assert np.array_equal(model.next_token_logprobs_sync(ids), before)
        assert model.metrics().tokens_computed == 100
        assert settled(model)[1].tokens == 50


def test_after_a_clear_kv_that_a_running_stream_holds_is_not_reused() -> None:
    # given a stream that runs on through a clear, when its prompt is queried, then it is computed again
    prompt, gate = some_ids(1, 30), Gate()
    with fake_model(Behaviour(before_forward=gate)) as model:

        async def main() -> None:
            gate.shut(after=3)
            stream = asyncio.create_task(model.sample(prompt, 20, [], seed=1))
            assert await asyncio.to_thread(gate.reached.wait, 30)
            clearing = asyncio.create_task(model.clear_cache_async())
            asked = asyncio.ensure_future(model.next_token_logprobs([*prompt, 1]))
            await asyncio.to_thread(wait_for_jobs, model, 2)
            gate.open()
            await clearing
            assert_right(await asked, [*prompt, 1])
            assert len(await stream) == 20

        asyncio.run(main())
        assert model.metrics().tokens_computed == 30 + 19 + 31


def test_clear_kv_cache_keeps_answers_but_no_kv() -> None:
    with fake_model() as model:
        model.next_token_logprobs_sync([1, 2, 3])
        model.clear_kv_cache()
        assert model.prefix_match([1, 2, 3]).tokens == 0
        assert_right(model.next_token_logprobs_sync([1, 2, 3, 4]), [1, 2, 3, 4])
        assert model.metrics().tokens_computed == 3 + 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_clearing_the_cache_does_not_affect_running_requests(kind: str) -> None:
    prompts = [some_ids(seed, 40 + seed) for seed in range(10)]
    with fake_model(Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping"), prefill_chunk_tokens=16) as model:

        async def clear() -> None:
            for _ in range(25):
                await model.clear_cache_async()
                await asyncio.sleep(0.001)

        async def main() -> tuple[list[Any], list[int]]:
            stream = asyncio.create_task(model.sample(prompts[0], 40, [], temperature=0.0))
            clearing = asyncio.create_task(clear())
            rows = await asyncio.gather(*(model.next_token_logprobs(p) for p in prompts))
            await clearing
            return rows, await stream

        rows, ids = asyncio.run(main())
        for row, prompt in zip(rows, prompts, strict=True):
            assert_right(row, prompt, kind)
        path = list(prompts[0])
        for token in ids:
            assert token == int(model.next_token_logprobs_uncached(path).argmax())
            path.append(token)
        model.clear_cache()
        assert settled(model)[1].bytes == 0


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_cache_every_answer_is_computed_and_nothing_is_kept(kind: str) -> None:
    ids = some_ids(1, 20)
    with fake_model(Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping"), cache=False) as model:
        for _ in range(2):
            assert_right(model.next_token_logprobs_sync(ids), ids, kind)
        assert model.metrics().tokens_computed == 40
        rows = model.batch_next_token_logprobs_sync([ids, ids[:10], ids])
        assert_right(rows[1], ids[:10], kind)

        async def main() -> tuple[Any, Any]:
            greedy = GenerationOptions(max_tokens=5, sampling=SamplingOptions(temperature=0.0), ignore_eos=True)
            return await model.score(ids), [r async for r in model.generate(ids, greedy)]

        scores, records = asyncio.run(main())
        assert [r.logprob for r in scores[1:]] == pytest.approx(
            [float(model.next_token_logprobs_uncached(ids[:i])[ids[i]]) for i in range(1, 20)], abs=1e-5
        )
        path = list(ids)
        for record in records:
            assert record.token_id == int(model.next_token_logprobs_uncached(path).argmax())
            path.append(record.token_id)
        assert model.prefix_match(ids).tokens == 0
        report = settled(model)[1]
        assert (report.edges, report.bytes) == (0, 0)
        assert model.metrics().kv_bytes == 0


def test_writing_into_an_answer_does_not_change_the_cached_row() -> None:
    # given rows of one batch, which lie in one array of logits, when a caller writes into its answer
    batch = [some_ids(seed, 12) for seed in range(5)]
    with fake_model() as model:
        first = model.batch_next_token_logprobs_sync(batch)
        kept = first.copy()
        first[:] = 0
        # then the cached rows are unchanged, to the bit, alone or in a batch, without a forward
        forwards = model.metrics().forward_calls
        assert np.array_equal(model.batch_next_token_logprobs_sync(batch[::-1])[::-1], kept)
        for ids, row in zip(batch, kept, strict=True):
            assert np.array_equal(model.next_token_logprobs_sync(ids), row)
        assert model.metrics().forward_calls == forwards
        assert model.metrics().full_vector_hits == 10


def test_diverging_answers_share_one_pack_and_the_trie_holds_each_token_once() -> None:
    # given two answers to one prompt that diverge
    prompt = some_ids(1, 40)
    options = GenerationOptions(max_tokens=8, ignore_eos=True, sampling=SamplingOptions(temperature=1.0), resolve=False)
    with fake_model() as model:
        answers = [[r.token_id for r in model.generate_sync(prompt, replace(options, seed=seed))] for seed in (1, 2)]
        assert answers[0] != answers[1]
        # then one pack holds both, and the trie refers once to the tokens that they have in common
        same = next(at for at, (a, b) in enumerate(zip(*answers, strict=True)) if a != b)
        [workspace] = engine_of(model).scheduler.cache.workspaces.open
        assert workspace.held == len(prompt) + 2 * 7
        assert settled(model)[1].tokens == workspace.held - same
        assert model.prefix_match([*prompt, *answers[0]]).tokens == len(prompt) + 7
        # and a query after the first one computes only its last token
        before = model.metrics().tokens_computed
        assert_right(model.next_token_logprobs_sync([*prompt, *answers[0]]), [*prompt, *answers[0]])
        assert model.metrics().tokens_computed == before + 1


def test_answers_that_run_together_are_the_same_as_alone_and_share_their_stem() -> None:
    # given two prompts that share a beginning, when their answers run together
    stem = some_ids(1, 30)
    prompts = [[*stem, *some_ids(seed, 6)] for seed in (2, 3)]
    options = GenerationOptions(
        max_tokens=20, ignore_eos=True, sampling=SamplingOptions(temperature=1.0), seed=5, resolve=False
    )
    with fake_model() as model:
        alone = [[r.token_id for r in model.generate_sync(prompt, options)] for prompt in prompts]
        model.clear_cache()

        async def collect(prompt: list[int]) -> list[int]:
            return [record.token_id async for record in model.generate(prompt, options)]

        async def main() -> list[list[int]]:
            return await asyncio.gather(*map(collect, prompts))

        # then each is the same as alone, and nothing was computed twice
        before = model.metrics().tokens_computed
        assert asyncio.run(main()) == alone
        assert model.metrics().tokens_computed - before == 30 + 2 * (6 + 19)


def test_the_likeliest_and_chosen_tokens_are_those_of_the_whole_rows() -> None:
    # given rows of which two are equal, one is unrelated, and one was queried before
    batch, k, chosen = [some_ids(1, 20), some_ids(2, 9), some_ids(1, 20), [*some_ids(1, 20), 7]], 5, [9, 200, 3]
    with fake_model() as model:
        model.next_token_logprobs_sync(batch[0])
        tops = model.batch_top_logprobs_sync(batch, k, chosen=chosen)
        rows = model.batch_next_token_logprobs_sync(batch)
        # then they equal the values in the rows, to the bit
        for top, row in zip(tops, rows, strict=True):
            assert top.ids.tolist() == np.argsort(-row, kind="stable")[:k].tolist()
            assert top.logprobs.tolist() == row[top.ids].tolist()
            assert top.chosen == {token: float(row[token]) for token in chosen}
            assert top.tail_mass == pytest.approx(1 - np.exp(np.sort(row)[-k:]).sum(), abs=1e-6)
        assert model.metrics().tokens_computed == 20 + 9 + 1


def test_more_alternatives_than_tokens_are_the_whole_vocabulary() -> None:
    with fake_model() as model:
        top = model.top_logprobs_sync([1, 2], 300)
        assert len(top.ids) == model.info.vocab_size
        assert top.tail_mass == 0.0


def test_an_error_of_one_row_fails_the_whole_batch() -> None:
    with fake_model(Behaviour(raise_on={77: ValueError("bad")})) as model, pytest.raises(ValueError, match="bad"):
        model.batch_top_logprobs_sync([[1, 2], [3, 77]], 3)
