"""By default the window shows little: half colours in the user's text, *ready*, and messages that disappear by themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QAccessible
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLabel

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.window.test_conversation import finish
from ui import EngineState, MainWindow, OwnColours, StatusChanged, StatusView
from ui.inspector.cache import CacheTab
from ui.settings import APPEARANCE
from ui.theme.scheme import current_theme
from ui.transcript.pane.meta import MetaLine

Play = Callable[[Scene], None]
LEFT = Qt.MouseButton.LeftButton


def choose(window: MainWindow, row: str, key: Qt.Key) -> None:
    combo = window.settings.appearance.combos[row]
    combo.setFocus()
    QTest.keyClick(combo, key)


@pytest.mark.slow
def test_colours_and_the_developer_view_are_rows_of_the_settings(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        inspector, tokens = window.parts.inspector, window.parts.transcript.tokens
        window.parts.show_inspector(True)

        def line() -> list[str]:
            meta: MetaLine = tokens.page.boxes[1].meta
            return [part.text for part in meta.parts(hovered=False)]

        assert [tab.text() for tab in inspector.tabs if tab.isVisible()] == ["Token", "Path", "Why", "Depth"]
        assert not any("reused" in words for words in line())
        assert not window.acts.clear_cache.isVisible()
        QTest.keyClick(window, Qt.Key.Key_Comma, Qt.KeyboardModifier.ControlModifier)
        await until(lambda: window.settings.isVisible() and window.settings.data.folder.text() != "")
        QTest.mouseClick(window.settings.tabs[APPEARANCE], LEFT)
        choose(window, "developer", Qt.Key.Key_Down)
        await until(lambda: ("developer", "on") in bench.asked("change_setting"))
        await until(lambda: inspector.tabs[2].isVisible())
        assert "reused 312, computed 1" in line()
        assert window.acts.clear_cache.isVisible()
        assert window.acts.clear_cache.isEnabled()
        QTest.mouseClick(inspector.tabs[2], LEFT)
        await until(inspector.page(CacheTab).isVisible)
        choose(window, "developer", Qt.Key.Key_Up)
        await until(inspector.token.isVisible)  # hiding the tab in front shows another one
        assert not inspector.tabs[2].isVisible()
        assert not window.acts.clear_cache.isVisible()
        assert not any("reused" in words for words in line())
        choose(window, "own_colours", Qt.Key.Key_Down)
        await until(lambda: current_theme().own_colours is OwnColours.FULL)
        assert bench.asked("change_setting")[-1] == ("own_colours", "full")

    in_window(scene)


def test_the_status_bar_shows_ready_or_the_speed_and_the_other_figures_on_request(
    in_window: Play, bench: FakeWorkbench
) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        bar = window.parts.status

        def shown() -> list[str]:
            return [label.text() for label in bar.findChildren(QLabel) if label.isVisible() and label.text()]

        await until(lambda: shown() == ["ready"])
        held = bench.status
        bench.emit(StatusChanged(StatusView(EngineState.BUSY, tokens_per_second=37.0)))
        await until(lambda: shown() == ["answering", "37 tok/s"])
        bench.emit(StatusChanged(held))
        await until(lambda: shown() == ["ready"])
        assert not bar.figures.isVisible()
        QTest.mouseClick(bar.figures_button, LEFT)
        assert bar.figures.isVisible()
        said = {"speed": "41 tok/s", "first token": "0.18 s", "reused": "312 of 313", "computed": "1 of 313"}
        assert bar.figures.answer.texts == said
        assert bar.figures.held.texts["KV"] == "14 MB of 2 GB"
        explained = [label.parentWidget() for label in bar.figures.findChildren(QLabel) if label.text() in said]
        assert len(explained) == 4
        assert all(cell is not None and len(cell.toolTip()) > 20 for cell in explained)
        QTest.keyClick(bar.figures, Qt.Key.Key_Escape)
        assert not bar.figures.isVisible()
        bar.setLayoutDirection(Qt.LayoutDirection.RightToLeft)
        await frames()
        QTest.mouseClick(bar.figures_button, LEFT)
        assert window.geometry().contains(bar.figures.geometry())
        QTest.keyClick(bar.figures, Qt.Key.Key_Escape)

    in_window(scene)


@pytest.mark.slow
def test_messages_of_completed_actions_disappear_and_are_not_styled_as_warnings(
    in_window: Play, bench: FakeWorkbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ui.window.toast.SHOWN_MS", 60)
    heard: list[str] = []
    monkeypatch.setattr(QAccessible, "updateAccessibility", lambda event: heard.append(event.message()))

    async def scene(window: MainWindow) -> None:
        notice, toast = window.parts.composer.notice, window.parts.toast
        window.transfers.export(TRIP, next(iter(window.transfers.formats)), tmp_path / "a.out")
        await until(lambda: toast.words.startswith("exported to"))
        assert not toast.action.isVisible()
        assert notice.words == ""
        assert heard == [toast.words]  # a screen reader reads it before it disappears
        await until(lambda: toast.words == "")
        # in the settings likewise, but a refusal stays
        window.settings.open()
        page = window.settings.models
        page.notice.tell("done")
        assert page.notice.property("kind") == "done"
        page.notice.say("refused")
        assert page.notice.property("kind") == "notice"
        assert heard[-2:] == ["done", "refused"]

    in_window(scene)


@pytest.mark.slow
def test_a_notice_of_success_disappears_by_itself(in_window: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ui.widgets.labels.TOLD_MS", 60)

    async def scene(window: MainWindow) -> None:
        window.settings.open()
        notice = window.settings.models.notice
        notice.tell("some is installed")
        assert notice.words == "some is installed"
        await until(lambda: notice.words == "")
        # a notice that replaced it stays
        notice.tell("done")
        notice.say("the disk is full")
        await frames(8)
        assert notice.words == "the disk is full"
        QTest.mouseMove(notice, QPoint(2, 2))

    in_window(scene)
