from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime import EngineDiedError, EngineLimits, ModelLoadError, RuntimeFault
from runtime.transport.child import EngineProcess
from tests.runtime.process.conftest import command, eventually, is_running, spawn_fake

QUICK = EngineLimits(step_seconds=1.0, silence_seconds=1.0, loading_seconds=60, beat_seconds=0.05)


async def _fails(call: Coroutine[Any, Any, object]) -> str:
    with pytest.raises(EngineDiedError) as caught:
        await call
    return str(caught.value)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("number", "meaning"),
    [
        (signal.SIGKILL, "signal 9 (SIGKILL), which the system sends when memory runs out"),
        (signal.SIGABRT, "signal 6 (SIGABRT), a crash in native code"),
        (signal.SIGTERM, "signal 15 (SIGTERM). What it had answered is kept; load the model again to go on"),
    ],
)
def test_all_waiting_calls_fail_with_the_way_the_engine_ended(
    number: signal.Signals, meaning: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with await spawn_fake() as client:
            await command(client, "hold")
            waiting = [asyncio.create_task(_fails(client.next_token_logprobs([i % 28]))) for i in range(50)]
            blocked = asyncio.create_task(asyncio.to_thread(lambda: client.next_token_logprobs_sync([1])))
            await asyncio.sleep(0.1)
            os.kill(client.pid, number)
            assert all(meaning in message for message in await asyncio.gather(*waiting))
            assert meaning in await _fails(blocked)  # type: ignore[arg-type]  # a task is awaited like a coroutine
            assert isinstance(client.ended, EngineDiedError)
            assert not is_running(client.pid)

    asyncio.run(scenario())
    capfd.readouterr()  # faulthandler's trace


def test_after_a_crash_calls_fail_at_once_and_cached_state_stays_readable() -> None:
    async def scenario() -> None:
        async with await spawn_fake() as client:
            await client.next_token_logprobs([1])
            assert client.ended is None
            assert "exit code 3" in await _fails(command(client, "exit 3"))
            assert "exit code 3" in await _fails(client.tokenize_async("a"))
            with pytest.raises(EngineDiedError):
                client.tokenize("a")
            assert client.metrics().queries == 1
            assert client.info.name == "fake"
            assert client.decode_token(0) == b"a"

    asyncio.run(scenario())


@pytest.mark.slow
def test_other_engines_work_after_one_has_crashed() -> None:
    async def scenario() -> None:
        async with await spawn_fake() as first, await spawn_fake() as second:
            await _fails(command(first, "die 9"))
            assert await second.tokenize_async("ab") == [0, 1]
            async with await spawn_fake() as third:
                assert await third.tokenize_async("ab") == [0, 1]

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize(("source", "how"), [("die", "signal 9 (SIGKILL)"), ("exit", "exit code 3")])
def test_a_crash_while_loading_is_reported_with_its_cause(source: str, how: str) -> None:
    assert how in asyncio.run(_fails(spawn_fake(source)))


@pytest.mark.slow
def test_an_engine_killed_while_loading_is_reported_with_the_signal(children: list[EngineProcess]) -> None:
    async def scenario() -> None:
        loading = asyncio.create_task(_fails(spawn_fake("hang")))
        await eventually(lambda: bool(children))
        await asyncio.sleep(0.5)
        os.kill(children[0].pid, signal.SIGKILL)
        assert "signal 9" in await loading

    asyncio.run(scenario())


def test_an_error_while_loading_keeps_its_type() -> None:
    with pytest.raises(ModelLoadError, match="elsewise models get fail"):
        asyncio.run(spawn_fake("fail"))


def test_a_bug_while_loading_is_a_runtime_fault_and_is_logged(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeFault, match="KeyError: 'hidden_size'"):
        asyncio.run(spawn_fake("bug"))
    assert "loading 'bug' failed" in capfd.readouterr().err


@pytest.mark.slow
def test_an_engine_with_a_hung_step_is_ended_although_it_sends_beats() -> None:
    async def scenario() -> None:
        async with await spawn_fake(limits=replace(QUICK, silence_seconds=30)) as client:
            assert "step 7 took more than 1 s" in await _fails(command(client, "step"))
            assert not is_running(client.pid)

    asyncio.run(scenario())


@pytest.mark.slow
def test_long_work_in_short_steps_is_not_ended() -> None:
    async def scenario() -> None:
        async with await spawn_fake(limits=replace(QUICK, step_seconds=2, silence_seconds=30)) as client:
            assert await command(client, "move 5") == "moved"

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["idle", "stopped"])
def test_an_engine_without_a_sign_of_life_is_ended(phase: str) -> None:
    async def scenario() -> None:
        async with await spawn_fake(limits=QUICK) as client:
            if phase == "stopped":
                os.kill(client.pid, signal.SIGSTOP)
            message = await _fails(command(client, "freeze"))
            assert "it gave no sign of life for 1 s" in message
            assert not is_running(client.pid)

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_hung_load_is_ended() -> None:
    limits = EngineLimits(loading_seconds=3.0, beat_seconds=0.05)
    assert "loading did not get further for 3 s" in asyncio.run(_fails(spawn_fake("hang", limits=limits)))


@pytest.mark.slow
def test_a_long_load_within_its_limit_is_not_ended() -> None:
    limits = EngineLimits(step_seconds=0.3, silence_seconds=0.3, loading_seconds=60, beat_seconds=0.05)

    async def scenario() -> None:
        async with await spawn_fake("slow", limits=limits, context_length=1000) as client:
            assert client.info.name == "fake"

    asyncio.run(scenario())


@pytest.mark.slow
def test_an_engine_survives_a_suspension_of_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a calling process that was suspended for an hour, when it resumes, then the engine stays alive."""
    leaps = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + leaps[0])
    monkeypatch.setattr("runtime.transport.link.time", clock)

    async def scenario() -> None:
        async with await spawn_fake(limits=EngineLimits(beat_seconds=0.05)) as client:
            for _ in range(5):
                leaps[0] += 3600
                await asyncio.sleep(0.1)
            assert await client.tokenize_async("a") == [0]

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_crash_is_noticed_although_a_grandchild_holds_the_pipe_open() -> None:
    async def scenario() -> None:
        async with await spawn_fake(limits=EngineLimits(beat_seconds=0.05)) as client:
            grandchild = int(await command(client, "child"))
            await _fails(command(client, "die 9"))
            os.kill(grandchild, signal.SIGKILL)

    asyncio.run(scenario())


@pytest.mark.slow
def test_ending_a_hung_engine_ends_its_children() -> None:
    async def scenario() -> None:
        async with await spawn_fake(limits=replace(QUICK, silence_seconds=5)) as client:  # enough time to report the child
            grandchild = int(await command(client, "child"))
            await _fails(command(client, "freeze"))
            await eventually(lambda: not is_running(grandchild))

    asyncio.run(scenario())


def test_the_error_of_a_crashed_engine_names_the_log(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"

    async def scenario() -> None:
        async with await spawn_fake(log_path=log) as client:
            assert str(log) in await _fails(command(client, "die 6"))

    asyncio.run(scenario())
    assert "Fatal Python error: Aborted" in log.read_text()


def test_a_log_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    message = asyncio.run(_fails(spawn_fake(log_path=tmp_path / "missing" / "engine.log")))
    assert "cannot be started" in message
    assert "missing" in message


def test_every_call_ends_when_the_engine_is_killed_during_concurrent_calls() -> None:
    """Given four threads that call without a pause, when the engine is killed, then every call ends."""

    def hammer(client: Any, ended: list[str]) -> None:
        try:
            while True:
                client.next_token_logprobs_sync([1])
        except EngineDiedError as error:
            ended.append(str(error))

    client = asyncio.run(spawn_fake())
    ended: list[str] = []
    threads = [threading.Thread(target=hammer, args=(client, ended)) for _ in range(4)]
    for thread in threads:
        thread.start()
    os.kill(client.pid, signal.SIGKILL)
    for thread in threads:
        thread.join()
    client.close()
    assert len(ended) == 4
