"""An adapter by its name, in the popover."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.ui.conftest import Scene, until
from tests.ui.fakes import TRIP, FakeWorkbench
from ui import DownloadView, MainWindow

Play = Callable[[Scene], None]


@pytest.mark.slow
def test_an_adapter_is_fetched_by_its_name(in_window: Play, bench: FakeWorkbench) -> None:
    bench.gate = asyncio.Semaphore(0)

    async def scene(window: MainWindow) -> None:
        window.popover.open()
        page = window.popover.model
        part = page.adapter_field
        part.field.setFocus()
        QTest.keyClicks(part.field, "me/pirate")
        QTest.keyClick(part.field, Qt.Key.Key_Return)
        await until(lambda: bench.asked("get_adapter") == [(TRIP, "me/pirate")])
        assert part.state.text() == "getting me/pirate…"
        QTest.mouseClick(part.get_button, Qt.MouseButton.LeftButton)  # a second click while it is fetched has no effect
        bench.show_download(DownloadView("me/pirate", done=1_000_000, total=4_000_000))
        await until(part.bar.isVisible)
        assert part.bar.accessibleDescription() == "25 %"
        bench.gate.release()  # type: ignore[union-attr]  # set above
        await until(lambda: len(page.adapters.rows) == 1)
        assert (part.field.text(), part.bar.isVisible(), part.state.isVisible()) == ("", False, False)
        assert len(bench.asked("get_adapter")) == 1

    in_window(scene)


@pytest.mark.slow
def test_a_refusal_is_shown_under_the_field_and_keeps_the_typed_name(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        window.popover.open()
        part = window.popover.model.adapter_field
        bench.refusal = "org/base@main: a model, no adapter"
        QTest.keyClicks(part.field, "org/base")
        QTest.mouseClick(part.get_button, Qt.MouseButton.LeftButton)
        await until(lambda: part.state.text() == "org/base@main: a model, no adapter")
        assert (part.field.text(), part.get_button.isEnabled()) == ("org/base", True)

    in_window(scene)
