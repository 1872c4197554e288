"""KV from the block file: restored equals fresh, and blocks that are damaged, foreign or too many are computed instead."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel, load
from runtime.adapters.stacks import Routing
from runtime.backends.fake import Behaviour
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.options.load import BlockOptions
from runtime.records import Float32
from runtime.session.session import SessionConfig
from tests.block_stores import MemoryBlocks
from tests.fakes import KINDS, assert_right, engine_of, fake_model, local, query_job, reference, settled, some_ids
from tests.runtime.model.trouble import audit

GREEDY = GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, top_k=0)
STEM = some_ids(1, 300)
KV = 2 * 16 * 8  # bytes of one token's KV in the fake model


def behaviour(kind: str) -> Behaviour:
    return Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")


def keep(options: BlockOptions, *paths: list[int], kind: str = "attention") -> None:
    """Another model computes the paths and saves them."""
    with fake_model(behaviour(kind), blocks=options) as model:
        for path in paths:
            model.cache_kv(path)
            assert model.save_blocks(path).tokens == len(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [17, 64, 65, 128, 300])
def test_a_saved_path_is_restored_and_not_computed_again(kind: str, n: int, options: BlockOptions) -> None:
    keep(options, STEM[:n], kind=kind)
    with fake_model(behaviour(kind), blocks=options) as model:
        assert model.prefix_match(STEM[:n]).tier == "disk"
        path = [*STEM[:n], *some_ids(2, 5)]
        assert_right(model.next_token_logprobs_sync(path), path, kind)
        metrics = model.metrics()
        assert (metrics.tokens_restored, metrics.tokens_computed, metrics.tokens_reused) == (n, 5, n)
        assert (model.prefix_match(path).tokens, model.prefix_match(path).tier) == (n + 5, "warm")
        audit(model)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_on_a_saved_path_computes_one_token_or_those_after_its_last_checkpoint(
    kind: str, options: BlockOptions
) -> None:
    keep(options, STEM, [*STEM[:290]], kind=kind)
    with fake_model(behaviour(kind), blocks=options) as model:
        said = [record.token_id for record in model.generate_sync(STEM, GREEDY)]
        assert said[0] == int(reference(STEM, kind).argmax())
        # from the deepest checkpoint before the last token
        assert model.metrics().tokens_computed - len(said) + 1 == (10 if kind == "recurrent" else 1)


def test_the_common_blocks_of_a_diverging_path_are_restored(options: BlockOptions) -> None:
    keep(options, STEM)
    with fake_model(blocks=options) as model:
        path = [*STEM[:200], *some_ids(3, 100)]
        assert_right(model.next_token_logprobs_sync(path), path)
        assert model.metrics().tokens_restored == 192
        # and of a path whose beginning is in memory, only the rest is read
        assert_right(model.next_token_logprobs_sync([*STEM, 7]), [*STEM, 7])
        assert model.metrics().tokens_restored == 192 + 100
        audit(model)


def test_the_store_is_not_read_for_a_few_missing_tokens(store: MemoryBlocks, options: BlockOptions) -> None:
    keep(options, STEM)
    with fake_model(blocks=options) as model:
        model.cache_kv(STEM[:290])
        store.calls.clear()
        assert_right(model.next_token_logprobs_sync(STEM), STEM)
        assert store.calls == []


def test_scores_are_restored_with_the_kv(options: BlockOptions) -> None:
    with fake_model(blocks=options) as model:
        fresh = asyncio.run(model.score_run(STEM, top_k=5))
        model.save_blocks(STEM)
    with fake_model(blocks=options) as model:
        again = asyncio.run(model.score_run(STEM, top_k=5))
        np.testing.assert_array_equal(again.logprob, fresh.logprob)
        np.testing.assert_array_equal(again.top_ids, fresh.top_ids)
        assert model.metrics().tokens_computed <= 1
        # and a longer text is scored from there
        longer = [*STEM, *some_ids(4, 9)]
        asyncio.run(model.score_run(longer, top_k=5))
        assert model.metrics().tokens_computed <= 1 + 1 + 9
        audit(model)


def test_saved_tokens_without_scores_or_with_fewer_alternatives_are_scored_again(options: BlockOptions) -> None:
    with fake_model(blocks=options) as model:
        asyncio.run(model.score_run(STEM[:-1], top_k=5))
        model.next_token_logprobs_sync(STEM)  # a query: the last token has no scores
        model.save_blocks(STEM)
        longer = [*STEM, *some_ids(4, 200)]
        asyncio.run(model.score_run(longer, top_k=3, start=len(STEM)))  # and others have fewer alternatives
        model.save_blocks(longer)
    with fake_model(blocks=options) as model:
        fresh = asyncio.run(model.score_run(STEM, top_k=5))
        assert model.metrics().tokens_computed <= 2
        assert not np.isnan(fresh.logprob[1:]).any()
        asyncio.run(model.score_run(longer, top_k=5))
        assert model.metrics().tokens_computed <= 2 + 1 + 200
        audit(model)


def test_a_session_counts_restored_tokens_as_reused(options: BlockOptions) -> None:
    with fake_model(blocks=options) as model:
        session = model.open_session(SessionConfig())
        session.ensure_prefix_sync(STEM)
        model.save_blocks(STEM)
        session.close()
    with fake_model(blocks=options) as model:
        session = model.open_session(SessionConfig())
        status = session.ensure_prefix_sync([*STEM, *some_ids(2, 7)])
        assert (status.reused, status.prefilled) == (299, 8)  # the first new token is scored by the last old one
        assert model.metrics().tokens_restored == 300
        session.close()


def test_a_checkpoint_on_disk_is_used_where_memory_holds_none_to_resume_from(options: BlockOptions) -> None:
    long, asked = some_ids(1, 600), [*some_ids(1, 600)[:500], *some_ids(7, 3)]
    keep(options, long[:500], kind="recurrent")
    with fake_model(behaviour("recurrent"), blocks=options, prefill_chunk_tokens=1024) as model:
        scheduler = engine_of(model).scheduler
        thread, scheduler.blocks.thread = scheduler.blocks.thread, None  # computed as if nothing were stored
        model.cache_kv(long)
        scheduler.blocks.thread = thread
        engine_of(model).call(scheduler.cache.workspaces.drop_idle).result()
        before = model.metrics()
        assert_right(model.next_token_logprobs_sync(asked), asked, "recurrent")
        assert model.metrics().tokens_computed - before.tokens_computed == 3
        assert model.metrics().tokens_restored - before.tokens_restored <= 500
        audit(model)


# ---- blocks that must never be fed to the model -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("harm", ["cut", "swapped", "header", "gone"])
def test_tokens_from_a_damaged_or_missing_block_on_are_computed(
    place: int, harm: str, store: MemoryBlocks, options: BlockOptions
) -> None:
    keep(options, STEM)
    keys = list(store.blocks)
    parent, tokens, data = store.blocks[keys[place]]
    if harm == "gone":
        del store.blocks[keys[place]]
    else:
        bent = {"cut": data[:-1], "swapped": store.blocks[keys[place - 1]][2], "header": data[:9] + b"?" + data[10:]}
        store.blocks[keys[place]] = parent, tokens, bent[harm]
    with fake_model(blocks=options) as model:
        path = [*STEM, 3, 4]
        assert_right(model.next_token_logprobs_sync(path), path)
        assert model.metrics().tokens_restored == 64 * place
        assert model.metrics().tokens_computed == len(path) - 64 * place
        audit(model)


@pytest.mark.parametrize("failing", ["leading", "get"])
def test_a_read_error_of_the_store_is_a_warning(failing: str, store: MemoryBlocks, options: BlockOptions) -> None:
    keep(options, STEM)

    def broken(name: str) -> None:
        if name == failing:
            raise OSError(5, "Input/output error")

    store.before = broken
    with fake_model(blocks=options) as model:
        assert_right(model.next_token_logprobs_sync(STEM), STEM)
        assert "Input/output error" in model.info.warnings[0]
        assert model.metrics().tokens_restored == 0
        audit(model)


def test_a_model_with_another_fingerprint_restores_nothing(store: MemoryBlocks, options: BlockOptions) -> None:
    keep(options, STEM)
    with fake_model(Behaviour(), blocks=options) as model:
        backend = engine_of(model).backend
        backend.info = replace(backend.info, kv_fingerprint="another")
        local(model).adapters.registry.routing = Routing("another")
        assert model.prefix_match(STEM).tokens == 0
        assert_right(model.next_token_logprobs_sync(STEM), STEM)
        assert model.metrics().tokens_restored == 0


# ---- room, cancelling, crowds -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [310, 400, 520, 640, 900])
def test_answers_are_right_and_within_the_budget_where_not_all_blocks_fit(
    kind: str, tokens: int, options: BlockOptions
) -> None:
    keep(options, STEM, kind=kind)
    path = [*STEM, 9]
    with fake_model(behaviour(kind), blocks=options, kv_cache_bytes=tokens * KV) as model:
        for _ in range(2):
            assert_right(model.next_token_logprobs_sync(path), path, kind)
            metrics, report = settled(model)
            assert metrics.kv_peak_bytes <= metrics.kv_budget
            assert report.leased_bytes == 0
        audit(model)


def test_pinned_kv_is_not_evicted_for_a_restore(options: BlockOptions) -> None:
    keep(options, STEM)
    with fake_model(blocks=options, kv_cache_bytes=1100 * KV) as model:
        kept = some_ids(8, 200)
        model.cache_kv(kept)
        pin = model.pin(kept)
        assert_right(model.next_token_logprobs_sync([*STEM, 1]), [*STEM, 1])
        assert model.prefix_match(kept).warm is None
        assert model.prefix_match(kept).tokens == 200
        model.unpin(pin)


def reading(store: MemoryBlocks) -> tuple[threading.Event, threading.Event]:
    """Holds every `get` until the second event is set; the first event is set once one is held."""
    reached, gate = threading.Event(), threading.Event()

    def hold(name: str) -> None:
        if name == "get":
            reached.set()
            assert gate.wait(20)

    store.before = hold
    return reached, gate


@pytest.mark.parametrize("kind", KINDS)
def test_requests_cancelled_during_a_restore_leave_nothing_behind(
    kind: str, store: MemoryBlocks, options: BlockOptions
) -> None:
    keep(options, STEM, kind=kind)
    reached, gate = reading(store)

    async def play(model: LanguageModel) -> None:
        asked = [asyncio.create_task(model.next_token_logprobs([*STEM, at])) for at in range(3)]
        streams = asyncio.create_task(model.sample([*STEM, 7], 5, [], temperature=0.0))
        await asyncio.to_thread(reached.wait, 20)
        for task in (*asked[:2], streams):
            task.cancel()
        await asyncio.gather(*asked[:2], streams, return_exceptions=True)
        said = await model.sample([1, 2], 5, [], temperature=0.0)  # other requests are served meanwhile
        assert said[0] == int(reference([1, 2], kind).argmax())
        gate.set()
        assert_right(await asked[2], [*STEM, 2], kind)

    with fake_model(behaviour(kind), blocks=options) as model:
        asyncio.run(play(model))
        audit(model)
        assert engine_of(model).scheduler.cache.kv_budget.in_transfer == 0


def test_closing_the_model_during_a_restore_ends_the_waiting_query(store: MemoryBlocks, options: BlockOptions) -> None:
    keep(options, STEM)
    reached, gate = reading(store)
    with load("anything", backend="fake", blocks=options) as model:
        waiter: Future[Float32] = Future()
        engine_of(model).submit([query_job(model, [*STEM, 1], waiter)])
        assert reached.wait(20)
        waiter.add_done_callback(lambda _: gate.set())  # the query ends before the read has
        model.close()
    assert "closed" in str(waiter.exception(5))


def test_queries_that_need_the_same_blocks_read_them_once(store: MemoryBlocks, options: BlockOptions) -> None:
    keep(options, STEM)
    with fake_model(blocks=options) as model:
        paths = [[*STEM, *some_ids(seed, 30)] for seed in range(8)]
        rows: Float32 = model.batch_next_token_logprobs_sync(paths)
        for row, path in zip(rows, paths, strict=True):
            assert_right(row, path)
        assert model.metrics().tokens_restored == 300
        assert model.metrics().tokens_computed == 8 * 30
        audit(model)


def test_a_cleared_cache_is_restored_from_disk(options: BlockOptions) -> None:
    keep(options, STEM)
    with fake_model(blocks=options) as model:
        for turn in (1, 2, 3):
            assert_right(model.next_token_logprobs_sync([*STEM, turn]), [*STEM, turn])
            model.clear_cache()
            assert model.metrics().tokens_restored == turn * 300


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_random_queries_saves_and_cancellations_with_little_memory_are_right(
    kind: str, store: MemoryBlocks, options: BlockOptions
) -> None:
    # given little memory, and paths that share prefixes
    chance = random.Random(5)
    stems = [some_ids(seed, 400) for seed in range(3)]

    async def one(model: LanguageModel) -> None:
        path = [*chance.choice(stems)[: chance.randrange(1, 400)], *some_ids(chance.randrange(30), chance.randrange(40))]
        work: Any = chance.choice([model.next_token_logprobs, model.save_blocks_async, model.prefix_match_async, model.score])
        task: asyncio.Future[Any] = asyncio.ensure_future(work(path))
        for _ in range(chance.choice([0, 1, 2, 5, 20])):
            await asyncio.sleep(0)
        if chance.random() < 0.3:
            await asyncio.sleep(chance.random() * 0.01)
        if chance.random() < 0.5:
            task.cancel()
        try:
            got = await task
        except asyncio.CancelledError:
            return
        if work == model.next_token_logprobs:
            assert_right(got, path, kind)

    async def crowd(model: LanguageModel) -> None:
        async def some() -> None:
            for _ in range(60):
                await one(model)

        await asyncio.gather(*(some() for _ in range(12)))

    with fake_model(
        behaviour(kind), blocks=options, kv_cache_bytes=2500 * KV, prefill_chunk_tokens=64, max_batch_rows=6
    ) as model:
        asyncio.run(crowd(model))
        audit(model)
        assert engine_of(model).scheduler.cache.kv_budget.in_transfer == 0
        # then blocks are restored as before; whether they were meanwhile is a matter of timing
        model.save_blocks(stems[0])
        model.clear_kv_cache()
        restored = model.metrics().tokens_restored
        assert_right(model.next_token_logprobs_sync(stems[0]), stems[0], kind)
        assert model.metrics().tokens_restored > restored


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_that_prefix_match_reports_are_not_computed(kind: str) -> None:
    """Recurrent layers are resumed from checkpoints alone, however much else of a path is in memory."""
    with fake_model(behaviour(kind)) as model:
        model.cache_kv(STEM)
        model.cache_kv([*STEM[:120], *some_ids(3, 40)])
        for path in ([*STEM[:200], *some_ids(4, 30)], [*STEM[:120], 7, 8], [*STEM, 1], [*STEM[:60], 5], some_ids(9, 20)):
            said, before = model.prefix_match(path), model.metrics()
            model.next_token_logprobs_sync(path)
            assert model.metrics().tokens_computed - before.tokens_computed == len(path) - said.tokens
            assert said.tier == ("warm" if said.tokens else "cold")
