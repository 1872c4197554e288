"""Similar turns: stopped, failed, without a model, and while the session changes."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMenu

from tests.ui.comparison.similar_window import Key, Play, ask, listed, says
from tests.ui.conftest import frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from ui import EngineState, MainWindow, SessionChanged, StatusChanged, StatusView
from ui.widgets.labels import plain_tooltip


@pytest.mark.slow
def test_closing_the_panel_stops_a_running_comparison(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        bench.gate = asyncio.Semaphore(0)
        panel = window.parts.similar
        for close in ("x", "escape"):
            ask(window)
            await until(lambda: panel.note.text() == "comparing turns: 0 of 3")
            assert panel.close_button.accessibleName() == "Stop comparing"
            if close == "x":
                QTest.mouseClick(panel.close_button, Qt.MouseButton.LeftButton)
            else:
                QTest.keyClick(panel.list, Key.Key_Escape)
            assert panel.isHidden()
            await until(lambda: len(window.controller.tasks) == 0)
        bench.gate.release()
        await frames()
        assert panel.isHidden()

    in_window(scene)


def test_a_failed_comparison_shows_the_reason_and_one_action(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.similar
        await until(lambda: bool(bench.asked("models")))
        await frames()
        bench.refusal = "the engine stopped; 2 of 3 turns are done and remembered. Try again to restart it"
        ask(window)
        await until(lambda: panel.note.text().startswith("the engine stopped"))
        assert panel.action.text() == "Try again"
        assert panel.accessibleName().endswith("Try again to restart it")
        QTest.mouseClick(panel.action, Qt.MouseButton.LeftButton)
        await until(lambda: bool(panel.list.rows.rows))
        assert panel.action.isHidden()
        # without a model, one can be chosen
        bench.lacks_model = "smollm2 is not on this computer"
        ask(window)
        await until(lambda: panel.note.text() == "smollm2 is not on this computer")
        assert panel.list.rows.rows == ()
        assert panel.action.text() == "Choose a model"
        QTest.mouseClick(panel.action, Qt.MouseButton.LeftButton)
        await until(lambda: isinstance(QApplication.activePopupWidget(), QMenu))
        menu = QApplication.activePopupWidget()
        assert menu is not None
        menu.close()
        # and once it is loaded, the comparison starts at once
        bench.lacks_model = ""
        for state in (EngineState.STARTING, EngineState.READY):
            bench.status = StatusView(state)
            bench.emit(StatusChanged(bench.status))
            await until(partial(says, window, state))
        await until(lambda: bool(panel.list.rows.rows))

    in_window(scene)


def test_without_a_model_or_a_turn_the_menu_entry_is_disabled(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        act = window.acts.similar
        assert act.isEnabled()
        bench.status = StatusView(EngineState.NONE, "smollm2 is not on this computer")
        bench.emit(StatusChanged(bench.status))
        await until(lambda: not act.isEnabled())
        # the reason, and the choice of another model, are in the status bar
        assert act.statusTip() == "smollm2 is not on this computer"
        assert act.toolTip() == plain_tooltip(act.statusTip())
        assert window.parts.status.choose.isVisible()
        bench.status = StatusView(EngineState.NONE)
        bench.emit(StatusChanged(bench.status))
        await until(act.isEnabled)
        window.acts.new_session.trigger()
        await until(lambda: not act.isEnabled())

    in_window(scene)


def test_the_list_follows_its_session_and_closes_with_it(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = await listed(window)
        # when a turn is added, then it is in the list
        view = bench.views[TRIP]
        bench.views[TRIP] = replace(view, turns=(*view.turns, bench.turn("user", ["And", " then", "?"])))
        bench.emit(SessionChanged(bench.views[TRIP]))
        await until(lambda: len(panel.list.rows.rows) == 4)
        assert panel.list.rows.rows[0].words == "And then?"
        # when nothing but the title changed, no request is sent
        asked = len(bench.asked("similar_turns"))
        bench.emit(SessionChanged(replace(bench.views[TRIP], title="Another title")))
        await until(lambda: window.parts.top.title.text() == "Another title")
        await frames()
        assert len(bench.asked("similar_turns")) == asked
        # when another session is shown, the panel closes
        window.controller.open(3)
        await until(panel.isHidden)

    in_window(scene)
