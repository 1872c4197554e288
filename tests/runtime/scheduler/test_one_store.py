"""Keys are held once: the trie refers to the slots of packs, which are freed, moved and reused under it."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from runtime import LanguageModel, load
from runtime.errors import MemoryBudgetError
from tests.fakes import assert_right, engine_of, fake_model, settled, some_ids
from tests.tiny_models import tiny_path

TOKEN = 2 * 16 * 8  # bytes of one token's KV in the fake model


def said(model: LanguageModel, ids: list[int], count: int) -> list[int]:
    return [int(token) for token in asyncio.run(model.sample(ids, count, [], temperature=0.0))]


def packs(model: LanguageModel) -> int:
    return engine_of(model).call(lambda: len(engine_of(model).scheduler.cache.workspaces.open)).result()


@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_the_kv_of_a_chat_is_held_once(backend: str) -> None:
    # given a chat of several turns
    ids = some_ids(1, 120)
    with load(tiny_path("llama"), backend=backend) as model:
        for turn in range(4):
            ids = [*ids, *some_ids(turn + 2, 10)]
            ids += said(model, ids, 10)
        metrics = settled(model)[0]
        row = model.info.kv_bytes_per_token
        # then it takes its own bytes and the spare room of its buffers, also while these grow (two layers: a quarter)
        assert metrics.kv_bytes <= 1.2 * len(ids) * row
        assert metrics.kv_peak_bytes <= 1.5 * len(ids) * row


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_a_turn_of_a_chat_that_fills_the_budget_computes_its_own_tokens(backend: str) -> None:
    ids = some_ids(1, 400)
    with load(tiny_path("llama"), backend=backend) as model:
        model.set_kv_budget(int(1.2 * 460 * model.info.kv_bytes_per_token))
        said(model, ids, 1)
        before = settled(model)[0].tokens_computed
        said(model, [*ids, *some_ids(2, 30)], 30)
        assert settled(model)[0].tokens_computed - before == 30 + 29
        metrics = settled(model)[0]
        assert metrics.kv_peak_bytes <= metrics.kv_budget


def test_the_end_of_an_old_text_is_evicted_before_its_beginning() -> None:
    with fake_model(kv_cache_bytes=300 * TOKEN) as model:
        model.cache_kv(some_ids(1, 200))
        model.cache_kv(some_ids(2, 120))
        kept = model.prefix_match(some_ids(1, 200)).tokens
        assert 0 < kept < 200
        assert model.prefix_match(some_ids(2, 120)).tokens == 120
        assert_right(model.next_token_logprobs_sync([*some_ids(1, 200), 7]), [*some_ids(1, 200), 7])


def test_a_path_that_grows_by_tokens_lengthens_its_edge() -> None:
    ids = some_ids(1, 200)
    with fake_model() as model:
        for end in range(20, 200):
            assert_right(model.next_token_logprobs_sync(ids[:end]), ids[:end])
        report = settled(model)[1]
        assert report.tokens == 199
        assert report.edges == 1
        # and a path that branches in the middle splits it
        assert_right(model.next_token_logprobs_sync([*ids[:50], 3]), [*ids[:50], 3])
        assert settled(model)[1].edges == 3


def test_packs_are_freed_with_their_last_edge() -> None:
    with fake_model(kv_cache_bytes=200 * TOKEN) as model:
        for seed in range(30):
            model.cache_kv(some_ids(seed, 40))
            assert settled(model)[0].kv_bytes <= 200 * TOKEN
        assert 1 <= packs(model) <= 5
        model.clear_cache()
        model.cache_kv(some_ids(50, 5))
        assert packs(model) == 1


@pytest.mark.slow
def test_slots_are_moved_and_renumbered_without_changing_an_answer() -> None:
    # given a stem with many branches and little memory, so that some of a pack's slots are evicted again and again
    stem = some_ids(1, 60)
    rng = np.random.default_rng(0)
    with fake_model(kv_cache_bytes=260 * TOKEN) as model:
        for turn in range(120):
            ids = [*stem[: int(rng.integers(20, 61))], *some_ids(int(rng.integers(0, 25)), int(rng.integers(5, 30)))]
            assert_right(model.next_token_logprobs_sync(ids), ids)
            if turn % 10 == 9:
                said(model, ids, 20)
        metrics, report = settled(model)
        assert report.leases == 0
        assert metrics.kv_peak_bytes <= metrics.kv_budget
        # and no slot number outlives its slot: the recorded paths stay as small as the KV held
        remembered = engine_of(model).call(
            lambda: sum(len(workspace.paths.parents) for workspace in engine_of(model).scheduler.cache.workspaces.open)
        )
        assert remembered.result() <= 2 * 260


def test_branches_that_crowd_a_pack_continue_in_new_packs_with_the_common_stem() -> None:
    # given many branches of one stem, more than should share a pack
    stem = some_ids(1, 50)
    with fake_model() as model:
        engine_of(model).scheduler.cache.workspaces.crowd = 64
        for n in range(120):
            ids = [*stem, n, *some_ids(n, 4)]
            assert_right(model.next_token_logprobs_sync(ids), ids)
        # then they are in a few packs, nothing was computed twice, and an old branch is found
        assert 2 <= packs(model) <= 6
        before = settled(model)[0].tokens_computed
        assert before == 50 + 120 * 5
        ids = [*stem, 3, *some_ids(3, 4), 9]
        assert_right(model.next_token_logprobs_sync(ids), ids)
        assert settled(model)[0].tokens_computed == before + 1


def held(model: LanguageModel) -> int:
    """Slots that are in use in all packs."""
    return engine_of(model).call(lambda: sum(pack.held for pack in engine_of(model).scheduler.cache.workspaces.open)).result()


def answered(model: LanguageModel, ids: list[int], count: int, seed: int) -> list[int]:
    return [int(token) for token in asyncio.run(model.sample(ids, count, [], temperature=1.0, seed=seed))]


@pytest.mark.parametrize("backend", ["hf", "mlx"])
@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3"])
def test_earlier_answers_are_moved_out_of_the_pack_and_can_be_continued(kind: str, backend: str) -> None:
    # given several answers to one prompt
    prompt = some_ids(1, 30)
    with load(tiny_path(kind), backend=backend) as model, load(tiny_path(kind), backend=backend, cache=False) as fresh:
        answers = [answered(model, prompt, 40, seed) for seed in range(4)]
        # then the pack holds the path of the last one alone
        assert held(model) == 30 + 39
        # and all are still cached: no token is computed twice, whichever is continued
        for answer in (answers[1], answers[3], answers[0]):
            before = settled(model)[0].tokens_computed
            ids = [*prompt, *answer, 5]
            np.testing.assert_allclose(
                model.next_token_logprobs_sync(ids), fresh.next_token_logprobs_sync(ids), atol=3e-5, rtol=1e-5
            )
            assert settled(model)[0].tokens_computed - before == 2  # the last token drawn was never computed
        # and an answer that continues one of them leaves the others behind again
        more = answered(model, [*prompt, *answers[2], 7], 30, 9)
        assert held(model) == 30 + 40 + 1 + 29
        ids = [*prompt, *answers[2], 7, *more]
        np.testing.assert_allclose(
            model.next_token_logprobs_sync(ids), fresh.next_token_logprobs_sync(ids), atol=3e-5, rtol=1e-5
        )


def test_simultaneous_answers_share_a_pack_without_earlier_answers() -> None:
    prompt = some_ids(1, 30)
    with fake_model() as model:
        for seed in range(12):
            answered(model, prompt, 8, seed)  # too short to be worth moving out
        assert held(model) >= 30 + 60

        async def at_once() -> list[list[int]]:
            calls = (model.sample(prompt, 40, [], temperature=1.0, seed=seed) for seed in (10, 11))
            return [[int(token) for token in answer] for answer in await asyncio.gather(*calls)]

        answers = asyncio.run(at_once())
        assert held(model) <= 30 + 2 * 39
        for answer in answers:
            before = settled(model)[0].tokens_computed
            ids = [*prompt, *answer[:-1]]
            assert_right(model.next_token_logprobs_sync(ids), ids)
            assert settled(model)[0].tokens_computed - before <= 1


def test_the_same_answer_again_leaves_no_slots_behind() -> None:
    prompt = some_ids(1, 30)
    with fake_model() as model:
        answers = [answered(model, prompt, 40, seed) for seed in (1, 2, 1, 1, 1)]
        assert answers[4] == answers[0]
        assert held(model) == 30 + 39
        assert settled(model)[1].tokens <= 30 + 2 * 39
        # and a continuation finds it there, with no second copy
        answered(model, [*prompt, *answers[4], 7], 20, 3)
        assert held(model) == 30 + 40 + 1 + 19


@pytest.mark.slow
def test_after_many_answers_the_newest_is_still_copied_out() -> None:
    prompt = some_ids(1, 30)
    with fake_model() as model:
        for seed in range(1100):  # more edges than are looked through at a time
            answered(model, [*prompt, seed % 200, 1 + seed // 200], 10, seed)
        assert held(model) == 32 + 9


def test_with_little_memory_no_kv_is_evicted_to_copy_an_answer_out() -> None:
    # given room for both answers, but not to copy one whose edge was split in two
    prompt = some_ids(1, 20)
    with fake_model(kv_cache_bytes=(20 + 3 * 40) * TOKEN) as model:
        texts = [[*prompt, *answered(model, prompt, 40, seed)[:-1]] for seed in range(2)]
        assert texts[0][20] == texts[1][20]  # they diverge within the edge of the first answer
        assert [model.prefix_match(text).tokens for text in texts] == [59, 59]
        metrics = settled(model)[0]
        assert metrics.kv_peak_bytes <= metrics.kv_budget


@pytest.mark.slow
@pytest.mark.parametrize("room", [400, 2000, 20000])
def test_answers_that_branch_anywhere_are_right_and_within_the_budget(room: int) -> None:
    # given answers that continue earlier ones from random places, one or two at a time
    rng = np.random.default_rng(room)
    texts = [some_ids(1, 40)]
    with fake_model(kv_cache_bytes=room * TOKEN) as model:

        async def go_on(starts: list[list[int]], count: int, seed: int) -> list[list[int]]:
            calls = (model.sample(ids, count, [], temperature=1.0, seed=seed + i) for i, ids in enumerate(starts))
            return [[int(token) for token in answer] for answer in await asyncio.gather(*calls)]

        for turn in range(60):
            chosen = [texts[int(rng.integers(len(texts)))] for _ in range(int(rng.integers(1, 3)))]
            starts = [ids[: int(rng.integers(1, len(ids) + 1))][:200] for ids in chosen]
            answers = asyncio.run(go_on(starts, int(rng.integers(5, 60)), turn))
            texts += [[*ids, *answer] for ids, answer in zip(starts, answers, strict=True)]
            for ids in (texts[-1], texts[int(rng.integers(len(texts)))]):
                ids = ids[:100]
                assert_right(model.next_token_logprobs_sync(ids), ids)
            metrics, report = settled(model)
            assert report.leases == 0
            assert metrics.kv_peak_bytes <= metrics.kv_budget
        if room == 20000:  # and where nothing has to be evicted everything is cached, except the token drawn last
            assert all(model.prefix_match(text[:-1]).tokens == len(text) - 1 for text in texts)


def test_a_new_branch_in_a_full_pack_evicts_only_a_few_old_ones() -> None:
    # given branches of one stem that fill the budget
    stem = some_ids(1, 100)
    with fake_model(kv_cache_bytes=400 * TOKEN) as model:
        for n in range(40):
            ids = [*stem, n, *some_ids(n + 10, 19)]
            assert_right(model.next_token_logprobs_sync(ids), ids)
            if n > 15:  # then little more is evicted than needed
                assert settled(model)[1].tokens >= 300
        metrics = settled(model)[0]
        assert metrics.kv_peak_bytes <= metrics.kv_budget
        assert metrics.tokens_computed == 100 + 40 * 20


def test_a_small_request_beside_a_large_old_text_leaves_most_of_it() -> None:
    # given a text that takes most of the budget, and small ones that take the rest
    with fake_model(kv_cache_bytes=800 * TOKEN) as model:
        model.cache_kv(some_ids(1, 600))
        for n in range(20):
            ids = some_ids(n + 2, 15)
            assert_right(model.next_token_logprobs_sync(ids), ids)
        assert model.prefix_match(some_ids(1, 600)).tokens >= 400


def test_a_device_that_is_full_while_packs_are_compacted_does_not_break_later_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    stem = some_ids(1, 40)
    with fake_model(kv_cache_bytes=300 * TOKEN) as model:
        backend = engine_of(model).backend

        def full(*_: object) -> None:
            raise MemoryBudgetError("out of memory")

        monkeypatch.setattr(backend, "retain", full)
        for n in range(40):
            ids = [*stem[: 10 + n % 30], *some_ids(n + 2, 20)]
            try:
                assert_right(model.next_token_logprobs_sync(ids), ids)
            except MemoryBudgetError:
                continue  # refused alone
        monkeypatch.undo()
        assert_right(model.next_token_logprobs_sync(stem), stem)
        assert settled(model)[1].leases == 0
