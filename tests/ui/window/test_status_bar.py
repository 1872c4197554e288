"""The status bar: a full disk, a missing model, the progress of a load."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.window.test_conversation import finish
from ui import MainWindow, StatusChanged
from ui.port import EngineState, StatusView, Tier
from ui.window.status import StatusBar

Play = Callable[[Scene], None]


@pytest.mark.parametrize("width", [1440, 700])
def test_a_full_disk_is_shown_with_the_reason_until_there_is_room(qapp: QApplication, width: int) -> None:
    bar = StatusBar()
    bar.resize(width, 26)
    bar.show()
    tiers = {Tier.WARM: 12, Tier.DISK: 0, Tier.COLD: 3}
    plain = StatusView(EngineState.READY, "", 20.0, 0.3, 900, 12, 10**8, 10**9, tiers)
    bar.show_status(replace(plain, disk_note="pinned sessions fill it"))
    qapp.processEvents()
    assert bar.disk.isVisible()
    assert bar.disk.text() == "KV on disk is full"
    assert "pinned sessions fill it" in bar.disk.toolTip()
    assert bar.disk.accessibleDescription() == "pinned sessions fill it"
    bar.show_status(plain)
    assert not bar.disk.isVisible()
    bar.close()


def test_the_notice_of_a_missing_model_has_one_action_beside_it(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        bar = window.parts.status
        assert bar.choose.isHidden()
        # when the model cannot be loaded
        bar.show_status(StatusView(EngineState.NONE, "smollm2 is not on this computer"))
        await frames()
        assert bar.engine.shown == "smollm2 is not on this computer"
        assert bar.choose.x() > bar.engine.x() + bar.engine.fontMetrics().horizontalAdvance(bar.engine.text()) + 8
        asked: list[object] = []
        window.controller.models.menu_ready.connect(lambda *given: asked.append(given))
        QTest.mouseClick(bar.choose, Qt.MouseButton.LeftButton)
        # then the menu of models opens, and while a model loads the action is hidden
        await until(lambda: asked)
        bar.show_status(StatusView(EngineState.STARTING, "loading"))
        assert bar.choose.isHidden()
        popup = QApplication.activePopupWidget()
        if popup is not None:
            popup.close()

    in_window(scene)


def test_without_a_model_actions_that_need_one_are_disabled_and_others_work(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        acts, token = window.acts, window.parts.inspector.token
        window.presenter.pin(bench.views[TRIP].turns[1].node_id, 3)
        asking = (acts.regenerate, acts.compare_model, acts.beams, acts.two_ways, acts.four_ways, acts.eight_ways)
        await until(lambda: all(act.isEnabled() for act in asking) and token.draws.isVisible())
        # when the model cannot be loaded
        bench.emit(StatusChanged(StatusView(EngineState.NONE, "smollm2 is not on this computer")))
        await until(window.parts.status.choose.isVisible)
        assert not any(act.isEnabled() for act in asking)
        assert not token.draws.isVisible()
        assert not token.beam_rows.isVisible()
        # then finding, branching and stepping to uncertain tokens still work
        others = [row for row in token.alternatives.buttons if row.alternative is not None and not row.alternative.chosen]
        assert others
        assert all(row.isEnabled() for row in others)
        assert acts.find.isEnabled()
        assert acts.uncertain.isEnabled()
        # and all actions are enabled again once a model is loaded
        bench.emit(StatusChanged(StatusView(EngineState.READY)))
        await until(lambda: all(act.isEnabled() for act in asking) and token.draws.isVisible())

    in_window(scene)


@pytest.mark.slow
def test_without_a_model_a_message_can_be_written_and_sent_once_a_model_is_loaded(
    in_window: Play, bench: FakeWorkbench
) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        bench.emit(StatusChanged(StatusView(EngineState.NONE, "smollm2 is not on this computer")))
        await until(window.parts.status.choose.isVisible)
        # when a message is written and Return pressed
        QTest.keyClicks(composer.field, "and then?")
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await frames()
        # then nothing is sent, the draft is kept, and the reason is shown
        said = "smollm2 is not on this computer: choose a model first"
        assert (composer.draft, bench.asked("send")) == ("and then?", [])
        assert composer.meter.busy.text() == said
        assert not composer.send_button.isEnabled()
        assert composer.send_button.accessibleDescription() == said
        # and with a model it is sent
        bench.emit(StatusChanged(StatusView(EngineState.READY)))
        await until(composer.send_button.isEnabled)
        assert not composer.meter.busy.text()
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await until(lambda: bench.asked("send") == [(TRIP, "and then?")])

    in_window(scene)


def test_loading_shows_its_stage_and_progress_and_can_be_stopped(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        bar = window.parts.status
        assert not bar.loading.isVisible()
        # when weights are being read
        reading = StatusView(EngineState.STARTING, "loading smollm2: reading weights, 68 of 272", load_share=0.25)
        bench.emit(StatusChanged(reading))
        await until(bar.loading.isVisible)
        assert bar.engine.text() == reading.reason
        assert (bar.loading.bar.accessibleName(), bar.loading.bar.accessibleDescription()) == ("Weights read", "25 %")
        # then a key stops it, its progress is hidden, and the keyboard focus moves to a visible widget
        bar.loading.stop_button.setFocus()
        QTest.keyClick(bar.loading.stop_button, Qt.Key.Key_Space)
        await until(lambda: bench.asked("stop_loading") == [()])
        bench.emit(StatusChanged(StatusView(EngineState.NONE)))
        await until(lambda: not bar.loading.isVisible())
        focus = QApplication.focusWidget()
        assert focus is not None
        assert focus.isVisible()

    in_window(scene)
