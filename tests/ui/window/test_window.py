"""The window as a whole: opening, folding, closing, and faults."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from ui import (
    DARK,
    LIGHT,
    EngineState,
    MainWindow,
    Scheme,
    SessionChanged,
    SessionView,
    StatusChanged,
    StatusView,
    WindowState,
    apply_theme,
)
from ui.transcript import Mode

Play = Callable[[Scene], None]
Arun = Callable[[Coroutine[object, object, object]], object]


async def closed(window: MainWindow, bench: FakeWorkbench) -> None:
    window.close()
    await until(lambda: bench.closed and not window.isVisible())


def test_the_window_opens_the_first_session_and_shows_model_and_status(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        assert window.parts.top.title.text() == "A spring trip"
        assert window.windowTitle() == "A spring trip – Elsewise"
        await until(lambda: window.parts.top.model.text() == "SmolLM2 135M Instruct")
        assert window.parts.status.engine.text() == "ready"
        assert bench.asked("open_session") == [(TRIP,)]

    in_window(scene)


def opens_slowly(bench: FakeWorkbench, session_id: int, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Makes the load of a session wait for the returned event."""
    may, read = asyncio.Event(), bench.sessions.open

    async def read_later(wanted: int) -> SessionView:
        view = await read(wanted)
        if wanted == session_id:
            await may.wait()
        return view

    monkeypatch.setattr(bench.sessions, "open", read_later)
    return may


def test_the_session_that_was_clicked_last_is_shown(
    in_window: Play, bench: FakeWorkbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(window: MainWindow) -> None:
        may = opens_slowly(bench, 3, monkeypatch)
        window.controller.open(3)
        await until(lambda: bench.asked("open_session")[-1] == (3,))
        # when the shown session is clicked again
        window.controller.open(TRIP)
        await until(lambda: bench.asked("open_session")[-1] == (TRIP,))
        may.set()
        await frames()
        # then it remains shown
        assert window.controller.is_shown(TRIP)

    in_window(scene)


def test_a_session_clicked_while_the_first_one_loads_is_shown(
    arun: Arun, bench: FakeWorkbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        may, window = opens_slowly(bench, TRIP, monkeypatch), MainWindow(bench)
        window.show()
        window.start()
        await until(lambda: bench.asked("open_session") == [(TRIP,)])
        window.controller.open(3)
        may.set()
        await until(lambda: window.controller.shown is not None)
        await until(lambda: bench.asked("models"))  # requested after the load of the session
        await frames()
        assert window.controller.is_shown(3)
        await closed(window, bench)
        await until(lambda: len(window.controller.tasks) == 0)

    arun(scene())


@pytest.mark.slow
def test_a_model_reloaded_with_another_precision_is_shown_with_its_new_label(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        await until(lambda: window.parts.top.model.text() == "SmolLM2 135M Instruct")
        # when it is reloaded with quantised weights
        bench.choices[0] = replace(bench.choices[0], label="int8 · SmolLM2")
        bench.emit(StatusChanged(StatusView(EngineState.STARTING)))
        await until(lambda: window.parts.status.engine.text() != "ready")
        bench.emit(StatusChanged(StatusView(EngineState.READY)))
        await until(lambda: window.parts.top.model.text() == "int8 · SmolLM2")
        # an answer alone requests no models
        asked = len(bench.asked("models"))
        for state in (EngineState.BUSY, EngineState.READY):
            bench.emit(StatusChanged(StatusView(state, "now" if state is EngineState.BUSY else "then")))
            await until(lambda: window.parts.status.engine.text() in ("now", "then"))
            await frames(2)
        assert window.parts.status.engine.text() == "then"
        assert len(bench.asked("models")) == asked

    in_window(scene)


def test_with_an_empty_store_the_window_opens_a_new_session(arun: Arun) -> None:
    bench = FakeWorkbench()

    async def play() -> None:
        window = MainWindow(bench)
        window.show()
        window.start()
        await until(lambda: window.controller.shown is not None)
        assert window.parts.top.title.text() == "New session"
        assert not window.parts.sidebar.tree.isVisible()
        await closed(window, bench)

    arun(play())


def test_panels_fold_from_the_right_and_come_back(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        parts = window.parts

        def shown() -> tuple[bool, bool]:
            return parts.sidebar.isVisible(), parts.inspector.isVisible()

        window.resize(1360, 860)
        await until(lambda: shown() == (True, True))
        window.resize(900, 700)
        await until(lambda: shown() == (True, False))
        await until(lambda: parts.transcript.width() == 900 - 248)
        window.resize(640, 600)
        await until(lambda: shown() == (False, False))
        # a panel that is opened is shown although the window is narrow
        QTest.mouseClick(parts.top.inspector_button, Qt.MouseButton.LeftButton)
        assert shown() == (False, True)
        window.resize(1360, 860)
        await until(lambda: shown() == (True, True))
        # and a panel that was closed stays closed
        window.acts.sidebar.trigger()
        window.resize(900, 700)
        window.resize(1360, 860)
        await frames()
        assert shown() == (False, True)

    in_window(scene)


@pytest.mark.slow
def test_the_composer_is_aligned_with_the_text_in_both_modes(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        parts = window.parts

        def aligned() -> bool:
            return (parts.composer.x(), parts.composer.width()) == (104, parts.transcript.width() - 104 - 44)

        # a grab lays out hidden parts too
        assert not window.grab().isNull()
        bench.emit(SessionChanged(bench.views[TRIP]))
        await frames()
        assert not window.grab().isNull()
        await frames()
        assert aligned()
        for size in ((1360, 860), (1000, 700)):
            window.resize(*size)
            await until(aligned)
            window.acts.read.trigger()
            await until(aligned)
            # tokens that arrive, and another session, change nothing
            bench.emit(SessionChanged(bench.views[TRIP]))
            await frames()
            assert aligned()
            window.acts.tokens.trigger()
            window.controller.open(3)
            await until(lambda: window.parts.top.title.text() == "Why proofs by contradiction")
            window.controller.open(TRIP)
            await frames()
            assert aligned()

    in_window(scene)


def test_read_and_tokens_by_mouse_and_key(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        modes = window.parts.top.modes
        QTest.mouseClick(modes.buttons[Mode.READ], Qt.MouseButton.LeftButton)
        assert window.parts.transcript.mode.value == "read"
        assert window.acts.read.isChecked()
        window.activateWindow()
        await until(window.isActiveWindow)
        QTest.keyClick(window, Qt.Key.Key_2, Qt.KeyboardModifier.ControlModifier)
        assert window.parts.transcript.mode.value == "tokens"
        assert modes.buttons[Mode.TOKENS].isChecked()

    in_window(scene)


@pytest.mark.slow
def test_the_scheme_changes_while_the_window_is_open(in_window: Play, app: QApplication) -> None:
    async def scene(window: MainWindow) -> None:
        def ground() -> str:
            return window.grab().toImage().pixelColor(window.width() // 2, window.height() // 2).name()

        assert ground() == LIGHT.window
        apply_theme(app, Scheme.DARK)
        await frames(1)
        assert ground() == DARK.window
        apply_theme(app, Scheme.LIGHT)

    in_window(scene)


@pytest.mark.slow
def test_closing_during_a_stream_saves_once_and_emits_closed(arun: Arun, bench: FakeWorkbench) -> None:
    async def play() -> None:
        kept: list[WindowState] = []
        window = MainWindow(bench, keep_state=kept.append)
        window.resize(740, 600)  # Qt restores a window only where the screen (800 x 800 here) has room for it
        window.show()
        window.start(TRIP)
        await until(lambda: window.controller.shown is not None)
        ends: list[bool] = []
        window.closed.connect(lambda: ends.append(bench.closed))
        bench.gate = asyncio.Semaphore(1)
        window.controller.answers.regenerate(1)
        sending = window.controller.tasks.run(bench.answers.send(TRIP, "Go"))
        await until(lambda: len(window.controller.tasks) > 0)
        # when it is closed twice
        window.close()
        window.close()
        assert window.isVisible()  # until everything is saved
        await until(lambda: ends)
        # then it was saved first, once, and nothing keeps running
        assert ends == [True]
        assert bench.asked("close") == [()]
        assert sending.done()
        assert not window.isVisible()
        assert len(window.controller.tasks) == 0
        assert [(state.sidebar, state.inspector, state.mode) for state in kept] == [(True, True, "tokens")]
        # and late events change nothing
        bench.emit(SessionChanged(bench.views[TRIP]))
        assert window.controller.events.idle
        # and the next window has the same size
        again = MainWindow(FakeWorkbench(), state=kept[0])
        assert again.size() == window.size()
        again.deleteLater()

    arun(play())


def test_a_window_closes_even_if_saving_fails(arun: Arun, bench: FakeWorkbench, caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> bool:
        bench.closed = True
        raise OSError("disk full")

    async def play() -> None:
        window = MainWindow(bench)
        window.show()
        window.start()
        await until(lambda: window.controller.shown is not None)
        bench.close = broken  # type: ignore[method-assign]  # the fault this test is about
        await closed(window, bench)

    with caplog.at_level(logging.CRITICAL, "ui.window"):
        arun(play())


def test_a_bug_in_a_command_is_logged_and_reported(
    in_window: Play, bench: FakeWorkbench, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(window: MainWindow) -> None:
        def broken(_session: int, _node: int) -> Coroutine[object, object, None]:
            async def fail() -> None:
                raise KeyError("a bug")

            return fail()

        bench.answers.regenerate = broken  # type: ignore[method-assign,assignment]  # the fault this test is about
        window.controller.answers.regenerate(1)
        await until(lambda: "written to the log" in window.parts.composer.notice.words)
        assert any("a command of the window failed" in record.message for record in caplog.records)
        caplog.clear()

    in_window(scene)
