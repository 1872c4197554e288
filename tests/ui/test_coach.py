"""The one thing that a first look is told: over the sample, in Tokens mode, once."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QPushButton

from tests.ui.conftest import frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.test_conversation import finish
from ui import MainWindow, WindowState
from ui.transcript import Mode

Arun = Callable[[Coroutine[object, object, object]], object]
WARMER = "The warmer a word, the less the model expected it. Click one to see what else it might have said."


@pytest.fixture
def sample(bench: FakeWorkbench) -> FakeWorkbench:
    finish(bench)
    bench.views[TRIP] = replace(bench.views[TRIP], is_sample=True)
    return bench


async def look(
    bench: FakeWorkbench, state: WindowState, scene: Callable[[MainWindow], Coroutine[object, object, None]]
) -> WindowState:
    """A window that was left in that state; how it is left then."""
    left: list[WindowState] = []
    window = MainWindow(bench, state=state, keep_state=left.append)
    window.show()
    window.start(TRIP)
    await until(lambda: window.desk.shown is not None)
    try:
        await scene(window)
    finally:
        bench.closed = False
        window.close()
        await until(lambda: bench.closed and not window.isVisible())
    window.deleteLater()
    return left[0]


def press(window: MainWindow, words: str) -> None:
    button = next(b for b in window.parts.coach.findChildren(QPushButton) if b.text() == words)
    QTest.mouseClick(button, Qt.MouseButton.LeftButton)


def test_it_speaks_once_and_shows_what_it_means(arun: Arun, sample: FakeWorkbench) -> None:
    async def first(window: MainWindow) -> None:
        coach = window.parts.coach
        assert coach.words == WARMER
        window.stage.set_mode(Mode.READ)
        assert coach.words == ""
        window.stage.set_mode(Mode.TOKENS)
        assert coach.words == WARMER
        window.parts.show_inspector(False)
        press(window, "Show me one")
        await until(lambda: window.parts.inspector.token.spot is not None)
        assert window.parts.inspector.isVisible()
        assert coach.words == ""

    async def second(window: MainWindow) -> None:
        await frames(1)
        assert window.parts.coach.words == ""

    async def both() -> None:
        state = await look(sample, WindowState(), first)
        assert state.coached
        assert (await look(sample, state, second)).coached

    arun(both())


@pytest.mark.parametrize("how", ["dismissed", "clicked", "not yet"])
def test_it_is_understood_when_somebody_says_so_or_does_it(arun: Arun, sample: FakeWorkbench, how: str) -> None:
    async def scene(window: MainWindow) -> None:
        if how == "dismissed":
            window.parts.coach.dismissed.emit()
        elif how == "clicked":
            tokens = window.parts.transcript.tokens
            box = tokens.token_box(sample.views[TRIP].turns[1].node_id, 3)
            assert box is not None
            QTest.mouseClick(tokens.viewport(), Qt.MouseButton.LeftButton, pos=box.center())
        assert window.parts.coach.isVisible() == (how == "not yet")

    async def play() -> None:
        assert (await look(sample, WindowState(), scene)).coached == (how != "not yet")

    arun(play())


def test_it_does_not_speak_over_a_session_of_ones_own(arun: Arun, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        await frames(1)
        assert window.parts.coach.words == ""

    arun(look(bench, WindowState(), scene))
