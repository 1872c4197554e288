"""Requests counted from arrival to end, and what each took."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest

from runtime import (
    BeamOptions,
    GenerationOptions,
    LanguageModel,
    Latency,
    Metrics,
    PromptProgress,
    SamplingOptions,
    load,
    spawn,
)
from runtime.backends.fake import Behaviour
from runtime.options.load import BlockOptions
from runtime.scheduler.metrics import RECENT, WINDOW
from tests.fakes import Gate, engine_of, fake_model, settled, some_ids, wait_for_close, wait_for_jobs


def options(n: int) -> GenerationOptions:
    return GenerationOptions(max_tokens=n, seed=1, ignore_eos=True)


def test_metrics_show_the_effect_of_a_call_before_it_returns() -> None:
    with fake_model() as model:
        engine, may_run, seen = engine_of(model), threading.Event(), list[int]()

        def change() -> None:
            assert may_run.wait(20)
            engine.scheduler.cache.kv_budget.set_budget(64 << 20)

        future = engine.call(change)
        future.add_done_callback(lambda _: seen.append(model.metrics().kv_budget))  # on the owner thread, at once
        may_run.set()
        future.result(20)
        assert seen == [64 << 20]


def test_each_kind_of_request_has_its_timings() -> None:
    heard: list[PromptProgress] = []
    with fake_model() as model:

        async def use() -> None:
            async for _ in model.generate(some_ids(1, 30), options(12), on_progress=heard.append):
                pass
            await model.score(some_ids(1, 40), on_progress=heard.append)
            await model.embed(["ab", "c"], on_progress=heard.append)

        asyncio.run(use())
        metrics = model.metrics()
        made, scored, embedded = (metrics.request(number) for number in (1, 2, 3))
        assert [t.kind for t in metrics.recent] == ["generate", "score", "embed"]
        assert {h.request for h in heard} == {1, 2, 3}
        assert made is not None
        assert scored is not None
        assert embedded is not None
        assert (made.finish, made.prompt_tokens, made.generated_tokens, made.reused, made.computed) == ("length", 30, 12, 0, 30)
        assert made.first_token_seconds is not None
        assert made.queue_seconds is not None
        assert 0 <= made.queue_seconds <= made.queue_seconds + made.prefill_seconds <= made.first_token_seconds
        assert made.first_token_seconds + made.decode_seconds == pytest.approx(made.total_seconds)
        assert made.tokens_per_second == pytest.approx(11 / made.decode_seconds)
        assert metrics.tokens_per_second == made.tokens_per_second
        assert (scored.finish, scored.prompt_tokens, scored.generated_tokens) == ("done", 40, 0)
        assert sum(each or 0 for each in (scored.reused, scored.computed)) == 40
        assert scored.first_token_seconds is None is scored.tokens_per_second
        assert (embedded.prompt_tokens, embedded.computed, embedded.finish) == (3, 4, "done")  # one of them padding
        assert (metrics.requests_started, metrics.requests_completed, metrics.requests_active) == (3, 3, 0)
        assert metrics.prompt_tokens == 73
        assert metrics.tokens_generated == 12
        assert metrics.tokens_computed == metrics.tokens_prefilled + 11 + 4
        assert metrics.first_token_latency == Latency(*[made.first_token_seconds] * 3)
        assert metrics.request(4) is None


def test_a_beam_search_is_counted_as_a_generation() -> None:
    with fake_model() as model:
        best = asyncio.run(model.beam_generate(some_ids(1, 30), BeamOptions(3, 8, ignore_eos=True)))
        metrics = settled(model)[0]
        assert [len(one.ids) for one in best] == [8, 8, 8]
        assert metrics.tokens_generated == 3 * 8
        assert metrics.tokens_computed - metrics.tokens_prefilled == 3 * 7
        assert metrics.decode_seconds > 0
        assert metrics.decode_tokens_per_second == pytest.approx(24 / metrics.decode_seconds)
        [made] = metrics.recent
        assert made.generated_tokens == 8
        assert metrics.tokens_per_second == made.tokens_per_second is not None


def test_how_requests_end_is_counted() -> None:
    # given requests that are cancelled while running or waiting, that fail, or whose prompt is too long for the budget
    gate = Gate()
    bomb = 7
    with fake_model(Behaviour(before_forward=gate, raise_on={bomb: ValueError("boom")}), kv_cache_bytes=100_000) as model:

        async def use() -> None:
            gate.shut(after=1)  # after the first token
            stream = model.generate(some_ids(1, 5), options(300))
            await anext(stream)
            await stream.aclose()
            gate.open()
            with pytest.raises(ValueError, match="boom"):
                await model.score([1, bomb, 2])
            with pytest.raises(Exception, match="budget"):
                await model.score(some_ids(3, 5000))
            gate.shut()
            first = asyncio.create_task(model.score(some_ids(4, 9)))
            assert await asyncio.to_thread(gate.reached.wait, 10)
            later = asyncio.create_task(model.embed(["xyz"]))
            await asyncio.to_thread(wait_for_jobs, model, 1)
            later.cancel()
            await asyncio.gather(later, return_exceptions=True)
            gate.open()
            await first

        asyncio.run(use())
        metrics = settled(model)[0]
        assert (metrics.requests_started, metrics.requests_active, metrics.requests_waiting) == (5, 0, 0)
        assert (metrics.requests_completed, metrics.requests_failed, metrics.requests_cancelled) == (1, 2, 2)
        assert sorted(t.finish for t in metrics.recent) == ["cancelled", "cancelled", "done", "error", "error"]


def test_a_seed_that_the_caller_left_out_is_reported_and_repeats_the_answer() -> None:
    numbers: list[int] = []

    async def said(model: LanguageModel, seed: int | None) -> tuple[list[int], int | None]:
        options = GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=1.5), seed=seed, ignore_eos=True)
        records = model.generate(some_ids(1, 9), options, on_progress=lambda told: numbers.append(told.request))
        ids = [record.token_id async for record in records]
        timings = model.metrics().request(numbers[-1])
        assert timings is not None
        return ids, timings.seed

    with fake_model() as model:
        ids, seed = asyncio.run(said(model, None))
        assert seed is not None
        assert asyncio.run(said(model, seed)) == (ids, seed)
        other, another = asyncio.run(said(model, None))
        assert another != seed
        assert other != ids
        assert asyncio.run(model.score(some_ids(1, 9)))
        assert model.metrics().recent[-1].seed is None


def test_the_time_that_a_request_waits_in_the_queue_is_measured() -> None:
    gate = Gate()
    with fake_model(Behaviour(before_forward=gate)) as model:

        async def use() -> tuple[Metrics, float, float]:
            gate.shut()
            first = asyncio.create_task(model.score(some_ids(1, 9)))
            await asyncio.to_thread(gate.reached.wait, 10)
            second = asyncio.create_task(model.score(some_ids(2, 9)))
            await asyncio.sleep(0)  # it is submitted now
            begun = time.monotonic()
            await asyncio.sleep(0.05)
            waited = time.monotonic() - begun
            gate.open()
            await asyncio.gather(first, second)
            timings = model.metrics().request(2)
            assert timings is not None
            assert timings.queue_seconds is not None
            return model.metrics(), timings.queue_seconds, waited

        metrics, queued, waited = asyncio.run(use())
        assert queued >= waited > 0
        assert metrics.queue_latency.p95 == pytest.approx(queued)
        assert metrics.requests_waiting == 0


def test_queries_are_not_counted_as_requests_but_as_cache_hits_and_misses() -> None:
    with fake_model() as model:
        assert model.metrics().cache_hit_rate is None
        model.next_token_logprobs_sync(some_ids(1, 20))
        model.cache_kv(some_ids(1, 20))
        model.clear_kv_cache()
        model.next_token_logprobs_sync(some_ids(2, 20))
        metrics = model.metrics()
        assert metrics.requests_started == 0
        assert metrics.recent == ()
        assert metrics.cache_hits + metrics.cache_misses >= 2
        assert metrics.cache_hit_rate is not None
        assert metrics.prefill_tokens_per_second is not None
        assert metrics.decode_tokens_per_second is None


def test_a_request_counts_as_one_cache_lookup_however_many_rows_it_has() -> None:
    prompt = some_ids(1, 30)
    with fake_model() as model:

        async def main() -> None:
            await model.score(prompt)
            assert looks(model) == (0, 1)
            _ = [run async for run in model.continue_many(prompt, 4, options(5))]
            assert looks(model) == (1, 1)
            await model.beam_generate(prompt, BeamOptions(3, 5))
            assert looks(model) == (2, 1)
            await model.score([*prompt, 7, 8])
            assert looks(model) == (3, 1)

        asyncio.run(main())


def test_a_request_counts_as_one_cache_lookup_with_a_block_file_too(options: BlockOptions) -> None:
    prompt = some_ids(1, 300)

    async def main() -> None:
        await model.score(prompt)
        assert looks(model) == (0, 1)
        await model.save_blocks_async(prompt)
        model.clear_cache()
        await model.score([*prompt, 7])
        assert looks(model) == (0, 2)  # restored from blocks, so it was not in memory
        await model.score([*prompt, 8])
        assert looks(model) == (1, 2)

    with fake_model(blocks=options) as model:
        asyncio.run(main())


def looks(model: LanguageModel) -> tuple[int, int]:
    """The cache lookups that found something, and those that found nothing."""
    metrics = settled(model)[0]
    return metrics.cache_hits, metrics.cache_misses


def test_evictions_are_counted() -> None:
    with fake_model(kv_cache_bytes=60_000) as model:
        for seed in range(12):
            model.cache_kv(some_ids(seed, 80))
        metrics = settled(model)[0]
        assert metrics.kv_evictions > 0
        assert metrics.kv_evicted_bytes > 0


def test_only_the_last_requests_are_kept() -> None:
    with fake_model() as model:
        for seed in range(RECENT + 5):
            asyncio.run(model.score(some_ids(seed, 3)))
        metrics = model.metrics()
        assert [t.request for t in metrics.recent] == list(range(6, RECENT + 6))
        assert metrics.requests_completed == RECENT + 5


def test_latencies_are_numpys_percentiles_of_the_last_requests() -> None:
    waited: list[float] = []
    with fake_model() as model:
        for seed in range(WINDOW + 20):
            model.score_sync(some_ids(seed, 3))
            metrics = model.metrics()
            assert metrics.recent[-1].queue_seconds is not None
            waited.append(metrics.recent[-1].queue_seconds)
            if seed in (0, 1, 20, WINDOW, WINDOW + 19):
                last = np.array(waited[-WINDOW:])
                assert metrics.queue_latency.p50 == np.percentile(last, 50, method="inverted_cdf")
                assert metrics.queue_latency.p95 == np.percentile(last, 95, method="inverted_cdf")
                assert metrics.queue_latency.mean == pytest.approx(last.mean())
                assert metrics.token_latency == Latency()


@pytest.mark.slow
def test_timings_cross_the_pipe() -> None:
    async def use() -> tuple[Metrics, int]:
        heard: list[Any] = []
        async with await spawn("x", "fake") as client:
            async for _ in client.generate(some_ids(1, 30), options(5), on_progress=heard.append):
                pass
            return client.metrics(), heard[-1].request

    metrics, number = asyncio.run(use())
    timings = metrics.request(number)
    assert timings is not None
    assert (timings.kind, timings.finish, timings.generated_tokens) == ("generate", "length", 5)
    assert metrics.requests_completed == 1


def test_a_closed_model_leaves_no_request_open() -> None:
    gate = Gate()
    model = load((Behaviour(before_forward=gate), None), backend="fake")

    async def use() -> None:
        gate.shut()
        task = asyncio.create_task(model.score(some_ids(1, 9)))
        await asyncio.to_thread(gate.reached.wait, 10)
        closing = asyncio.create_task(model.close_async())
        await asyncio.to_thread(wait_for_close, model)
        gate.open()
        await asyncio.gather(task, closing, return_exceptions=True)

    asyncio.run(use())
    counters = engine_of(model).scheduler.counters
    assert counters.requests_active == counters.requests_waiting == 0
