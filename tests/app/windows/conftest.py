"""Several windows over one store and one engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import qasync
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.supervisor import Supervisor
from app.windows import AppWindows
from app.workbench import AppWorkbench, Services
from storage import SessionStore
from tests.app.windows.desktop import OPTIONS, Desktop
from tests.app.workbench.scene import Engine, until
from ui import Scheme, apply_theme

Scene = Callable[[Desktop], Awaitable[None]]
Play = Callable[..., object]


@pytest.fixture
def play(qapp: QApplication, qtbot: QtBot, tmp_path: Path) -> Play:
    """Plays a scene in the windows of a fresh start over the same file and closes them all; returns what they saved."""
    del qtbot  # requested so that exceptions inside Qt's callbacks fail the test
    qapp.setQuitOnLastWindowClosed(False)
    apply_theme(qapp, Scheme.LIGHT)
    path = tmp_path / "data" / "sessions.db"

    async def whole(scene: Scene, kept: object) -> object:
        asyncio.get_running_loop().set_default_executor(
            ThreadPoolExecutor(2)
        )  # otherwise qasync's, whose threads Python lists for ever
        engine = Engine()
        workbench = AppWorkbench(Services(SessionStore.open(path), Supervisor("x", start=engine), OPTIONS))
        windows = AppWindows(workbench, kept)
        first = windows.open_first()
        first.show()
        listed = [row.session_id for row in await workbench.sessions.list()]
        first.start(windows.session(listed), fresh=windows.opens_empty(listed))
        windows.open_others(listed)
        await until(lambda: first.controller.shown is not None)
        try:
            await scene(Desktop(path, engine, windows, first))
        finally:
            if engine.gate is not None:
                engine.gate.release()
            windows.close()
            await until(windows.ended.is_set)
        await asyncio.sleep(0)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, f"tasks left behind: {left}"
        return windows.left()

    def run(scene: Scene, kept: object = None) -> object:
        with asyncio.Runner(loop_factory=lambda: qasync.QEventLoop(qapp)) as runner:
            return runner.run(whole(scene, kept))

    return run
