from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from runtime import GenerationOptions
from tests.app.workbench.scene import OPTIONS, Engine, Scene

Play = Callable[..., None]


@pytest.fixture(autouse=True)
def seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh seeds differ from each other but are the same in every run: else an answer would end early now and then."""
    numbers = itertools.count(1000)
    monkeypatch.setattr("secrets.randbits", lambda bits: next(numbers))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query for the warm part of a session has a short time-out, so that no window waits; tests wait for its end."""
    monkeypatch.setattr("app.workbench.sessions.open_sessions.TIERS_SECONDS", 60.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "sessions.db"


@pytest.fixture
def play(path: Path) -> Play:
    """Plays a scene on a fresh workbench over the same file; afterwards no task of it is running.

    A test may play several scenes: each one is another start of the app.
    """

    def run(
        scene: Callable[[Scene], Awaitable[None]], *, engine: Engine | None = None, options: GenerationOptions = OPTIONS
    ) -> None:
        async def whole() -> None:
            opened = Scene.open(path, engine or Engine(), options)
            try:
                await scene(opened)
            finally:
                await opened.workbench.close()
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert not left, f"tasks left behind: {left}"

        asyncio.run(whole())

    return run
