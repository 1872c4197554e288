"""Progress of a prompt: reported to its caller after each chunk, before the first token or the answer."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from runtime import LanguageModel
from runtime.info import PromptProgress
from runtime.options.generation import GenerationOptions
from tests.fakes import fake_model, some_ids

CHUNK = 64
OPTIONS = GenerationOptions(max_tokens=3, seed=1)


async def generated(model: LanguageModel, ids: list[int]) -> list[PromptProgress | int]:
    heard: list[PromptProgress | int] = []
    async for record in model.generate(ids, OPTIONS, on_progress=heard.append):
        heard.append(record.token_id)  # noqa: PERF401  # the callback appends in between
    return heard


def check(told: list[PromptProgress], total: int, *, reused: int) -> None:
    assert [p.total for p in told] == [total] * len(told)
    assert [p.done for p in told] == sorted(p.done for p in told)
    assert all(p.done == (p.reused or 0) + (p.computed or 0) for p in told)
    assert told[-1] == PromptProgress(total, total, reused, total - reused)


def test_a_long_prompt_reports_progress_after_each_chunk_and_before_the_first_token() -> None:
    with fake_model(prefill_chunk_tokens=CHUNK) as model:
        heard = asyncio.run(generated(model, some_ids(1, 400)))
        told = [item for item in heard if isinstance(item, PromptProgress)]
        check(told, 400, reused=0)
        assert len(told) >= 400 // CHUNK
        assert heard[: len(told)] == told
        assert len(heard) == len(told) + 3


@pytest.mark.parametrize("new", [0, 1, 100])
def test_cached_tokens_count_as_reused(new: int) -> None:
    with fake_model(prefill_chunk_tokens=CHUNK) as model:
        model.cache_kv(some_ids(1, 400))
        heard = asyncio.run(generated(model, [*some_ids(1, 400), *some_ids(2, new)]))
        told = [item for item in heard if isinstance(item, PromptProgress)]
        check(told, 400 + new, reused=400)
        assert told[0].done == 400


def test_simultaneous_requests_each_report_their_own_progress() -> None:
    with fake_model(prefill_chunk_tokens=CHUNK) as model:
        stem = some_ids(1, 100)
        model.cache_kv(stem)

        async def both() -> list[list[PromptProgress | int]]:
            prompts = [*stem, *some_ids(2, 30)], some_ids(3, 70)
            return list(await asyncio.gather(*(generated(model, ids) for ids in prompts)))

        one, other = asyncio.run(both())
        check([p for p in one if isinstance(p, PromptProgress)], 130, reused=100)
        check([p for p in other if isinstance(p, PromptProgress)], 70, reused=0)


def test_a_score_reports_progress_and_only_once_when_everything_is_cached() -> None:
    with fake_model(prefill_chunk_tokens=CHUNK) as model:
        told: list[PromptProgress] = []

        async def score() -> None:
            await model.score(some_ids(1, 300), on_progress=told.append)

        asyncio.run(score())
        check(told, 300, reused=0)
        told.clear()
        asyncio.run(score())
        assert told == [PromptProgress(300, 300, 300, 0)]


def test_a_synchronous_call_reports_progress_before_its_first_token() -> None:
    with fake_model(prefill_chunk_tokens=CHUNK) as model:
        heard: list[PromptProgress | int] = []
        for record in model.generate_sync(some_ids(1, 200), OPTIONS, on_progress=heard.append):
            heard.append(record.token_id)  # noqa: PERF401  # the callback appends in between
        told = [item for item in heard if isinstance(item, PromptProgress)]
        check(told, 200, reused=0)
        assert heard[: len(told)] == told


def test_the_callback_and_the_answer_of_a_request_are_freed_with_it() -> None:
    # given the callback of a synchronous call, and no cycle collector
    with fake_model() as model:
        heard: list[PromptProgress] = []

        def hear(progress: PromptProgress) -> None:
            heard.append(progress)

        gc.disable()
        try:
            model.score_sync(list(range(1, 9)), on_progress=hear)
            known = weakref.ref(hear)
            del hear
            given = weakref.ref(model.batch_next_token_logprobs_sync([[1, 2], [1, 3]]))
            # when the owner thread is idle
            model.prefix_match([1])
            # then nothing refers to it any more, or to the answer to another request
            assert heard
            assert (known(), given()) == (None, None)
        finally:
            gc.enable()
