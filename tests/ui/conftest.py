"""Qt without a screen, and one loop that runs Qt and asyncio together."""

from __future__ import annotations

import os

# Before PySide6 is imported anywhere. ELSEWISE_TEST_PLATFORM=xcb runs these tests on a screen, with a window manager.
os.environ["QT_QPA_PLATFORM"] = os.environ.get("ELSEWISE_TEST_PLATFORM", "offscreen")

import asyncio
import datetime
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import qasync
from PySide6.QtCore import QCoreApplication, QEvent, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from tests.ui.fakes import FakeWorkbench
from tests.ui.spoken import Vocabulary
from tests.ui.trips import spring_trip
from ui import Contrast, MainWindow, Motion, OwnColours, Scheme, apply_theme
from ui.inspector import Inspector
from ui.theme.text_size import resize_text

T = TypeVar("T")
Run = Callable[[Coroutine[object, object, T]], T]
PATIENCE_SECONDS = 20.0  # how long a condition may take on a busy machine; a condition that holds costs nothing


@pytest.fixture
def app(qapp: QApplication) -> QApplication:
    qapp.setQuitOnLastWindowClosed(False)
    theme = apply_theme(qapp, Scheme.LIGHT, Contrast.SYSTEM, Motion.SYSTEM)  # another test may have left another theme
    theme.show(OwnColours.HALF, developer=False)
    resize_text(qapp, 1.0)
    return qapp


@pytest.fixture
def qtbot(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> QtBot:
    """The plugin's `qtbot`, which also keeps its widgets alive until they are closed.

    The plugin holds widgets weakly, and shows them once more after the test's own references are dropped: a widget collected
    while it is painted crashes the process.
    """
    kept: list[QWidget] = []
    add = qtbot.addWidget

    def keep(widget: QWidget, **how: Any) -> None:
        kept.append(widget)
        add(widget, **how)

    monkeypatch.setattr(qtbot, "addWidget", keep)
    return qtbot


@pytest.fixture
def arun(app: QApplication) -> Iterator[Callable[[Coroutine[object, object, object]], object]]:
    """Runs a coroutine on a loop that is Qt's and asyncio's; tasks left behind fail the test."""
    with asyncio.Runner(loop_factory=lambda: qasync.QEventLoop(app)) as runner:

        async def whole(work: Coroutine[object, object, object]) -> object:
            result = await work
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert not left, f"tasks left behind: {left}"
            return result

        yield lambda work: runner.run(whole(work))


@pytest.fixture(autouse=True)
def clicks_wait_for_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delays a click into the middle of a widget until the layout has placed the widget."""
    click = QTest.mouseClick

    def click_when_laid_out(*args: Any, **kwargs: Any) -> None:
        if "pos" not in kwargs:
            QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)
        click(*args, **kwargs)

    monkeypatch.setattr(QTest, "mouseClick", click_when_laid_out)


@pytest.fixture(autouse=True)
def no_bugs_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """An error that was only logged fails the test; a test that wants one clears the log."""
    yield
    errors = [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert not errors, errors


async def until(condition: Callable[[], object]) -> None:
    """Lets the loop run until the condition holds."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, "the condition never held"
        await asyncio.sleep(0.005)


async def frames(count: int = 3) -> None:
    """Lets a few frames pass, to show that nothing happens."""
    await asyncio.sleep(0.02 * count)


@pytest.fixture
def vocabulary() -> Vocabulary:
    return Vocabulary()


@pytest.fixture
def inspector(app: QApplication, qtbot: QtBot) -> Inspector:
    panel = Inspector()
    qtbot.addWidget(panel)
    panel.resize(332, 800)
    panel.show()
    return panel


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> FakeWorkbench:
    """The spring trip with a fixed clock: at noon, so that a session of a minute ago is listed under today."""
    noon = datetime.datetime(2026, 3, 18, 12, 0).astimezone().timestamp()
    monkeypatch.setattr("ui.sidebar.sessions.time", SimpleNamespace(time=lambda: noon))
    return spring_trip(noon)


Scene = Callable[[MainWindow], Awaitable[None]]


@pytest.fixture
def in_window(
    arun: Callable[[Coroutine[object, object, object]], object], bench: FakeWorkbench, qtbot: QtBot
) -> Callable[[Scene], None]:
    """Opens a window on `bench`, plays a scene, closes it, and checks that none of its work keeps running."""

    async def play(scene: Scene) -> None:
        window = MainWindow(bench)
        window.show()
        window.start()
        await until(lambda: window.controller.shown is not None)
        try:
            await scene(window)
        finally:
            window.close()
            await until(lambda: bench.closed and not window.isVisible())
        await until(lambda: len(window.controller.tasks) == 0)
        assert window.controller.events.idle
        running = [timer for timer in window.findChildren(QTimer) if timer.isActive() and not timer.isSingleShot()]
        assert not running, running
        window.deleteLater()
        await asyncio.sleep(0)

    del qtbot  # requested so that exceptions inside Qt's callbacks fail the test

    def run(scene: Scene) -> None:
        arun(play(scene))

    return run
