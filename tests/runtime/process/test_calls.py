from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest

from runtime import (
    ContextOverflowError,
    EngineDiedError,
    GenerationOptions,
    GrammarError,
    InvalidRequestError,
    LanguageModel,
    PrefixMatch,
    Priority,
    PromptProgress,
    RuntimeFault,
    SamplingOptions,
)
from runtime.records import Float32
from runtime.transport.methods import LARGE
from tests.runtime.process.conftest import command, eventually, spawn_fake, state_of
from tests.runtime.process.fake_answers import EOS, VOCAB, logprobs_of


def test_vocabulary_eos_and_template_are_available_without_a_call(client: LanguageModel) -> None:
    assert client.byte_vocab == VOCAB
    assert client.str_vocab[-2:] == ["\ufffd", "\ud800"]
    assert client.eos_token_ids == (EOS,)
    assert client.chat_template == "{{ messages }}"
    assert client.is_eos(EOS)
    assert not client.is_eos(0)
    assert client.decode_token(26) == b"\xff"
    for outside in (-1, len(VOCAB)):
        with pytest.raises(InvalidRequestError, match=f"{outside} is outside the vocabulary of 28"):
            client.decode_token(outside)


def test_every_awaited_member_answers(client: LanguageModel) -> None:
    async def scenario() -> None:
        np.testing.assert_array_equal(await client.next_token_logprobs([1, 2]), logprobs_of([1, 2]))
        np.testing.assert_array_equal(
            await client.batch_next_token_logprobs([[1], [2, 3]]), np.stack([logprobs_of([1]), logprobs_of([2, 3])])
        )
        np.testing.assert_array_equal(await client.next_token_logprobs_uncached_async([4]), logprobs_of([4]))
        assert await client.prefix_match_async([1, 2, 3, 4]) == PrefixMatch(2, "warm")
        assert await client.score([1, 2, 3], 3, 1) == list(await client.score_run([1, 2, 3], 3, 1))
        assert [record.token_id for record in await client.score([1, 2, 3], top_k=3, start=1)] == [2, 3]
        assert await client.sample([1, 2], 5, [27], 0.5, 9) == [2, 5, 5, 9]
        assert await client.batch_sample([[1], [1, 2]], 5, [27], seed=3) == [[1, 5, 10, 3], [2, 5, 10, 3]]
        assert await client.complete([{"role": "user", "content": "hi"}], seed=3) == "eakd"
        assert await client.tokenize_async("abc") == [0, 1, 2]
        assert await client.detokenize_async([0, 27]) == "aé"
        assert await client.render_chat_async(
            [{"role": "user", "content": "abc"}], tools=[{}], add_generation_prompt=False
        ) == [1, 1, 0, 3]
        await client.cache_kv_async([1, 2])
        await client.clear_cache_async()
        await client.clear_kv_cache_async()
        await client.reset_async_queries_async()
        await client.set_kv_budget_async(1 << 20)
        assert client.info.options == {"kv_cache_bytes": 1 << 20}

    asyncio.run(scenario())


def test_every_blocking_member_answers_also_inside_a_running_loop(client: LanguageModel) -> None:
    def scenario() -> None:
        np.testing.assert_array_equal(client.next_token_logprobs_sync([1, 2]), logprobs_of([1, 2]))
        np.testing.assert_array_equal(client.batch_next_token_logprobs_sync([[1]]), logprobs_of([1])[None])
        np.testing.assert_array_equal(client.next_token_logprobs_uncached([4]), logprobs_of([4]))
        assert client.prefix_match([1, 2, 3, 4]) == PrefixMatch(2, "warm")
        assert client.tokenize("abc") == [0, 1, 2]
        assert client.detokenize([0, 27]) == "aé"
        assert client.render_chat([{"role": "user", "content": "abc"}]) == [1, 0, 1, 3]
        assert [r.token_id for r in client.generate_sync([0], GenerationOptions(max_tokens=3))] == [0, 1, 2]
        assert [r.token_id for r in client.score_sync([1, 2, 3], 3, 1)] == [2, 3]
        assert client.complete_sync([{"role": "user", "content": "hi"}], max_tokens=2, seed=3) == "eckd"
        client.cache_kv([1, 2])
        client.clear_kv_cache()
        client.clear_cache()
        client.reset_async_queries()
        client.set_kv_budget(1 << 21)
        assert client.info.options == {"kv_cache_bytes": 1 << 21}

    async def inside() -> None:
        scenario()

    scenario()
    asyncio.run(inside())


def test_a_thousand_calls_at_once_are_one_batch(client: LanguageModel) -> None:
    async def scenario() -> None:
        prompts = [[i % 28, i // 28 % 28] for i in range(1000)]
        answers = await asyncio.gather(*(client.next_token_logprobs(ids) for ids in prompts))
        np.testing.assert_array_equal(answers, [logprobs_of(ids) for ids in prompts])
        assert max((await state_of(client))["turns"]) == 1000

    asyncio.run(scenario())


def test_a_large_answer_arrives_complete_and_one_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    width, batch = 100_000, [[i] for i in range(12)]

    async def scenario() -> None:
        async with await spawn_fake("vocabulary", context_length=width) as client:
            got = await client.batch_next_token_logprobs(batch)
            assert got.nbytes > 2 * LARGE
            assert (got.flags.writeable, got.flags.aligned) == (True, True)
            np.testing.assert_array_equal(got, np.stack([logprobs_of(ids, width) for ids in batch]))
            # and an answer larger than the pipe's limit is not accepted
            monkeypatch.setattr("runtime.transport.link.MAX_PAYLOAD", LARGE)
            with pytest.raises(EngineDiedError, match=f"unreadable .an answer of more than {LARGE:,} bytes"):
                await client.batch_next_token_logprobs(batch)

    asyncio.run(scenario())


def test_ids_may_be_numpy(client: LanguageModel) -> None:
    np.testing.assert_array_equal(client.next_token_logprobs_sync(np.array([1, 2])), logprobs_of([1, 2]))  # type: ignore[arg-type]  # what callers do
    np.testing.assert_array_equal(client.next_token_logprobs_sync(list(np.array([1, 2]))), logprobs_of([1, 2]))


def test_a_score_request_carries_its_priority(client: LanguageModel) -> None:
    async def scenario() -> None:
        await client.score([1, 2])
        await client.score_run([1, 2], priority=Priority.BACKGROUND)
        await client.score([1, 2], priority=Priority.CHAT)
        assert (await state_of(client))["priorities"][-3:] == [1, 2, 0]
        with pytest.raises(InvalidRequestError, match=r"unknown priority 7: use one of Priority\.CHAT"):
            await client.score([1, 2], priority=7)  # type: ignore[arg-type]  # the mistake

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([1, 2.5], "place 1 stands 2.5"),
        (["a"], "place 0 stands 'a'"),
        (np.zeros((2, 2)), "of shape"),
        ([1 << 70], f"stands {1 << 70}"),
        ([-1 << 70], f"stands {-1 << 70}"),
        ([1 << 63], "outside the vocabulary"),
        ([1, True], "place 1 stands True"),
        (7, "flat sequence, not 7"),
        ([99], "99 at position 0 is outside the vocabulary"),
    ],
)
def test_invalid_token_ids_are_invalid_requests(client: LanguageModel, ids: Any, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        asyncio.run(client.next_token_logprobs(ids))
    with pytest.raises(InvalidRequestError, match=reason):
        client.next_token_logprobs_sync(ids)


def test_options_of_a_wrong_type_are_invalid_requests(client: LanguageModel) -> None:
    options = GenerationOptions(sampling=SamplingOptions(temperature="hot"))  # type: ignore[arg-type]  # the mistake
    with pytest.raises(InvalidRequestError, match="temperature"):
        list(client.generate_sync([0], options))


def test_lone_surrogates_are_replaced_before_sending(client: LanguageModel) -> None:
    assert client.tokenize("a\ud800") == [0, 0xFFFD - 97]
    assert asyncio.run(command(client, "repeat x\ud800")) == "x\ufffd"


def test_messages_that_are_not_mappings_are_invalid_requests(client: LanguageModel) -> None:
    with pytest.raises(InvalidRequestError, match="message 1 is a mapping"):
        client.render_chat([{"content": ""}, "hello"])  # type: ignore[list-item]  # the mistake


def test_errors_keep_their_type_attributes_and_notes_over_the_pipe(client: LanguageModel) -> None:
    with pytest.raises(ContextOverflowError) as caught:
        client.next_token_logprobs_sync([1] * 1001)
    assert (caught.value.stage, caught.value.additional, caught.value.limit) == ("prompt", 1001, 1000)
    with pytest.raises(GrammarError, match="allows nothing") as noted:
        asyncio.run(command(client, 'raise GrammarError ["allows nothing"]'))
    assert noted.value.__notes__ == ["a note"]


@pytest.mark.parametrize("kind", ["KeyError", "Panic"])
def test_a_bug_in_the_engine_fails_only_the_call(client: LanguageModel, kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeFault, match=f"failed with _?{kind}"):
        asyncio.run(command(client, f'raise {kind} ["x"]'))
    assert client.tokenize("a") == [0]
    capfd.readouterr()  # the traceback in the engine's log


def test_a_failing_call_does_not_affect_concurrent_calls(client: LanguageModel) -> None:
    async def scenario() -> None:
        calls = [client.next_token_logprobs([99 if i == 5 else i]) for i in range(10)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [i for i, answer in enumerate(answers) if isinstance(answer, InvalidRequestError)] == [5]

    asyncio.run(scenario())


def test_two_loops_in_two_threads_each_get_their_answers(client: LanguageModel) -> None:
    wrong: list[BaseException] = []

    async def many(first: int) -> None:
        for i in range(50):
            ids = [first, i % 28]
            rows = await asyncio.gather(*(client.next_token_logprobs([*ids, j]) for j in range(5)))
            np.testing.assert_array_equal(rows, [logprobs_of([*ids, j]) for j in range(5)])

    def run(first: int) -> None:
        try:
            asyncio.run(many(first))
        except BaseException as error:  # noqa: BLE001  # carried to the test's thread
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_closed_event_loops_are_released(client: LanguageModel) -> None:
    loops = WeakSet[asyncio.AbstractEventLoop]()

    async def asked(token: int) -> Float32:
        loops.add(asyncio.get_running_loop())
        return await client.next_token_logprobs([token])

    for i in range(20):
        np.testing.assert_array_equal(asyncio.run(asked(i)), logprobs_of([i]))
    gc.collect()
    assert len(loops) <= 2  # the last loop and its predecessor


@pytest.mark.slow
def test_a_cancelled_call_is_cancelled_in_the_engine() -> None:
    async def scenario() -> None:
        async with await spawn_fake() as client:
            await command(client, "hold")
            waiting = [asyncio.create_task(client.next_token_logprobs([i])) for i in range(3)]

            async def all_wait() -> bool:
                return bool(sum((await state_of(client))["turns"]) == 3)

            await eventually(all_wait)
            waiting[1].cancel()

            async def one_is_cancelled() -> bool:
                return int((await state_of(client))["cancelled"]) == 1

            await eventually(one_is_cancelled)
            assert [task.done() for task in waiting] == [False, True, False]
            await client.reset_async_queries_async()  # raises CancelledError in the queries that still wait
            assert all(isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*waiting, return_exceptions=True))
            np.testing.assert_array_equal(await client.next_token_logprobs([1]), logprobs_of([1]))

    asyncio.run(scenario())


def test_a_call_cancelled_before_it_is_sent_is_never_sent(client: LanguageModel) -> None:
    async def scenario() -> None:
        before = client.metrics().queries
        task = asyncio.create_task(client.next_token_logprobs([1]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await client.tokenize_async("a")
        assert client.metrics().queries == before

    asyncio.run(scenario())


def test_counters_are_current_when_the_answer_arrives(client: LanguageModel) -> None:
    async def scenario() -> None:
        await client.clear_cache_async()
        for count in range(1, 30):
            await client.next_token_logprobs([1])
            assert client.metrics().queries == count

    asyncio.run(scenario())


def test_progress_arrives_over_the_pipe_before_the_result(client: LanguageModel) -> None:
    heard: list[object] = []

    async def scenario() -> None:
        await client.score([1, 2, 3, 4], on_progress=heard.append)
        heard.append("scored")
        async for record in client.generate([0], GenerationOptions(max_tokens=1), on_progress=heard.append):
            heard.append(record.token_id)  # noqa: PERF401  # the callback appends in between

    asyncio.run(scenario())
    for record in client.generate_sync([0], GenerationOptions(max_tokens=1), on_progress=heard.append):
        heard.append(record.token_id)  # noqa: PERF401  # the callback appends in between
    prompt = PromptProgress(1, 1, 0, 1)
    assert heard == [PromptProgress(2, 4, 1, 1), PromptProgress(4, 4, 1, 3), "scored", prompt, 0, prompt, 0]


def test_an_error_in_a_progress_callback_is_raised_to_the_caller_over_the_pipe(client: LanguageModel) -> None:
    def wrong(_: PromptProgress) -> None:
        raise ValueError("of the listener")

    async def scenario() -> None:
        with pytest.raises(ValueError, match="of the listener"):
            await client.score([1, 2, 3, 4], on_progress=wrong)
        with pytest.raises(ValueError, match="of the listener"):
            await anext(client.generate([3], GenerationOptions(max_tokens=100), on_progress=wrong))

    asyncio.run(scenario())
    with pytest.raises(ValueError, match="of the listener"):
        client.score_sync([1, 2, 3, 4], on_progress=wrong)


def test_more_rows_than_fit_the_pipe_are_refused_before_compute(client: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    width = client.info.vocab_size
    monkeypatch.setattr("runtime.transport.pipe.MAX_PAYLOAD", 5 * 4 * width + 256)
    assert client.batch_next_token_logprobs_sync([[1]] * 5).shape == (5, width)
    before = client.metrics().queries
    with pytest.raises(InvalidRequestError) as refused:
        client.batch_next_token_logprobs_sync([[1]] * 6)
    message = str(refused.value)
    assert message.startswith(f"6 rows of {width:,} log-probabilities take {24 * width:,} bytes")
    assert message.endswith("ask for 5 rows at a time")
    assert client.metrics().queries == before


def test_a_request_too_large_for_the_pipe_is_refused(client: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.transport.pipe.MAX_PAYLOAD", 2000)
    texts = ["short", "long " * 1000]
    assert client.tokenize(texts[0])
    with pytest.raises(InvalidRequestError, match=r"bytes is more than the 2,000 that cross the pipe"):
        client.tokenize(texts[1])
    with pytest.raises(InvalidRequestError, match="cross the pipe"):
        next(client.generate_sync([1] * 900, GenerationOptions(max_tokens=1)))
    assert client.tokenize(texts[0])
