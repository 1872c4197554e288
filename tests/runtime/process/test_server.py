"""The server side of the engine process, addressed with raw messages."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from runtime.transport import server as server_module
from runtime.transport.messages import (
    EXIT_PROTOCOL,
    Beat,
    CallMessage,
    Cancel,
    ChunkMessage,
    Drop,
    End,
    Failure,
    Load,
    Loaded,
    PartMessage,
    Push,
    Result,
    Shutdown,
)
from tests.runtime.process.conftest import LOADER, eventually
from tests.runtime.process.peer import LOAD, call, ids, serving, told


def test_beats_report_the_phase_and_the_step() -> None:
    async def scenario() -> None:
        async with serving() as (_, peer):
            peer.send(Load("slow", "auto", {"context_length": 300}, LOADER, {}, 0.02))
            assert await peer.until(Beat) == Beat(0, "loading")
            await peer.until(Loaded)
            peer.send(told(1, "step"))
            await eventually(lambda: Beat(7, "step") in peer.replies)

    asyncio.run(scenario())


def test_a_result_carries_the_number_of_its_call_and_follows_the_counters() -> None:
    async def scenario() -> None:
        async with serving() as (_, peer):
            peer.send(LOAD)
            await peer.until(Loaded)
            peer.send(
                call(5, "logprobs", batch=[ids(1)], adapters=None, priority=1, cache_salt=""), call(6, "tokenize", texts=["b"])
            )
            assert msgspec.msgpack.decode((await peer.until(Result, 6)).value) == [[1]]
            kinds = [type(reply) for reply in peer.replies if not isinstance(reply, Beat)]
            assert kinds == [Loaded, Push, Result, Result]
            push = next(reply for reply in peer.replies if isinstance(reply, Push))
            assert push.metrics is not None
            assert push.metrics.queries == 1

    asyncio.run(scenario())


def test_unchanged_counters_are_not_sent_again() -> None:
    async def scenario() -> None:
        async with serving() as (_, peer):
            peer.send(LOAD)
            await peer.until(Loaded)
            for number in range(1, 5):
                peer.send(call(number, "tokenize", texts=["b"]))
                await peer.until(Result, number)
            assert sum(isinstance(reply, Push) for reply in peer.replies) == 1

    asyncio.run(scenario())


def test_a_stream_sends_chunks_then_counters_then_its_end() -> None:
    async def scenario() -> None:
        async with serving() as (_, peer):
            peer.send(LOAD)
            await peer.until(Loaded)
            peer.send(call(9, "generate", ids=ids(0), options={}))
            await peer.until(End, 9)
            assert sum(isinstance(reply, ChunkMessage) for reply in peer.replies) == 8
            kinds = [type(reply) for reply in peer.replies if not isinstance(reply, Beat)]
            last_push = max(place for place, kind in enumerate(kinds) if kind is Push)
            last_push_message = [reply for reply in peer.replies if isinstance(reply, Push)][-1]
            assert last_push < kinds.index(End)
            assert last_push_message.metrics is not None
            assert last_push_message.metrics.tokens_computed == 8

    asyncio.run(scenario())


def test_counters_are_pushed_for_a_call_that_arrives_during_the_last_push_round(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[asyncio.Event] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds == 0.125:  # as set below
            rounds.append(asyncio.Event())
            await rounds[-1].wait()
        else:
            await real(seconds)

    async def scenario() -> None:
        async with serving() as (_, peer):

            def working() -> int:
                """The tasks of calls and of the counters."""
                return len(asyncio.all_tasks() - idle)

            async def end_round(count: int) -> None:
                await eventually(lambda: len(rounds) == count)
                rounds[-1].set()
                await eventually(lambda: len(rounds) > count or not working())

            peer.send(LOAD)
            await peer.until(Loaded)
            idle = asyncio.all_tasks()
            # given a first call that was cancelled, and a push round that saw this
            peer.send(call(1, "generate", ids=ids(3), options={}))
            await peer.until(ChunkMessage, 1)
            peer.send(Cancel(1))
            await eventually(lambda: len(rounds) == 1 == working())
            await end_round(1)
            # when another call arrives during the wait for the next round
            peer.send(call(2, "generate", ids=ids(3), options={}))
            await peer.until(ChunkMessage, 2)
            pushed = sum(isinstance(reply, Push) for reply in peer.replies)
            # then push rounds continue for it
            await end_round(2)
            assert len(rounds) == 3
            await end_round(3)
            await eventually(lambda: sum(isinstance(reply, Push) for reply in peer.replies) > pushed)
            peer.send(Cancel(2))
            await eventually(lambda: working() == 1)
            for count in (4, 5):
                await end_round(count)
            assert (len(rounds), working()) == (5, 0)

    monkeypatch.setattr(server_module, "PUSH_SECONDS", 0.125)
    monkeypatch.setattr("asyncio.sleep", sleep)
    asyncio.run(scenario())


def test_a_cancelled_call_gets_no_answer() -> None:
    async def scenario() -> None:
        async with serving() as (_, peer):
            peer.send(LOAD)
            await peer.until(Loaded)
            idle = asyncio.all_tasks()
            peer.send(call(1, "generate", ids=ids(3), options={}))
            await peer.until(ChunkMessage, 1)
            peer.send(Cancel(1), Cancel(77))
            await eventually(lambda: len(asyncio.all_tasks() - idle) <= 1)  # the counters are reported once more
            peer.send(told(2, "state"))
            state = json.loads("".join(map(chr, msgspec.msgpack.decode((await peer.until(Result, 2)).value))))
            assert state["cancelled"] == 1
            assert not [reply for reply in peer.replies if isinstance(reply, End | Failure)]

    asyncio.run(scenario())


def test_calls_cancelled_before_they_start_leave_no_state() -> None:
    async def scenario() -> None:
        async with serving() as (_, peer):
            peer.send(LOAD)
            await peer.until(Loaded)
            idle = asyncio.all_tasks()
            # given calls of every kind, each sent together with its cancellation
            for number, one in enumerate(
                (
                    call(1, "logprobs", batch=[ids(1)], adapters=None, priority=1, cache_salt=""),
                    call(2, "generate", ids=ids(3), options={}),
                    call(3, "continue_many", ids=ids(3), n=2, options={}),
                ),
                1,
            ):
                peer.send(one, Drop(number, 0), Cancel(number))
            peer.send(call(9, "tokenize", texts=["b"]))
            await peer.until(Result, 9)
            # then they and the counters leave no task
            await eventually(lambda: asyncio.all_tasks() <= idle)
            assert not [reply for reply in peer.replies if getattr(reply, "id", 9) not in (9, 0)]
            # and a later call of the same number has all its branches
            peer.send(call(3, "continue_many", ids=ids(0), n=2, options={}, priority=0, cache_salt=""))
            await peer.until(End, 3)
            assert {reply.branch for reply in peer.replies if isinstance(reply, ChunkMessage)} == {0, 1}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (call(1, "close"), "no method 'close'"),
        (call(1, "__class__"), "no method '__class__'"),
        (call(1, "tokenise", texts=["a"]), "did you mean 'tokenize'"),
        (call(1, "tokenize", texts=5), "text"),
        (call(1, "tokenize"), "texts"),
        (call(1, "tokenize", texts=["a"], more=1), "more"),
        (call(1, "prefix_match", ids=["a"], adapters=None), "ids"),
        (call(1, "generate", ids=ids(1), options={"sampling": 5}), "sampling"),
    ],
)
def test_unknown_methods_and_invalid_arguments_are_refused(call: CallMessage, reason: str) -> None:
    async def scenario() -> None:
        async with serving() as (_, peer):
            peer.send(LOAD)
            await peer.until(Loaded)
            peer.send(call)
            fault = (await peer.until(Failure, 1)).fault
            assert fault.kind == "InvalidRequestError"
            assert reason in fault.message

    asyncio.run(scenario())


def test_a_call_before_the_load_is_refused() -> None:
    async def scenario() -> None:
        async with serving() as (_, peer):
            peer.send(call(1, "tokenize", texts=["a"]))
            assert "before the model was loaded" in (await peer.until(Failure, 1)).fault.message

    asyncio.run(scenario())


@pytest.mark.parametrize("loader", ["no colon", "missing.module:load", "runtime:missing", ":", "json:"])
def test_a_loader_that_cannot_be_found_is_refused_by_name(loader: str) -> None:
    async def scenario() -> None:
        async with serving() as (_, peer):
            peer.send(msgspec.structs.replace(LOAD, loader=loader))
            fault = (await peer.until(Failure, 0)).fault
            assert fault.kind == "InvalidRequestError"
            assert repr(loader) in fault.message

    asyncio.run(scenario())


def test_an_answer_too_large_for_the_pipe_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_PAYLOAD", 1000)

    async def scenario() -> None:
        async with serving() as (_, peer):
            peer.send(LOAD)
            await peer.until(Loaded)
            peer.send(told(1, "large 2000"))
            fault = (await peer.until(Failure, 1)).fault
            assert fault.kind == "InvalidRequestError"
            assert "more than the 1,000 that cross the pipe at once; ask for fewer rows" in fault.message

    asyncio.run(scenario())


def test_a_small_answer_is_sent_between_the_parts_of_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LARGE", 5_000)
    monkeypatch.setattr("runtime.transport.frames.HIGH_WATER", 5_000)

    async def scenario() -> None:
        async with serving() as (_, peer):
            peer.send(LOAD)
            await peer.until(Loaded)
            # given a large answer that the socket does not take at once, and a small one, requested after it
            peer.send(told(1, "large 2000000"), told(2, "repeat a"))
            await peer.until(Result, 1)
            # then the small one arrives before most parts of the large one, which is complete
            replies = [reply for reply in peer.replies if isinstance(reply, PartMessage | Result)]
            parts = [reply for reply in replies if isinstance(reply, PartMessage)]
            assert replies.index(await peer.until(Result, 2)) < len(parts) / 2
            value = b"".join(part.data for part in parts)
            assert msgspec.msgpack.decode(value) == [ord("x")] * 2_000_000

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "messages",
    [
        [LOAD, LOAD],
        [told(1, "hold"), told(1, "hold")],
        [Beat(1, "idle")],
    ],
    ids=["second load", "same number twice", "a reply"],
)
def test_a_protocol_violation_ends_the_server(messages: list[object]) -> None:
    async def scenario() -> None:
        async with serving() as (server, peer):
            peer.send(*messages)
            assert (await server.over)[0] == EXIT_PROTOCOL
            await peer.lost.wait()

    asyncio.run(scenario())


def test_shutdown_and_a_closed_pipe_end_the_server_without_an_error() -> None:
    async def scenario() -> None:
        async with serving() as (server, peer):
            peer.send(Shutdown())
            assert (await server.over)[0] == 0
        async with serving() as (server, peer):
            peer.connection.close()
            assert (await server.over)[0] == 0

    asyncio.run(scenario())
