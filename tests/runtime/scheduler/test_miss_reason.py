"""Why the cached prefix of the last request ended where it did: every reason is distinguished."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from runtime import LanguageModel, load
from runtime.backends.fake import Behaviour
from runtime.records import Int32
from runtime.scheduler.jobs import QueryJob
from runtime.scheduler.kv.prefix_cache import PrefixCache
from tests.fakes import engine_of, fake_model, settled, some_ids
from tests.tiny_models import tiny_path

TOKEN = 2 * 16 * 8  # bytes of one token's KV in the fake model


def why(model: LanguageModel) -> tuple[str, int]:
    """The reason for the last request, and the tokens it found."""
    report = settled(model)[1]
    assert report.last_reason
    return report.last_cause, report.last_prefix


def ask(model: LanguageModel, ids: list[int]) -> None:
    """Runs a generation, which a cached distribution cannot answer."""
    asyncio.run(model.sample(ids, 1, []))


def drop_packs(model: LanguageModel) -> None:
    engine = engine_of(model)
    engine.call(engine.scheduler.cache.workspaces.drop_idle).result()


def test_there_is_no_reason_before_the_first_request() -> None:
    with fake_model() as model:
        assert why(model) == ("none", 0)


def test_text_that_was_never_computed_is_reported_as_new() -> None:
    with fake_model() as model:
        prompt = some_ids(1, 30)
        ask(model, prompt)
        assert why(model) == ("new", 0)
        ask(model, [*prompt[:20], *some_ids(2, 8)])
        assert why(model) == ("new", 20)
        assert "token 21 of 28 is new: nothing after token 20" in model.cache_report().last_reason


@pytest.mark.parametrize("packs", [True, False])
def test_a_prompt_that_is_cached_to_its_end_is_reported_as_whole(packs: bool) -> None:
    with fake_model() as model:
        prompt = some_ids(1, 30)
        model.cache_kv(prompt)
        if not packs:
            drop_packs(model)
        ask(model, prompt)
        assert why(model) == ("whole", 30)
        ask(model, [*prompt, 7])
        assert why(model) == ("whole", 30)
        model.next_token_logprobs_sync(prompt)  # answered from the cached distribution: nothing was placed
        assert why(model) == ("whole", 30)
        asyncio.run(model.score(prompt))
        asyncio.run(model.score(prompt))
        assert why(model) == ("whole", 30)


def test_evicted_text_is_distinguished_from_text_never_computed() -> None:
    with fake_model(kv_cache_bytes=200 * TOKEN) as model:
        first = some_ids(1, 60)
        model.cache_kv(first)
        for seed in range(2, 6):
            model.cache_kv(some_ids(seed, 60))
        drop_packs(model)
        ask(model, first)
        cause, depth = why(model)
        assert (cause, depth) == ("evicted", 0)
        assert "gave way to other text" in model.cache_report().last_reason
        ask(model, some_ids(99, 60))
        assert why(model) == ("new", 0)
        # and text after a cached prompt is new
        ask(model, some_ids(6, 20))
        ask(model, [*some_ids(6, 20), *some_ids(98, 20)])
        assert why(model) == ("new", 20)


def test_text_evicted_after_a_prefix_that_is_cached_again_is_reported_as_evicted() -> None:
    with fake_model(kv_cache_bytes=200 * TOKEN) as model:
        first = some_ids(1, 60)
        model.cache_kv(first)
        for seed in range(2, 6):
            model.cache_kv(some_ids(seed, 60))
        model.cache_kv(first[:25])
        drop_packs(model)
        ask(model, first[:40])
        assert why(model) == ("evicted", 25)
        ask(model, [*first[:25], *some_ids(7, 10)])
        assert why(model) == ("new", 25)


@pytest.mark.parametrize("vectors", [True, False])
def test_cleared_text_is_reported_as_cleared(vectors: bool) -> None:
    with fake_model() as model:
        prompt = some_ids(1, 30)
        model.cache_kv(prompt)
        if vectors:
            model.clear_cache()
        else:
            model.clear_kv_cache()
        ask(model, prompt)
        assert why(model) == ("cleared", 0)
        ask(model, some_ids(2, 30))
        assert why(model) == ("new", 0)


def test_text_never_kept_for_lack_of_room_is_reported_as_refused() -> None:
    # given a budget that a long answer fills by itself, so that its tail was never kept
    with fake_model(Behaviour(recurrent=True), kv_cache_bytes=150 * TOKEN) as model:
        prompt = some_ids(1, 20)
        said = asyncio.run(model.sample(prompt, 100, [], temperature=0.0))
        drop_packs(model)
        ask(model, [*prompt, *said])
        cause, depth = why(model)
        assert cause == "refused"
        assert depth < 120


def test_text_cached_without_the_adapter_is_reported_as_other() -> None:
    with fake_model() as model:
        prompt = some_ids(1, 30)
        model.cache_kv(prompt)
        engine = engine_of(model)

        def under_an_adapter(ids: Int32, length: int) -> tuple[str, int]:
            cache: PrefixCache = engine.scheduler.cache
            prefill = cache.place(QueryJob(ids, "an adapter"), length)
            cache.leave(prefill)
            report = cache.report()
            return report.last_cause, report.last_prefix

        ids = np.array(prompt, np.int32)
        assert engine.call(lambda: under_an_adapter(ids, 29)).result() == ("other", 0)
        assert engine.call(lambda: under_an_adapter(ids[::-1].copy(), 29)).result() == ("new", 0)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "name"), [("fake", "recurrent"), ("hf", "mamba"), ("mlx", "falcon_h1")])
def test_a_missing_checkpoint_of_a_recurrent_model_is_reported(backend: str, name: str) -> None:
    source = (Behaviour(recurrent=True), None) if backend == "fake" else tiny_path(name)
    with load(source, backend=backend) as model:
        prompt = some_ids(1, 40)
        model.cache_kv(prompt)
        drop_packs(model)
        ask(model, [*prompt[:25], *some_ids(2, 10)])
        assert why(model) == ("checkpoint", 0)
        assert "25 of 35 tokens are held" in model.cache_report().last_reason
        # while after the checkpoint the text is new
        ask(model, [*prompt, *some_ids(3, 10)])
        assert why(model) == ("new", 40)


def test_missing_scores_are_reported() -> None:
    with fake_model() as model:
        prompt = some_ids(1, 30)
        model.cache_kv(prompt)
        asyncio.run(model.score(prompt))
        assert why(model) == ("scores", 0)
        asyncio.run(model.score(prompt, top_k=20))
        assert why(model) == ("scores", 0)


def test_a_model_without_a_cache_reports_it_as_off() -> None:
    with fake_model(cache=False) as model:
        ask(model, some_ids(1, 30))
        assert why(model) == ("off", 0)


def test_an_edge_counts_the_requests_that_pass_it() -> None:
    with fake_model() as model:
        stem = some_ids(1, 20)
        model.cache_kv(stem)
        for token in range(5):
            model.next_token_logprobs_sync([*stem, token])
        report = settled(model)[1]
        trunk = next(edge for edge in report.largest if edge.tokens == 20)
        assert trunk.hits == 5
        ages = [edge.age for edge in report.largest]
        assert trunk.age == min(ages) < max(ages)  # an edge is as young as the youngest below it
        assert report.hits == 5
        assert report.misses >= 1
        spare = engine_of(model).backend.growth * engine_of(model).backend.slot_bytes
        assert report.working_bytes <= spare  # the trie refers to the slots of the pack
        assert report.vector_bytes == 6 * 4 * model.info.vocab_size
