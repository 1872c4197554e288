"""The adapters of a session in the popover: added, scaled, moved, removed, each in its own session."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QFileDialog

from tests.ui.conftest import frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.setup.test_setup import LEFT, Play, opened
from ui import AdapterChoice, AdapterLine, MainWindow
from ui.controller.setup import SAMPLING


@pytest.mark.slow
def test_an_adapter_is_added_from_a_folder_scaled_moved_and_removed(
    in_window: Play, bench: FakeWorkbench, tmp_path: Path
) -> None:
    for name in ("pirate", "poet"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text("{}")

    async def scene(window: MainWindow) -> None:
        page = (await opened(window)).model
        for name in ("pirate", "poet"):
            QTest.mouseClick(page.add_button, LEFT)
            dialog = window.findChild(QFileDialog)
            assert dialog is not None
            assert dialog.isVisible()  # and it does not block the event loop
            dialog.setDirectory(str(tmp_path))
            dialog.selectFile(str(tmp_path / name))
            dialog.accept()
            await until(lambda name=name: any(r.choice.name == name for r in page.adapters.rows))  # type: ignore[misc]  # bound now
            await until(lambda: window.findChild(QFileDialog) is None)
        assert window.popover.isVisible()
        first = page.adapters.rows[0]
        first.slider.setFocus()
        for _ in range(5):
            QTest.keyClick(first.slider, Qt.Key.Key_PageDown)
        await until(lambda: bool(bench.asked("set_adapters")))
        assert len(bench.asked("set_adapters")) == 1  # after the slider came to rest
        assert [c.scale for c in bench.asked("set_adapters")[0][1]] == [0.5, 1.0]  # type: ignore[attr-defined]  # choices
        QTest.mouseClick(page.adapters.rows[0].down, LEFT)
        await until(lambda: [r.choice.name for r in page.adapters.rows] == ["poet", "pirate"])
        QTest.mouseClick(page.adapters.rows[1].on, LEFT, pos=QPoint(8, page.adapters.rows[1].on.height() // 2))
        await until(lambda: [c.on for c in bench.asked("set_adapters")[-1][1]] == [True, False])  # type: ignore[attr-defined]  # choices
        QTest.mouseClick(page.adapters.rows[0].remove, LEFT)
        await until(lambda: [r.choice.name for r in page.adapters.rows] == ["pirate"])
        # a folder without an adapter is refused inline
        window.setup.change(lambda w, s: w.add_adapter(s, str(tmp_path)))
        await until(lambda: "holds no adapter" in window.popover.notice.words)

    in_window(scene)


def stacked(bench: FakeWorkbench, session_id: int, scale: float) -> None:
    line = AdapterLine(AdapterChoice("/adapters/pirate", "pirate", scale), "lora", loaded=True)
    bench.keep_setup(session_id, adapters=[line])  # the fake's own


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "shown"), [(0.1234, "0.1234"), (1 / 3, "0.3333"), (1.0, "1.00"), (0.125, "0.125")])
def test_a_scale_keeps_its_digits_until_it_is_moved(in_window: Play, bench: FakeWorkbench, scale: float, shown: str) -> None:
    stacked(bench, TRIP, scale)

    async def scene(window: MainWindow) -> None:
        page = (await opened(window)).model
        row = page.adapters.rows[0]
        assert row.scale.text().replace(",", ".") == shown
        # when another property of the adapter is changed
        QTest.mouseClick(row.on, LEFT, pos=QPoint(8, row.on.height() // 2))
        await until(lambda: bool(bench.asked("set_adapters")))
        assert bench.asked("set_adapters")[0][1] == (AdapterChoice("/adapters/pirate", "pirate", scale, False),)
        # and when a number is typed
        row.scale.setFocus()
        row.scale.selectAll()
        QTest.keyClicks(row.scale, "0.0625")
        QTest.keyClick(row.scale, Qt.Key.Key_Return)
        await until(lambda: len(bench.asked("set_adapters")) == 2)
        assert bench.asked("set_adapters")[1][1][0].scale == 0.0625  # type: ignore[index]  # choices

    in_window(scene)


@pytest.mark.slow
def test_changes_made_just_before_another_session_is_shown_stay_in_their_session(in_window: Play, bench: FakeWorkbench) -> None:
    stacked(bench, TRIP, 1.0)
    stacked(bench, 3, 1.5)

    async def scene(window: MainWindow) -> None:
        popover = await opened(window)
        popover.show_page(SAMPLING)
        field = popover.sampling.options.fields["temperature"]
        field.setFocus()
        field.selectAll()
        QTest.keyClicks(field, "0.3")
        slider = popover.model.adapters.rows[0].slider
        slider.setValue(40)
        # when another session is shown before either change was sent
        window.controller.open(3)
        await until(lambda: popover.model.adapters.rows[0].scale.value() == 1.5)
        QTest.keyClick(field, Qt.Key.Key_Return)
        popover.model.setFocus()
        await until(lambda: bool(bench.asked("set_adapters")))
        await frames(2)
        # then the moved scale is that of the old session, and the unfinished text is discarded
        assert [(call[0], call[1][0].scale) for call in bench.asked("set_adapters")] == [(TRIP, 0.4)]  # type: ignore[index]  # choices
        assert field.text() == ""
        assert not bench.asked("set_option")

    in_window(scene)
