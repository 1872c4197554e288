from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from runtime import (
    EngineDiedError,
    EngineLimits,
    GenerationOptions,
    LanguageModel,
    ModelLoadError,
    SessionClosedError,
    TokenRecord,
    spawn,
)
from runtime.transport import link
from runtime.transport.child import EngineProcess
from tests.runtime.process.conftest import LOADER, command, eventually, is_running, spawn_fake

IO_THREAD = "elsewise-engine-io"


def _held() -> tuple[int, int, int]:
    """Open files, I/O threads and children of this process."""
    threads = sum(thread.name == IO_THREAD for thread in threading.enumerate())
    return len(list(Path("/dev/fd").iterdir())), threads, len(psutil.Process().children())


async def _exhausted(stream: AsyncIterator[TokenRecord]) -> None:
    async for _ in stream:
        pass


def test_close_ends_the_process_and_may_be_called_again() -> None:
    client = asyncio.run(spawn_fake())
    pid = client.pid
    client.close()
    client.close()
    asyncio.run(client.close_async())
    assert not psutil.pid_exists(pid)  # not even a zombie
    assert isinstance(client.ended, SessionClosedError)


def test_after_close_every_call_raises_session_closed() -> None:
    client = asyncio.run(spawn_fake())
    client.close()
    with pytest.raises(SessionClosedError, match="load it again"):
        client.tokenize("a")
    with pytest.raises(SessionClosedError):
        asyncio.run(client.next_token_logprobs([1]))
    with pytest.raises(SessionClosedError):
        next(iter(client.generate_sync([1])))
    assert client.info.name == "fake"


def test_calls_waiting_during_close_raise_session_closed() -> None:
    async def scenario() -> None:
        client = await spawn_fake()
        await command(client, "hold")
        waiting = [asyncio.create_task(client.next_token_logprobs([1])) for _ in range(5)]
        stream = client.generate([3])
        await anext(stream)
        await asyncio.gather(client.close_async(), client.close_async())
        assert all(isinstance(e, SessionClosedError) for e in await asyncio.gather(*waiting, return_exceptions=True))
        with pytest.raises(SessionClosedError):
            await _exhausted(stream)

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "ended_by"),
    [
        ("slow-close 60", signal.SIGTERM),
        ("frozen", signal.SIGTERM),
        ("stubborn", signal.SIGKILL),
        ("stopped", signal.SIGKILL),
    ],
)
def test_close_ends_an_engine_that_does_not_end_itself(
    state: str, ended_by: signal.Signals, children: list[EngineProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "EXIT_SECONDS", 30)  # long enough for the process to end on a busy machine

    async def scenario() -> LanguageModel:
        client = await spawn_fake()
        if state == "stopped":
            os.kill(client.pid, signal.SIGSTOP)
        elif state == "frozen":
            call = asyncio.create_task(command(client, f"freeze {tmp_path / 'frozen'}"))
            await eventually((tmp_path / "frozen").exists)
            await client.close_async()
            with pytest.raises(SessionClosedError):
                await call
        else:
            await command(client, state)
        return client

    client = asyncio.run(scenario())
    client.close()
    assert f"signal {ended_by:d} " in children[0].end_message(None)
    assert not psutil.pid_exists(client.pid)


def test_the_time_limits_of_closing_add_up_to_less_than_two_seconds() -> None:
    """The application quits within 2 s."""
    assert EngineLimits().close_seconds < link.grace_within(2.0)


@pytest.mark.slow
def test_close_async_ends_a_hung_engine_within_the_given_time(children: list[EngineProcess]) -> None:
    async def scenario() -> None:
        client = await spawn_fake(limits=EngineLimits(close_seconds=1000))
        os.kill(client.pid, signal.SIGSTOP)
        await asyncio.wait_for(client.close_async(within=0.8), 30)

    asyncio.run(scenario())
    assert "signal 9 " in children[0].end_message(None)


@pytest.mark.slow
def test_an_engine_that_ends_late_leaves_no_zombie(children: list[EngineProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    # given an engine process that is slow to end
    killed: list[int] = []
    monkeypatch.setattr(EngineProcess, "kill", lambda child: killed.append(child.pid))
    monkeypatch.setattr(link, "EXIT_SECONDS", 0.1)
    client = asyncio.run(spawn_fake(limits=EngineLimits(close_seconds=0.1)))
    os.kill(client.pid, signal.SIGSTOP)
    # when it is closed, then closing does not wait longer than its limit
    client.close()
    assert killed == [client.pid]
    assert is_running(client.pid)
    # and when it ends later, it leaves no zombie
    os.kill(client.pid, signal.SIGKILL)
    asyncio.run(eventually(lambda: "signal 9 " in children[0].end_message(None)))
    assert not psutil.pid_exists(client.pid)


def test_an_engine_that_ended_while_the_caller_was_suspended_counts_as_ended_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # given an engine that ends right after a check, and a caller that is suspended beyond the limit after that check
    hours = [0.0]
    monkeypatch.setattr(link, "time", SimpleNamespace(monotonic=lambda: hours[0] * 3600))

    class Ending:
        def ended(self) -> bool:
            hours[0] += 1
            return hours[0] > 1

    # then the next check still counts
    assert asyncio.run(link.wait_for_end(cast("EngineProcess", Ending()), 0.5))


@pytest.mark.slow
def test_close_waits_for_a_model_that_closes_in_time(children: list[EngineProcess]) -> None:
    client = asyncio.run(spawn_fake(limits=EngineLimits(close_seconds=30)))
    asyncio.run(command(client, "slow-close 0.5"))
    client.close()
    assert "exit code 0" in children[0].end_message(None)  # the process ended by itself


@pytest.mark.slow
def test_no_files_threads_or_processes_are_left_after_many_engines() -> None:
    gc.collect()
    asyncio.run(spawn_fake()).close()
    before = _held()
    for i in range(4):
        client = asyncio.run(spawn_fake())
        list(client.generate_sync([0], GenerationOptions(max_tokens=3)))
        if i % 2:
            os.kill(client.pid, signal.SIGKILL)
        client.close()
    with pytest.raises(SessionClosedError):
        client.tokenize("a")
    assert _held() == before


@pytest.mark.slow
def test_no_files_threads_or_processes_are_left_after_failed_loads() -> None:
    gc.collect()
    before = _held()
    for source in ("fail", "exit", "die"):
        with pytest.raises((ModelLoadError, EngineDiedError)):
            asyncio.run(spawn_fake(source))
    assert _held() == before


def test_no_task_is_left_on_the_callers_loop() -> None:
    async def scenario() -> None:
        async with await spawn_fake() as client:
            stream = client.generate([3])
            await anext(stream)
            await stream.aclose()
            await asyncio.gather(*(client.tokenize_async("a") for _ in range(10)))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_a_cancelled_spawn_ends_its_process() -> None:
    gc.collect()
    before = _held()

    async def scenario() -> None:
        spawning = asyncio.create_task(spawn_fake("hang"))
        await eventually(lambda: bool(psutil.Process().children()))
        spawning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await spawning

    asyncio.run(scenario())
    assert _held() == before


@pytest.mark.slow
def test_the_engine_of_a_garbage_collected_client_ends() -> None:
    pid = asyncio.run(spawn_fake()).pid  # the client is not kept
    gc.collect()
    asyncio.run(eventually(lambda: not is_running(pid)))


def test_the_context_manager_closes_the_engine() -> None:
    async def scenario() -> LanguageModel:
        async with await spawn("ready", loader=LOADER) as client:
            assert client.ended is None
        return client

    client = asyncio.run(scenario())
    assert isinstance(client.ended, SessionClosedError)
    assert not psutil.pid_exists(client.pid)
