from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from runtime import EngineDiedError, Finish, GenerationOptions, LanguageModel, NonFiniteLogitsError, TokenRecord, TokenRun
from tests.runtime.process.conftest import cancelled, eventually, has_made, spawn_fake, state_of
from tests.runtime.process.fake_answers import run_of

NEVER_ENDS = [3]


async def _read(client: LanguageModel, prompt: list[int]) -> tuple[list[TokenRecord], BaseException | None]:
    records: list[TokenRecord] = []
    try:
        async for record in client.generate(prompt):
            records.append(record)  # noqa: PERF401  # the records before an error are returned
    except Exception as error:  # noqa: BLE001  # handed to the test
        return records, error
    return records, None


def test_records_and_runs_are_the_same_tokens(client: LanguageModel) -> None:
    async def scenario() -> None:
        options = GenerationOptions(max_tokens=20)
        records = [record async for record in client.generate([0], options)]
        run = TokenRun.concat([run async for run in client.generate_runs([0], options)])
        assert records == list(run) == list(client.generate_sync([0], options))
        assert records == [run_of([i], finish=Finish.LENGTH if i == 19 else Finish.NONE).record(0) for i in range(20)]

    asyncio.run(scenario())


def test_counters_are_current_when_the_stream_ends(client: LanguageModel) -> None:
    async def scenario() -> None:
        await client.clear_kv_cache_async()
        for count in range(1, 6):
            assert len([record async for record in client.generate([0], GenerationOptions(max_tokens=4))]) == 4
            assert client.metrics().tokens_computed == client.cache_report().tokens == 4 * count

    asyncio.run(scenario())


def test_counters_move_while_a_stream_runs(client: LanguageModel) -> None:
    async def scenario() -> None:
        await client.clear_kv_cache_async()
        async with aclosing(client.generate(NEVER_ENDS)) as stream:
            async for _ in stream:
                if client.metrics().tokens_computed > 20:
                    return

    asyncio.run(scenario())


def test_a_slow_reader_gets_all_arrived_tokens_in_one_run(client: LanguageModel) -> None:
    async def scenario() -> None:
        async with aclosing(client.generate_runs(NEVER_ENDS)) as runs:
            first = await anext(runs)
            made = int((await state_of(client))["generated"])
            await eventually(lambda: has_made(client, made + 30))
            second = await anext(runs)
        assert len(second) >= 30
        both = TokenRun.concat([first, second]).ids.tolist()
        assert both == [i % 28 for i in range(len(both))]

    asyncio.run(scenario())


def test_many_streams_at_once_do_not_mix(client: LanguageModel) -> None:
    async def read(count: int) -> list[int]:
        return [record.token_id async for record in client.generate([0], GenerationOptions(max_tokens=count))]

    async def scenario() -> None:
        counts = range(1, 21)
        assert await asyncio.gather(*(read(count) for count in counts)) == [list(range(count)) for count in counts]

    asyncio.run(scenario())


def test_closing_a_stream_stops_the_generation(client: LanguageModel) -> None:
    async def scenario() -> None:
        before = await cancelled(client)
        async with aclosing(client.generate(NEVER_ENDS)) as stream:
            assert (await anext(stream)).token_id == 0

        async def stopped() -> bool:
            return await cancelled(client) == before + 1

        await eventually(stopped)

    asyncio.run(scenario())


def test_cancelling_the_reader_stops_the_generation(client: LanguageModel) -> None:
    async def scenario() -> None:
        before = await cancelled(client)
        begun = asyncio.Event()

        async def read() -> None:
            async for _ in client.generate(NEVER_ENDS):
                begun.set()

        reader = asyncio.create_task(read())
        await begun.wait()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader

        async def stopped() -> bool:
            return await cancelled(client) == before + 1

        await eventually(stopped)

    asyncio.run(scenario())


def test_closing_a_blocking_stream_stops_the_generation(client: LanguageModel) -> None:
    before = asyncio.run(cancelled(client))
    stream = client.generate_sync(NEVER_ENDS)
    assert next(stream).token_id == 0
    stream.close()

    async def stopped() -> bool:
        return await cancelled(client) == before + 1

    asyncio.run(eventually(stopped))


def test_a_stream_that_is_never_read_is_never_started(client: LanguageModel) -> None:
    async def scenario() -> None:
        before = (await state_of(client))["generated"]
        await client.generate(NEVER_ENDS).aclose()
        assert (await state_of(client))["generated"] == before

    asyncio.run(scenario())


def test_records_before_an_error_are_kept(client: LanguageModel) -> None:
    records, error = asyncio.run(_read(client, [1]))
    assert [record.token_id for record in records] == [0, 1, 2]
    assert isinstance(error, NonFiniteLogitsError)
    assert str(error) == "token 3: the logits hold NaN; try another dtype"


@pytest.mark.slow
def test_records_before_a_crash_of_the_engine_are_kept() -> None:
    async def scenario() -> None:
        async with await spawn_fake() as client:
            other = asyncio.create_task(_read(client, NEVER_ENDS))
            records, error = await _read(client, [2])  # kills itself in the middle
            assert [record.token_id for record in records] == [0, 1, 2]
            assert isinstance(error, EngineDiedError)
            assert "signal 9 (SIGKILL)" in str(error)
            records, error = await other
            assert len(records) >= 3
            assert isinstance(error, EngineDiedError)

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_blocking_stream_keeps_the_records_before_a_crash() -> None:
    with asyncio.run(spawn_fake()) as client:
        stream = client.generate_sync([2])
        assert [next(stream).token_id for _ in range(3)] == [0, 1, 2]
        with pytest.raises(EngineDiedError):
            next(stream)
