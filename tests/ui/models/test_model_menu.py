"""The menu of models under the model's name, and the notice about the model that wrote a session."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMenu, QPushButton

from tests.ui.conftest import Scene, frames, until
from tests.ui.fake_state import FIT
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.window.test_conversation import finish
from ui import EngineState, MainWindow, StatusChanged
from ui.models.wording import used_words

Play = Callable[[Scene], None]
LEFT = Qt.MouseButton.LeftButton
CONTROL, SHIFT = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.ShiftModifier


async def listed(window: MainWindow) -> QMenu:
    QTest.mouseClick(window.parts.top.model, LEFT)
    await until(lambda: isinstance(QApplication.activePopupWidget(), QMenu))
    menu = QApplication.activePopupWidget()
    assert isinstance(menu, QMenu)
    return menu


def words(menu: QMenu, name: str) -> str:
    return next(action.text() for action in menu.actions() if action.text().startswith(name))


@pytest.mark.slow
def test_the_name_lists_the_models_with_fit_and_last_use(in_window: Play, bench: FakeWorkbench) -> None:
    bench.choices[1] = replace(bench.choices[1], last_used=time.time() - 3 * 86_400)
    bench.shelf_fit = replace(FIT, weights=32_000_000_000, longest=0)

    async def scene(window: MainWindow) -> None:
        menu = await listed(window)
        await until(lambda: words(menu, "Qwen3").endswith("does not fit · used 3 days ago"))
        assert words(menu, "SmolLM2").split("\t")[1].startswith(bench.choices[0].detail)
        assert [a.isChecked() for a in menu.actions() if a.isCheckable()][:2] == [True, False]
        QTest.keyClick(menu, Qt.Key.Key_Escape)
        await until(lambda: QApplication.activePopupWidget() is None)
        # one entry opens the settings of the session
        menu = await listed(window)
        entry = next(action for action in menu.actions() if action.text().startswith("Model and adapters"))
        QTest.mouseClick(menu, LEFT, pos=menu.actionGeometry(entry).center())
        await until(lambda: window.popover.isVisible())

    in_window(scene)


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the time zone is the system's")
def test_days_of_last_use_are_counted_in_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        evening = time.mktime((2026, 3, 18, 21, 0, 0, 0, 0, -1))  # which is the next day in UTC
        assert used_words(evening - 5 * 3600, evening) == "used today"
        assert used_words(evening - 22 * 3600, evening) == "used yesterday"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_long_name_does_not_widen_the_menu_beyond_a_small_window(in_window: Play, bench: FakeWorkbench) -> None:
    name = "org/通义千问 🐈‍⬛ with a very long name that goes on and on until nothing is left of the window-Q4"
    bench.choices[1] = replace(bench.choices[1], label=name)

    async def scene(window: MainWindow) -> None:
        window.resize(700, 500)
        menu = await listed(window)
        assert menu.width() <= window.width()
        long = next(action for action in menu.actions() if action.text().startswith("org/"))
        assert long.text().partition("\t")[0].endswith("window-Q4")  # the end of the name, which distinguishes it, is kept
        assert name in long.toolTip()
        menu.close()

    in_window(scene)


def test_a_shortcut_of_the_window_closes_the_menu_and_runs_its_action(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        menu = await listed(window)
        QTest.keyClick(menu, Qt.Key.Key_N, CONTROL)
        await until(lambda: QApplication.activePopupWidget() is None)
        await until(lambda: window.controller.shown is not None and window.controller.shown.session_id != TRIP)

    in_window(scene)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["send", "new", "choose"])
def test_the_popover_closes_when_the_session_or_the_model_changes_or_a_message_is_sent(
    in_window: Play, bench: FakeWorkbench, way: str
) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        QTest.keyClick(window, Qt.Key.Key_M, CONTROL | SHIFT)
        assert window.popover.isVisible()
        if way == "send":
            QTest.keyClicks(window.parts.composer.field, "and then?")
            await until(window.parts.composer.send_button.isEnabled)
            QTest.keyClick(window.parts.composer.field, Qt.Key.Key_Return)
        elif way == "new":
            QTest.keyClick(window, Qt.Key.Key_N, CONTROL)
        else:
            QTest.mouseClick(window.popover.model.change_button, LEFT)
            await until(lambda: isinstance(QApplication.activePopupWidget(), QMenu))
            menu = QApplication.activePopupWidget()
            assert isinstance(menu, QMenu)
            entry = next(action for action in menu.actions() if action.text().startswith("Qwen3"))
            QTest.mouseClick(menu, LEFT, pos=menu.actionGeometry(entry).center())
        await until(lambda: not window.popover.isVisible())

    in_window(scene)


@pytest.mark.slow
def test_a_model_other_than_the_one_that_wrote_the_session_is_reported_once(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        writer, told = window.parts.writer, replace(bench.status, engine=EngineState.READY, model="Qwen3", written_by="SmolLM2")
        assert writer.words == ""
        bench.emit(StatusChanged(told))
        await until(lambda: writer.words == "written with SmolLM2; Qwen3 would continue it")
        writer.dismiss()
        bench.emit(StatusChanged(replace(told, tokens_per_second=40.0)))
        await frames()
        assert writer.words == ""
        # another pair of models is reported, and the menu is one click away
        bench.emit(StatusChanged(replace(told, model="Llama")))
        await until(lambda: writer.words == "written with SmolLM2; Llama would continue it")
        button = next(each for each in writer.findChildren(QPushButton) if each.text() == "Choose a model")
        QTest.mouseClick(button, LEFT)
        await until(lambda: isinstance(QApplication.activePopupWidget(), QMenu))
        menu = QApplication.activePopupWidget()
        assert menu is not None
        menu.close()
        # a file may contain any name: markup and control characters in it have no effect
        bench.emit(StatusChanged(replace(told, written_by="\u202e<b>evil")))
        await until(lambda: writer.words == "written with RLO<b>evil; Qwen3 would continue it")
        bench.emit(StatusChanged(replace(told, model="SmolLM2", written_by="")))
        await frames()
        assert writer.words == ""

    in_window(scene)


@pytest.mark.slow
def test_models_that_are_installed_are_not_proposed(in_window: Play, bench: FakeWorkbench) -> None:
    bench.proposed = [replace(bench.proposed[0], here=True), *bench.proposed[1:]]

    async def scene(window: MainWindow) -> None:
        window.settings.open_models(get=True)
        offers = window.settings.models.get.offers
        await until(lambda: bool(offers.rows))
        assert [row.offer.name for row in offers.rows] == [offer.name for offer in bench.proposed[1:]]

    in_window(scene)
