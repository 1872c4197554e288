"""An engine process shared by the tests that leave its state unchanged, and helpers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from runtime import EngineLimits, LanguageModel, spawn
from runtime.transport import link
from runtime.transport.child import EngineProcess

LOADER = "tests.runtime.process.fake_model:load"


async def spawn_fake(source: str = "ready", *, limits: EngineLimits | None = None, **options: Any) -> LanguageModel:
    """An engine process with the fake model."""
    return await spawn(source, "auto", loader=LOADER, limits=limits, **options)


async def eventually(condition: Callable[[], Awaitable[bool] | bool]) -> None:
    """Waits until the condition holds; a condition that never holds runs into the test's time-out."""
    while True:
        answer = condition()
        if answer is True or (not isinstance(answer, bool) and await answer):
            return
        await asyncio.sleep(0.01)


async def command(client: LanguageModel, text: str) -> str:
    """Sends a command to the fake model (see `fake_commands`) and returns its answer."""
    return "".join(map(chr, await client.render_chat_async([{"role": "command", "content": text}])))


async def state_of(client: LanguageModel) -> dict[str, Any]:
    """The counters of the fake model."""
    state: dict[str, Any] = json.loads(await command(client, "state"))
    return state


async def cancelled(client: LanguageModel) -> int:
    """The number of calls and streams cancelled in the engine."""
    return int((await state_of(client))["cancelled"])


async def has_made(client: LanguageModel, tokens: int) -> bool:
    """Whether the fake model has generated at least so many tokens."""
    return int((await state_of(client))["generated"]) >= tokens


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[EngineProcess]:
    """The engine processes that the test starts, in order."""
    started: list[EngineProcess] = []

    def start(backend: str, threads: int | None, log_path: Path | None) -> EngineProcess:
        started.append(EngineProcess(backend, threads, log_path))
        return started[-1]

    monkeypatch.setattr(link, "EngineProcess", start)
    return started


@pytest.fixture(scope="module")
def client() -> Iterator[LanguageModel]:
    """Created on one event loop and used on many others."""
    client = asyncio.run(spawn_fake())
    yield client
    client.close()
