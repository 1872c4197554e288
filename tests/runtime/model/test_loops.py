"""Event loops and threads: any number of them, and closing ends every waiting call."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import pytest

from runtime import LanguageModel, Session, load
from runtime.backends.fake import Behaviour
from runtime.backends.registry import register_backend, unregister_backend
from runtime.errors import SessionClosedError
from runtime.options.generation import GenerationOptions
from tests.fakes import Gate, assert_right, fake_model, settled, some_ids, wait_for_close
from tests.tiny_models import tiny_path


def test_one_loop_after_the_other() -> None:
    with fake_model() as model:
        for n in range(1, 6):
            assert_right(asyncio.run(model.next_token_logprobs(list(range(n)))), range(n))
            assert len(asyncio.run(model.sample([n], 4, []))) == 4


def test_a_loop_that_ends_in_the_middle_of_a_stream_leaves_nothing_behind() -> None:
    with fake_model(Behaviour(delay=0.001)) as model:

        async def leave() -> None:
            stream = model.generate([1], GenerationOptions(max_tokens=1000, ignore_eos=True))
            await anext(stream)
            await stream.aclose()

        asyncio.run(leave())

        async def abandon() -> asyncio.Task[Any]:
            task = asyncio.create_task(model.sample([2], 1000, []))
            await asyncio.sleep(0.02)
            return task

        assert asyncio.run(abandon()).cancelled()
        assert settled(model)[1].leases == 0
        assert_right(model.next_token_logprobs_sync([3]), [3])


def test_two_loops_in_two_threads_get_right_answers() -> None:
    failures: list[BaseException] = []
    with fake_model(Behaviour(delay=0.0005)) as model:

        async def work(seed: int) -> None:
            for step in range(15):
                paths = [some_ids(seed * 100 + i, 5 + step) for i in range(4)] + [some_ids(step, 8)]
                rows = await asyncio.gather(*(model.next_token_logprobs(p) for p in paths), model.sample(paths[0], 3, []))
                for row, path in zip(rows[:-1], paths, strict=True):
                    assert_right(row, path)  # type: ignore[arg-type]  # rows except the last

        def run(seed: int) -> None:
            try:
                asyncio.run(work(seed))
            except BaseException as error:  # noqa: BLE001  # reported below
                failures.append(error)

        threads = [threading.Thread(target=run, args=(seed,)) for seed in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []


def test_synchronous_calls_work_inside_a_running_loop() -> None:
    with fake_model() as model:

        async def main() -> None:
            other = asyncio.create_task(model.next_token_logprobs([9, 9]))
            assert_right(model.next_token_logprobs_sync([1, 2]), [1, 2])
            assert_right(model.batch_next_token_logprobs_sync([[1], [2, 3]])[1], [2, 3])
            model.cache_kv([5])
            model.clear_cache()
            assert len(list(model.generate_sync([1], GenerationOptions(max_tokens=3, ignore_eos=True)))) == 3
            assert_right(await other, [9, 9])

        asyncio.run(main())


def test_a_synchronous_member_has_the_parameters_and_the_documentation_of_its_async_one() -> None:
    twins = [(owner, name) for owner in (LanguageModel, Session) for name in dir(owner) if name.endswith("_sync")]
    pairs = [(getattr(owner, name.removesuffix("_sync")), getattr(owner, name)) for owner, name in twins]
    pairs += [
        (LanguageModel.cache_kv_async, LanguageModel.cache_kv),
        (LanguageModel.load_adapter_async, LanguageModel.load_adapter),
    ]
    for member, twin in pairs:
        signature = inspect.signature(twin)
        assert signature.parameters == inspect.signature(member).parameters
        assert "Async" not in str(signature.return_annotation)
        assert member.__doc__ in twin.__doc__


def test_async_members_do_the_same_as_the_synchronous_ones() -> None:
    async def main() -> None:
        async with load("anything", backend="fake") as model:
            await model.cache_kv_async([1, 2, 3])
            assert (await model.prefix_match_async([1, 2, 3])).tokens == 3
            await model.clear_kv_cache_async()
            assert (await model.prefix_match_async([1, 2, 3])).tokens == 0
            await model.set_kv_budget_async(1 << 20)
            await model.clear_cache_async()
            await model.reset_async_queries_async()
            assert_right(await model.next_token_logprobs_uncached_async([1]), [1])
            assert model.metrics().kv_budget == 1 << 20
        with pytest.raises(SessionClosedError):
            await model.next_token_logprobs([1])

    asyncio.run(main())


def test_closing_the_model_ends_every_waiting_call_with_an_error() -> None:
    # given a stream in the middle of a forward, and a query, a score, a stream and a call that wait for its end
    gate = Gate()
    model = load((Behaviour(before_forward=gate), None), backend="fake")

    async def main() -> None:
        gate.shut(after=1)  # after the first token
        stream = model.generate([1, 2], GenerationOptions(max_tokens=1000, ignore_eos=True))
        first = await anext(stream)
        assert first.rank is not None
        assert await asyncio.to_thread(gate.reached.wait, 30)
        asked: list[Any] = [model.next_token_logprobs([3]), model.score([1, 2]), model.sample([4], 9, [])]
        waiting = [asyncio.create_task(each) for each in (*asked, model.prefix_match_async([1]))]
        await asyncio.sleep(0.01)
        closing = asyncio.create_task(model.close_async())
        await asyncio.to_thread(wait_for_close, model)
        gate.open()
        await closing
        for task in waiting:
            with pytest.raises(SessionClosedError):
                await asyncio.wait_for(task, 10)
        with pytest.raises(SessionClosedError):
            async for _ in stream:
                pass

    asyncio.run(main())
    model.close()  # a second close does nothing
    for call in (
        lambda: model.next_token_logprobs_sync([1]),
        lambda: model.next_token_logprobs_uncached([1]),
        lambda: model.prefix_match([1]),
        lambda: asyncio.run(model.score([1, 2])),
        lambda: asyncio.run(model.sample([1], 1, [])),
        lambda: list(model.generate_sync([1])),
        model.clear_cache,
        model.reset_async_queries,
    ):
        with pytest.raises(SessionClosedError, match="closed"):
            call()
    assert model.info.backend == "fake"  # info and metrics stay available
    assert model.metrics().tokens_computed > 0


def test_closing_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    with fake_model() as model:
        model.next_token_logprobs_sync([1])
        assert [t.name for t in set(threading.enumerate()) - before] == ["elsewise-owner"]
    assert set(threading.enumerate()) <= before


def test_a_backend_that_fails_to_load_raises_in_load_and_leaves_no_thread() -> None:
    def broken(*_: object) -> Any:
        raise MemoryError("weights do not fit")

    folder = tiny_path("llama")
    register_backend("broken", broken)
    try:
        before = set(threading.enumerate())
        with pytest.raises(MemoryError, match="weights"):
            load(folder, backend="broken")
        assert {t for t in set(threading.enumerate()) - before if t.is_alive()} == set()
    finally:
        unregister_backend("broken")
