"""The line at the bottom says where the disk has no room for KV."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtWidgets import QApplication

from ui.port import EngineState, StatusView, Tier
from ui.status import StatusBar


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
