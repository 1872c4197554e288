"""The whole app: real window (without a screen), real engine process, real database."""

from __future__ import annotations

import os

os.environ["QT_QPA_PLATFORM"] = "offscreen"  # before PySide6 is imported anywhere

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import qasync
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.paths import DataFolder
from app.window import run_window
from app.workbench import AppWorkbench
from runtime import register_backend, unregister_backend
from storage import SessionStore
from ui import MainWindow, Scheme, apply_theme

Scene = Callable[[MainWindow, AppWorkbench], Awaitable[None]]
Stage = Callable[[Scene], None]


@pytest.fixture
def paced() -> Iterator[str]:
    """A third backend, registered by its dotted name only."""
    register_backend("paced", "tests.end_to_end.paced:load")
    yield "paced"
    unregister_backend("paced")


@pytest.fixture(autouse=True)
def patient_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises the limit for reports about cached KV, so that a busy machine still delivers them."""
    monkeypatch.setattr("app.workbench.sessions.open_sessions.TIERS_SECONDS", 60)


@pytest.fixture
def data(tmp_path: Path) -> DataFolder:
    folder = DataFolder(tmp_path / "data")
    folder.make()
    return folder


@pytest.fixture
def open_app(qapp: QApplication, qtbot: QtBot, data: DataFolder) -> Callable[[str, str, Scene], None]:
    """Opens the app on `data`, plays a scene, and closes the window."""
    qapp.setQuitOnLastWindowClosed(False)
    apply_theme(qapp, Scheme.LIGHT)
    del qtbot  # requested so that exceptions inside Qt's callbacks fail the test

    def play(model: str, backend: str, scene: Scene) -> None:
        async def whole() -> None:
            tasks: list[asyncio.Task[None]] = []

            async def act(window: MainWindow, workbench: AppWorkbench) -> None:
                try:
                    await scene(window, workbench)
                finally:
                    window.close()

            def on_shown(window: MainWindow, workbench: AppWorkbench) -> None:
                tasks.append(asyncio.create_task(act(window, workbench)))

            await run_window(data, SessionStore.open(data.sessions), model, backend, on_shown=on_shown)
            await tasks[0]
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert not left, f"tasks left behind: {left}"

        with asyncio.Runner(loop_factory=lambda: qasync.QEventLoop(qapp)) as runner:
            runner.run(whole())

    return play
