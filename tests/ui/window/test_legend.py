"""The legend: the measure that the colours show, chosen by mouse and keys, saved for the next window."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMenu

from tests.ui.conftest import Scene, until
from tests.ui.fakes import FakeWorkbench
from ui import MainWindow, WindowState
from ui.transcript import Measure, Mode
from ui.window.legend import ranges

Play = Callable[[Scene], None]


def test_the_measure_is_chosen_from_the_legend(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        legend = window.parts.status.legend
        QTest.mouseClick(legend, Qt.MouseButton.LeftButton)
        await until(lambda: isinstance(QApplication.activePopupWidget(), QMenu))
        menu = QApplication.activePopupWidget()
        assert isinstance(menu, QMenu)
        entries = {action.text().split("\t")[0]: action for action in menu.actions()}
        # then all measures are listed, the current one is checked, and its steps can be read but not chosen
        assert [name for name, action in entries.items() if action.isChecked()] == ["surprise"]
        assert {"surprise", "probability", "rank", "entropy", "margin"} < set(entries)
        assert not any(entries[words].isEnabled() for words in ranges(Measure.SURPRISAL))
        # when another is chosen
        QTest.mouseClick(menu, Qt.MouseButton.LeftButton, pos=menu.actionGeometry(entries["entropy"]).center())
        # then the tokens, the legend and the menu bar agree
        assert window.parts.transcript.measure is Measure.ENTROPY
        assert legend.measure is Measure.ENTROPY
        assert "entropy" in legend.accessibleName()
        assert window.acts.colours[Measure.ENTROPY].isChecked()
        await until(lambda: QApplication.activePopupWidget() is None)

    in_window(scene)


def test_the_legend_is_hidden_in_read_mode(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        window.presenter.set_mode(Mode.READ)
        assert window.parts.status.legend.isHidden()
        window.presenter.set_mode(Mode.TOKENS)
        assert not window.parts.status.legend.isHidden()

    in_window(scene)


@pytest.mark.slow
def test_the_measure_is_restored_in_the_next_window(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(_: MainWindow) -> None:
        window = MainWindow(bench, state=WindowState(colours="margin"))
        assert window.parts.transcript.measure is Measure.MARGIN
        window.deleteLater()
        for colours in ("a newer version's", "layer"):  # measures that are not restored
            other = MainWindow(bench, state=WindowState(colours=colours))
            assert other.parts.transcript.measure is Measure.SURPRISAL
            other.deleteLater()

    in_window(scene)


def test_ranges_read_as_the_steps_are() -> None:
    assert ranges(Measure.RANK) == ["1", "2", "3 to 5", "6 to 10", "11 to 100", "101 and more"]
    assert ranges(Measure.PROBABILITY)[0] == "0.9 and more"
    assert ranges(Measure.MARGIN)[-1] == "below 0.2 bits"
    assert ranges(Measure.LAYER) == [
        "0 to 40 % of the layers",
        "40 to 60 % of the layers",
        "60 to 80 % of the layers",
        "80 to 95 % of the layers",
        "95 % of the layers and more",
        "the token does not lead",
    ]
