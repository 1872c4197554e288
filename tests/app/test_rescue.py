"""A damaged sessions file: a window opens all the same, and shows exactly the possible actions."""

from __future__ import annotations

import os

os.environ["QT_QPA_PLATFORM"] = "offscreen"  # before PySide6 is imported anywhere

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import qasync
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

import storage
from app.paths import DataFolder
from app.rescue import beside, remedies, rescue
from storage import NewNode, SessionStore, StoreDamagedError
from tests.ui.conftest import until
from ui import RecoveryPage, Scheme, apply_theme

Scene = Callable[[RecoveryPage], Awaitable[None]]


@pytest.fixture
def data(tmp_path: Path) -> DataFolder:
    """A data folder whose sessions file was cut in the middle."""
    folder = DataFolder(tmp_path / "my data")
    folder.make()
    store = SessionStore.open(folder.sessions)

    async def fill() -> None:
        for i in range(30):
            session = await store.create_session(f"chat {i}")
            await store.add_node(NewNode(session, None, "user", f"question {i} " * 40), current=True)
        await store.close()

    asyncio.run(fill())
    whole = folder.sessions.read_bytes()
    folder.sessions.write_bytes(whole[: len(whole) - 3 * 4096])
    return folder


def chosen(qapp: QApplication, data: DataFolder, scene: Scene) -> DataFolder | None:
    """Opens the page on the damaged file and plays a scene; returns the choice."""
    qapp.setQuitOnLastWindowClosed(False)
    apply_theme(qapp, Scheme.LIGHT)

    async def play() -> DataFolder | None:
        with pytest.raises(StoreDamagedError) as fault:
            SessionStore.open(data.sessions)
        tasks: list[asyncio.Task[None]] = []

        async def act(page: RecoveryPage) -> None:
            try:
                await scene(page)
            finally:
                page.close()  # after a choice it changes nothing

        found = await rescue(data, fault.value, lambda page: tasks.append(asyncio.ensure_future(act(page))))
        await tasks[0]
        return found

    with asyncio.Runner(loop_factory=lambda: qasync.QEventLoop(qapp)) as runner:
        return runner.run(play())


def press(button: object) -> None:
    QTest.mouseClick(button, Qt.MouseButton.LeftButton)  # type: ignore[call-overload]  # any of the page's buttons


def test_the_page_recovers_a_file_and_opens_it(qapp: QApplication, qtbot: QtBot, data: DataFolder) -> None:
    del qtbot
    cut = data.sessions.read_bytes()

    async def scene(page: RecoveryPage) -> None:
        assert str(data.sessions) in page.problem.text()
        assert str(beside(data).root) in page.hint.text()
        press(page.recover_button)
        await until(page.open_button.isVisible)
        assert "sessions were recovered" in page.state.text()
        press(page.open_button)

    assert chosen(qapp, data, scene) == data
    store = SessionStore.open(data.sessions)
    rows = asyncio.run(store.sessions())
    store.close_sync()
    assert len(rows) >= 10
    assert (data.root / "sessions.damaged.db").read_bytes() == cut


def test_choosing_a_fresh_folder_changes_nothing(qapp: QApplication, qtbot: QtBot, data: DataFolder) -> None:
    del qtbot
    cut = data.sessions.read_bytes()

    async def scene(page: RecoveryPage) -> None:
        press(page.fresh_button)

    assert chosen(qapp, data, scene) == DataFolder(data.root.with_name("my data-fresh"))
    assert data.sessions.read_bytes() == cut
    assert [p.name for p in data.root.iterdir()] == ["sessions.db"]


def test_closing_the_page_or_stopping_changes_nothing(
    qapp: QApplication, qtbot: QtBot, data: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    del qtbot
    cut = data.sessions.read_bytes()
    pressed, salvage = threading.Event(), storage.salvage

    def held(path: Path, progress: Callable[[str, int, int], None]) -> storage.Salvage:
        assert pressed.wait(30)  # a file this small may be read before it can be stopped
        return salvage(path, progress)

    monkeypatch.setattr(storage, "salvage", held)

    async def scene(page: RecoveryPage) -> None:
        press(page.recover_button)
        await asyncio.sleep(0)
        press(page.stop_button)
        pressed.set()
        await until(page.recover_button.isVisible)
        assert page.state.text() == "stopped; nothing was changed"

    assert chosen(qapp, data, scene) is None
    assert data.sessions.read_bytes() == cut
    assert [p.name for p in data.root.iterdir()] == ["sessions.db"]


def test_a_file_without_readable_rows_is_reported_and_kept(qapp: QApplication, qtbot: QtBot, data: DataFolder) -> None:
    del qtbot
    data.sessions.write_bytes(b"x" * 9000)

    async def scene(page: RecoveryPage) -> None:
        press(page.recover_button)
        await until(lambda: "nothing in it" in page.state.text())
        assert page.recover_button.isVisible()
        assert "nothing in it can be read; it was left as it is" in page.state.text()
        assert page.fresh_button.isVisible()

    assert chosen(qapp, data, scene) is None
    assert data.sessions.read_bytes() == b"x" * 9000


def test_the_shown_commands_are_complete(data: DataFolder) -> None:
    lines = [line.split(":", 1)[1].split("(")[0].strip() for line in remedies(data).splitlines()]
    assert lines == [
        f"elsewise --data-dir '{data.root}' sessions verify",
        f"elsewise --data-dir '{data.root}' sessions recover",
        f"elsewise --data-dir '{data.root}-fresh'",
    ]
    assert remedies(DataFolder.default()).splitlines()[0].endswith("elsewise sessions verify")
