"""The window with little room: nothing overlaps, and the most important parts are hidden last."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from ui import MainWindow, SessionChanged
from ui.theme.text_size import resize_text

Play = Callable[[Scene], None]


def place(part: QWidget, window: MainWindow) -> QRect:
    return QRect(part.mapTo(window, QPoint(0, 0)), part.size())


def assert_in_place(window: MainWindow, parts: list[QWidget]) -> None:
    """Asserts that no two visible parts intersect, and that each is inside its parent and the window."""
    shown = [part for part in parts if part.isVisible()]
    for part in shown:
        parent = part.parentWidget()
        assert parent is not None
        assert parent.rect().contains(part.geometry()), part
        assert window.rect().contains(place(part, window)), part
    for one, other in combinations(shown, 2):
        assert not place(one, window).intersects(place(other, window)), (one, other)


@pytest.mark.slow
@pytest.mark.parametrize("width", [560, 700, 900])
@pytest.mark.parametrize("title", ["A spring trip", "A title of a great many words " * 4])
def test_parts_do_not_overlap_whichever_panel_is_opened(in_window: Play, bench: FakeWorkbench, width: int, title: str) -> None:
    name = "the ending in which it rains all the time"
    bench.summaries[TRIP] = replace(bench.summaries[TRIP], title=title)
    bench.views[TRIP] = replace(bench.views[TRIP], title=title, branch_name=name)

    async def scene(window: MainWindow) -> None:
        parts, top, composer = window.parts, window.parts.top, window.parts.composer
        composer.field.setPlainText("Some words")
        await until(lambda: composer.meter.cost.isVisible())
        window.resize(width, 640)
        for ask in (parts.show_inspector, parts.show_sidebar, parts.show_inspector):
            ask(True)
            await frames()
            # one panel is visible: the one that was opened last
            assert parts.sidebar.isVisible() != parts.inspector.isVisible()
            assert parts.inspector.isVisible() == (ask == parts.show_inspector)
            bar = [top.menu_button, top.sidebar_button, top.new_button, top.title, top.branch, top.model, top.modes]
            assert_in_place(window, [*bar, top.inspector_button])
            assert top.new_button.isVisible()
            assert_in_place(window, [parts.sidebar, parts.transcript, parts.inspector, composer])
            assert_in_place(window, [composer.field, composer.meter.cost, composer.meter.context, composer.send_button])
            assert composer.send_button.width() >= composer.send_button.sizeHint().width()
            assert top.title.width() >= min(60, top.title.sizeHint().width())

    in_window(scene)


def test_a_panel_hidden_for_lack_of_room_returns_when_the_window_grows(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        parts = window.parts
        window.resize(700, 640)
        parts.show_sidebar(True)
        parts.show_inspector(True)
        assert not parts.sidebar.isVisible()
        window.resize(1360, 860)
        await until(lambda: parts.sidebar.isVisible() and parts.inspector.isVisible())
        # and one is hidden when the window narrows again, although the width crosses no other threshold
        window.resize(1000, 700)
        parts.show_inspector(True)
        assert parts.sidebar.isVisible()
        window.resize(900, 700)
        await until(lambda: not parts.inspector.isVisible())

    in_window(scene)


def test_the_title_and_the_branch_give_way_before_the_models_name(in_window: Play, bench: FakeWorkbench) -> None:
    title = "What the lighthouse keeper wrote about cats and the sea"

    async def scene(window: MainWindow) -> None:
        top, label = window.parts.top, "SmolLM2 135M Instruct"
        await until(lambda: top.model.text() == label)
        bench.emit(SessionChanged(replace(bench.views[TRIP], title=title)))
        window.resize(900, 640)
        await until(lambda: top.title.width() < top.title.sizeHint().width())
        assert top.model.text() == label
        assert top.branch.isVisible()
        assert title in top.title.toolTip()
        # in a smaller window the branch is hidden, then the model's name is cut, with an ellipsis and a tooltip
        window.resize(560, 640)
        await until(lambda: not top.branch.isVisible() and top.model.text().endswith("…"))
        assert top.model.text().startswith("SmolLM2 1")
        assert label in top.model.toolTip()
        # and with enough room everything is visible again
        window.resize(1360, 860)
        await until(lambda: top.model.text() == label and top.title.width() >= top.title.sizeHint().width())
        assert top.branch.isVisible()

    in_window(scene)


@pytest.mark.slow
def test_the_bar_fits_at_any_text_size(in_window: Play, bench: FakeWorkbench, app: QApplication) -> None:
    title = "What the lighthouse keeper wrote about cats and the sea"
    bench.views[TRIP] = replace(bench.views[TRIP], title=title, branch_name="the ending in which it rains all the time")

    async def scene(window: MainWindow) -> None:
        top, status = window.parts.top, window.parts.status
        for width, percent in ((900, 200), (560, 200), (700, 150), (1100, 200), (900, 100)):
            window.resize(width, 640)
            resize_text(app, percent / 100)
            await frames()
            bar = [top.menu_button, top.sidebar_button, top.new_button, top.title, top.branch, top.model, top.modes]
            assert_in_place(window, [*bar, top.inspector_button])
            assert top.model.text().startswith("SmolLM"), (width, percent)
            assert all(b.width() >= b.sizeHint().width() for b in top.modes.buttons.values()), (width, percent)
            assert top.title.shown == "" or len(top.title.shown) > 4, (width, percent)
            assert top.menu_button.isVisible()
            assert status.engine.shown == status.engine.text(), (width, percent)  # facts beside it are left out first
        assert top.new_button.isVisible()

    in_window(scene)


@pytest.mark.slow
def test_the_recordings_hint_is_cut_with_an_ellipsis(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        composer.set_recording(True)
        for width in (900, 560):
            window.resize(width, 640)
            window.parts.show_inspector(True)
            await frames()
            hint = composer.field.placeholderText()
            assert composer.field.fontMetrics().horizontalAdvance(hint) <= composer.field.viewport().width()
            assert hint.endswith(("…", "starts a copy"))

    in_window(scene)


@pytest.mark.slow
@pytest.mark.parametrize("title", ["A spring trip", "What the lighthouse keeper wrote about cats and the sea"])
@pytest.mark.parametrize("percent", [100, 200])
def test_the_name_of_a_branch_is_readable_or_hidden(
    in_window: Play, bench: FakeWorkbench, app: QApplication, title: str, percent: int
) -> None:
    name = "the ending in which it rains"
    bench.summaries[TRIP] = replace(bench.summaries[TRIP], title=title)
    bench.views[TRIP] = replace(bench.views[TRIP], title=title, branch_name=name)

    async def scene(window: MainWindow) -> None:
        chip = window.parts.top.branch
        for width in (1440, 1100, 900, 800, 700, 560):
            window.resize(width, 640)
            resize_text(app, percent / 100)
            await frames()
            # no single letters: several letters of the name, or only its arrows, with the full name in the tooltip
            assert chip.name.shown == "" or len(chip.name.shown) > 4, (width, chip.name.shown)
            assert name in chip.toolTip()
            if width >= 900 and percent == 100:
                assert chip.name.shown.startswith("the en"), width

    in_window(scene)


@pytest.mark.slow
@pytest.mark.parametrize("percent", [100, 200])
def test_no_panel_extends_beyond_the_window_at_any_text_size(in_window: Play, app: QApplication, percent: int) -> None:
    async def scene(window: MainWindow) -> None:
        parts = window.parts
        resize_text(app, percent / 100)
        for width in (1100, 900):
            window.resize(width, 860)
            for ask in (parts.show_inspector, parts.show_sidebar, parts.show_inspector):
                ask(True)
                await frames(2)
                for part in (parts.sidebar, parts.transcript, parts.composer, parts.inspector, parts.status, parts.top):
                    assert not part.isVisible() or window.rect().contains(place(part, window)), (width, part)

    in_window(scene)


@pytest.mark.slow
def test_the_sidebar_returns_when_the_inspector_is_closed(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        window.resize(900, 700)
        await until(lambda: window.parts.sidebar.isVisible() and not window.parts.inspector.isVisible())
        QTest.mouseClick(window.parts.top.inspector_button, Qt.MouseButton.LeftButton)
        assert not window.parts.sidebar.isVisible()
        QTest.mouseClick(window.parts.top.inspector_button, Qt.MouseButton.LeftButton)
        assert window.parts.sidebar.isVisible()
        # a sidebar that was closed by hand stays closed
        QTest.mouseClick(window.parts.top.sidebar_button, Qt.MouseButton.LeftButton)
        for _ in range(2):
            QTest.mouseClick(window.parts.top.inspector_button, Qt.MouseButton.LeftButton)
        assert not window.parts.sidebar.isVisible()

    in_window(scene)


def test_the_name_of_a_branch_is_shown_whole_when_it_changes_in_a_wide_window(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        window.resize(1440, 860)
        chip = window.parts.top.branch
        for name in ("", "the ending", "the ending in which it rains"):
            bench.emit(SessionChanged(replace(bench.views[TRIP], branch_name=name)))
            await until(lambda name=name: chip.name.shown == name)  # type: ignore[misc]  # mypy cannot infer its type

    in_window(scene)
