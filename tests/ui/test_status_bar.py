"""The line at the bottom says where the disk has no room for KV."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import FakeWorkbench
from ui import MainWindow
from ui.port import EngineState, StatusView, Tier
from ui.status import StatusBar

Play = Callable[[Scene], None]


@pytest.mark.parametrize("width", [1440, 700])
def test_a_full_disk_stands_there_with_the_reason_until_there_is_room(qapp: QApplication, width: int) -> None:
    bar = StatusBar()
    bar.resize(width, 26)
    bar.show()
    tiers = {Tier.WARM: 12, Tier.DISK: 0, Tier.COLD: 3}
    plain = StatusView(EngineState.READY, "", 20.0, 0.3, 900, 12, 10**8, 10**9, tiers)
    bar.show_status(replace(plain, disk_note="pinned sessions fill it"))
    qapp.processEvents()
    shown = [fact for fact in bar.facts if fact.isVisible() and fact.text()]
    assert shown[0].text() == "KV on disk is full"
    assert (shown[0].toolTip(), shown[0].accessibleDescription()) == ("pinned sessions fill it",) * 2
    bar.show_status(plain)
    assert not [fact for fact in bar.facts if "full" in fact.text() or fact.toolTip()]
    bar.close()


def test_a_model_that_is_not_here_has_one_action_beside_it(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        bar = window.parts.status
        assert bar.choose.isHidden()
        # when the model cannot be loaded
        bar.show_status(StatusView(EngineState.NONE, "smollm2 is not on this computer"))
        await frames()
        assert bar.engine.shown == "smollm2 is not on this computer"
        assert bar.choose.x() > bar.engine.x() + bar.engine.fontMetrics().horizontalAdvance(bar.engine.text()) + 8
        asked: list[object] = []
        window.desk.models.menu_ready.connect(lambda *given: asked.append(given))
        QTest.mouseClick(bar.choose, Qt.MouseButton.LeftButton)
        # then the models there are come up, and with one of them the action is gone
        await until(lambda: asked)
        bar.show_status(StatusView(EngineState.STARTING, "loading"))
        assert bar.choose.isHidden()
        popup = QApplication.activePopupWidget()
        if popup is not None:
            popup.close()

    in_window(scene)
