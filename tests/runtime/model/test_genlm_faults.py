"""Faults of genlm-backend that must not occur here: each provoked on a toy and on real architectures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from runtime import load
from tests.fakes import engine_of, fake_model, settled, some_ids
from tests.runtime.model.trouble import Case, audit, troubled
from tests.tiny_models import tiny_path

CASES = (("fake", "attention"), ("fake", "recurrent"), ("hf", "llama"), ("hf", "gemma3"), ("mlx", "llama"), ("mlx", "lfm2"))


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    with troubled(*request.param, threads=1) as made:
        yield made
        audit(made.model)


@pytest.fixture(autouse=True)
def fresh(request: pytest.FixtureRequest) -> None:
    if "case" in request.fixturenames:
        request.getfixturevalue("case").model.clear_cache()


@pytest.mark.slow
def test_the_same_suffix_after_different_prefixes_gives_different_rows(case: Case) -> None:
    # given prefixes that are cached, when the same suffix follows each of them, and none, in one batch
    prefixes = [case.ids(seed, 7 + seed) for seed in range(4)]
    suffix = case.ids(9, 5)
    for prefix in prefixes:
        case.model.cache_kv(prefix)
    texts = [*([*prefix, *suffix] for prefix in prefixes), suffix]
    # then every row belongs to its own text
    for row, text in zip(case.model.batch_next_token_logprobs_sync(texts), texts, strict=True):
        case.check(row, text)
    rows = case.model.batch_next_token_logprobs_sync(texts)
    assert len({row.tobytes() for row in rows}) == len(texts)


@pytest.mark.slow
def test_synchronous_calls_on_partly_cached_texts_are_right(case: Case) -> None:
    # given a cached text and, deeper, one that was queried
    stem = case.ids(1, 12)
    case.model.cache_kv(stem)
    case.model.next_token_logprobs_sync([*stem, 3, 4])
    for text in ([*stem, 3, 4, 5], [*stem, 3, 9], [*stem, 8], stem, stem[:5], [*stem[:5], 1]):
        case.check(case.model.next_token_logprobs_sync(text), text)
        np.testing.assert_allclose(
            case.model.next_token_logprobs_sync(text), case.model.next_token_logprobs_uncached(text), atol=1e-4
        )


def test_writing_into_an_answer_does_not_change_the_cached_one(case: Case) -> None:
    text = case.ids(2, 9)
    first = case.model.next_token_logprobs_sync(text)
    kept = first.copy()
    first[:] = 0  # the caller may write into its answer
    for _ in range(3):
        assert np.array_equal(case.model.next_token_logprobs_sync(text), kept)
    # after a clear it is computed again
    before = case.model.metrics().tokens_computed
    case.model.clear_cache()
    case.check(case.model.next_token_logprobs_sync(text), text)
    assert case.model.metrics().tokens_computed - before == 9


@pytest.mark.slow
def test_no_request_hangs_after_a_failed_batch(case: Case) -> None:
    texts = [case.ids(seed, 5) for seed in range(6)]
    case.faults.raise_on = {case.guilty: ZeroDivisionError("broken kernel")}

    async def main() -> list[Any]:
        asked = [*texts, [*texts[0], case.guilty], [*texts[0], case.guilty], texts[2]]
        return list(
            await asyncio.wait_for(
                asyncio.gather(*(case.model.next_token_logprobs(t) for t in asked), return_exceptions=True), 60
            )
        )

    got = asyncio.run(main())
    assert [type(one) for one in got[6:8]] == [ZeroDivisionError] * 2
    for one, text in zip([*got[:6], got[8]], [*texts, texts[2]], strict=True):
        case.check(one, text)
    case.faults.raise_on = {}


@pytest.mark.slow
def test_a_cancelled_query_does_not_affect_the_others_of_its_batch(case: Case) -> None:
    texts = [case.ids(seed, 6) for seed in range(5)]

    async def main() -> list[Any]:
        tasks = [asyncio.ensure_future(case.model.next_token_logprobs(t)) for t in (*texts, texts[0])]
        await asyncio.sleep(0)  # all of them are in one batch
        tasks[0].cancel()
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    got = asyncio.run(main())
    assert isinstance(got[0], asyncio.CancelledError)
    for one, text in zip(got[1:], [*texts[1:], texts[0]], strict=True):  # also the one with the same text
        case.check(one, text)


def test_a_reset_cancels_waiting_queries_and_the_next_ones_are_answered(case: Case) -> None:
    texts = [case.ids(seed, 30) for seed in range(4)]

    async def main() -> None:
        tasks = [asyncio.ensure_future(case.model.next_token_logprobs(t)) for t in texts]
        await asyncio.sleep(0)
        await case.model.reset_async_queries_async()
        for text, one in zip(texts, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
            if not isinstance(one, asyncio.CancelledError):  # it was faster
                case.check(one, text)
        for text in texts:
            case.check(await asyncio.wait_for(case.model.next_token_logprobs(text), 60), text)

    asyncio.run(main())


@pytest.mark.slow
def test_a_text_split_at_every_token_causes_no_recursion_error() -> None:
    # given a text that is split at every token, past the depth at which genlm's trie ends in a RecursionError
    text = some_ids(1, 1100)
    with fake_model() as model:
        model.cache_kv(text)
        path = np.array(text, np.int32)

        def cut() -> None:
            for n in range(1, len(path)):
                engine_of(model).scheduler.cache.trie.lookup([(model.info.kv_fingerprint, path[:n])]).release()

        engine_of(model).call(cut).result()
        assert settled(model)[1].edges == 1100
        # when it is matched, continued, scored and cleared
        assert model.prefix_match(text).tokens == 1100
        model.next_token_logprobs_sync([*text[:1050], 7])
        assert len(asyncio.run(model.score(text[:1020]))) == 1020
        assert len(asyncio.run(model.sample([*text, 3], 20, []))) == 20
        model.clear_kv_cache()
        assert model.prefix_match(text).tokens == 0


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_sampling_neither_reads_nor_moves_a_global_seed(backend: str) -> None:
    import mlx.core as mx
    import torch

    def states() -> list[bytes]:
        return [
            repr(random.getstate()).encode(),
            repr(np.random.get_state()).encode(),
            torch.random.get_rng_state().numpy().tobytes(),
            repr(mx.random.state).encode(),
        ]

    def reseed(seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed)  # the global generator is under test
        torch.manual_seed(seed)
        mx.random.seed(seed)

    prompt = some_ids(1, 6)
    with load(tiny_path("llama"), backend=backend) as model:
        reseed(1)
        before = states()
        first = asyncio.run(model.batch_sample([prompt, prompt], 12, [], seed=7))
        asyncio.run(model.sample(prompt, 12, []))
        assert states() == before
        reseed(2)
        assert asyncio.run(model.batch_sample([prompt, prompt], 12, [], seed=7)) == first
        assert first[0] == first[1]
        # and without a seed in the call, the global one fixes nothing
        drawn = []
        for _ in range(2):
            reseed(3)
            drawn.append(asyncio.run(model.sample(prompt, 12, [])))
        assert drawn[0] != drawn[1]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_a_batch_in_16_bits_stays_in_16_bits(backend: str) -> None:
    # given a bfloat16 model and a batch that mixes long cached prefixes, short ones and none
    with load(tiny_path("llama"), backend=backend, dtype="bfloat16") as model:
        stem = some_ids(1, 50)
        texts = [[*stem, 7], [*stem[:9], 8, 9], some_ids(2, 4), [11]]
        alone = [model.next_token_logprobs_sync(text) for text in texts]
        model.clear_cache()
        model.cache_kv(stem)
        rows = model.batch_next_token_logprobs_sync(texts)
        asyncio.run(model.batch_sample(texts, 70, []))

        # then nothing was promoted: every segment has two bytes a number, and the rows are those of single runs
        def look() -> set[str]:
            cache = engine_of(model).scheduler.cache
            nodes = list(cache.trie.nodes())
            assert len(nodes) > 4
            for node in nodes:
                assert cache.kv_budget.payloads.weigh(node.payload).nbytes == len(node.tokens) * model.info.kv_bytes_per_token
            layers = [layer for workspace in cache.workspaces.open for layer in workspace.pack.attention]
            return {str(array.dtype) for layer in layers for array in (layer.keys, layer.values)}

        assert {name.rpartition(".")[2] for name in engine_of(model).call(look).result()} == {"bfloat16"}
        assert rows.dtype == np.float32
        for row, one in zip(rows, alone, strict=True):
            np.testing.assert_allclose(row, one, atol=0.15)  # its own rounding
            assert abs(float(np.exp(row.astype(np.float64)).sum()) - 1) < 1e-5
