"""The keyboard focus is visible at every Tab stop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QDialog, QWidget

from tests.ui.comparison.comparison_window import compared
from tests.ui.comparison.similar_window import listed
from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.transcript.test_tool_cards import CLOCK, calling, cards_of
from tests.ui.visits import prepare, refused_for_length
from tests.ui.window.test_accessibility import controls, named, ready, stop
from tests.ui.window.test_conversation import finish
from ui import MainWindow, OwnColours
from ui.controller.setup import FORM, MODEL, SAMPLING, SYSTEM, TOOLS
from ui.theme.scheme import current_theme
from ui.transcript import Mode

Play = Callable[[Scene], None]
Panel = Callable[[MainWindow], Awaitable[QWidget]]


def frame_of(widget: QWidget) -> QWidget:
    """The widget that is painted for a control: the control itself, or the composer around its field."""
    parent = widget.parentWidget()
    return parent if parent is not None and parent.objectName() == "composer" else widget


def picture(widget: QWidget) -> QImage:
    return frame_of(widget).grab().toImage()


def stops(top: QWidget) -> Iterator[QWidget]:
    """The Tab stops in order, one full round."""
    seen: set[QWidget] = set()
    for _ in range(3 * len(list(controls(top.window()))) + 20):
        focused = QApplication.focusWidget()
        assert focused is not None, "the keyboard is nowhere"
        QTest.keyClick(focused, Qt.Key.Key_Tab)
        focused = QApplication.focusWidget()
        if focused is not None and focused not in seen:
            seen.add(focused)
            yield focused


def unseen(top: QWidget) -> list[tuple[str, str]]:
    """The stops that look the same with and without the keyboard focus."""
    alike: list[QWidget] = []
    missed = {stop(widget) for widget in controls(top) if widget.isEnabled()}
    for widget in stops(top):
        missed.discard(stop(widget))
        with_keyboard = picture(widget)
        QTest.keyClick(widget, Qt.Key.Key_Tab)
        if QApplication.focusWidget() is not widget and with_keyboard == picture(widget):
            alike.append(widget)
        widget.setFocus(Qt.FocusReason.TabFocusReason)
    assert missed == set()
    return named(alike)


async def the_window(window: MainWindow) -> QWidget:
    return window


async def no_pin(window: MainWindow) -> QWidget:
    window.parts.transcript.tokens.clear_pin()
    return window


async def read_mode(window: MainWindow) -> QWidget:
    window.presenter.set_mode(Mode.READ)
    return window


async def columns(window: MainWindow) -> QWidget:
    window.acts.two_ways.trigger()
    await until(lambda: len(window.parts.columns.cards) == 2)
    await until(lambda: not window.controller.running)
    return window


async def tree(window: MainWindow) -> QWidget:
    window.acts.tree.trigger()
    await until(window.parts.tree.isVisible)
    return window


async def starters(window: MainWindow) -> QWidget:
    window.acts.new_session.trigger()
    await until(window.starters.card.isVisible)
    return window


async def comparison(window: MainWindow) -> QWidget:
    window.controller.tree.compare(41)
    await until(lambda: window.parts.inspector.isVisible())
    return window


async def model_comparison(window: MainWindow) -> QWidget:
    await compared(window)
    return window


async def similar(window: MainWindow) -> QWidget:
    await listed(window)
    return window


async def calls(window: MainWindow) -> QWidget:
    cards = await cards_of(window, calling(bench_of(window), CLOCK), 1)
    field = cards.cards[0].result
    assert field is not None
    field.setPlainText("noon")
    return window


async def too_long(window: MainWindow) -> QWidget:
    await refused_for_length(window, bench_of(window))
    return window


async def context(window: MainWindow) -> QWidget:
    meter = window.parts.composer.meter
    await until(lambda: meter.cost.text() != "")
    QTest.mouseClick(meter.context, Qt.MouseButton.LeftButton)
    await until(meter.panel.isVisible)
    return window


async def figures(window: MainWindow) -> QWidget:
    window.parts.status.figures_button.click()
    await until(window.parts.status.figures.isVisible)
    return window


async def shortcuts(window: MainWindow) -> QWidget:
    window.acts.shortcuts.trigger()
    return next(each for each in window.findChildren(QDialog) if each.isVisible())


async def documentation(window: MainWindow) -> QWidget:
    window.acts.documentation.trigger()
    return next(each for each in window.findChildren(QDialog) if each.isVisible())


def bench_of(window: MainWindow) -> FakeWorkbench:
    bench = window.controller.workbench
    assert isinstance(bench, FakeWorkbench)
    return bench


async def card(window: MainWindow) -> QWidget:
    window.parts.transcript.tokens.card_wanted.emit()
    await until(window.parts.pinned.field.hasFocus)
    return window.parts.pinned


async def find(window: MainWindow) -> QWidget:
    window.acts.find.trigger()
    await until(window.parts.finder.isVisible)
    return window


def inspector(place: int) -> Panel:
    async def tab(window: MainWindow) -> QWidget:
        current_theme().show(OwnColours.HALF, developer=True)
        window.parts.inspector.tabs[place].click()
        return window

    return tab


def popover(page: int) -> Panel:
    async def opened(window: MainWindow) -> QWidget:
        window.popover.open(page)
        await until(lambda: window.popover.model.name.text() != "")
        await until(window.popover.isActiveWindow)
        if page == SAMPLING:
            window.popover.sampling.options.more.click()
        return window.popover

    return opened


def settings(page: int) -> Panel:
    async def opened(window: MainWindow) -> QWidget:
        window.acts.settings.trigger()
        await until(window.settings.isVisible)
        await until(window.settings.isActiveWindow)
        window.settings.show_page(page)
        window.settings.tabs[page].setFocus()
        return window.settings

    return opened


PANELS = (
    the_window, no_pin, read_mode, columns, tree, starters, comparison, model_comparison, similar, calls, too_long, context,
    figures, card, find, shortcuts, documentation,
)  # fmt: skip
CASES = [
    *(pytest.param(panel, id=panel.__name__) for panel in PANELS),
    *(pytest.param(inspector(place), id=f"inspector-{place}") for place in range(1, 5)),
    *(pytest.param(popover(page), id=f"popover-{page}") for page in (MODEL, SYSTEM, SAMPLING, FORM, TOOLS)),
    *(pytest.param(settings(page), id=f"settings-{page}") for page in range(7)),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("panel", CASES)
def test_each_tab_stop_looks_different_with_keyboard_focus(in_window: Play, bench: FakeWorkbench, panel: Panel) -> None:
    prepare(bench)

    async def scene(window: MainWindow) -> None:
        window.presenter.pin(bench.views[TRIP].turns[-1].node_id, 2)
        window.parts.composer.field.setPlainText("A draft")
        await ready(window)
        top = await panel(window)
        await frames()
        top.activateWindow()
        await until(top.isActiveWindow)
        if top is window:
            window.parts.composer.setFocus()
        assert unseen(top) == []

    in_window(scene)


def test_the_focus_frame_of_the_transcript_is_drawn_only_after_tab(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        await ready(window)
        tokens = window.parts.transcript.tokens
        window.presenter.pin(bench.views[TRIP].turns[-1].node_id, 2)
        tokens.setFocus(Qt.FocusReason.MouseFocusReason)
        await frames()
        plain = picture(tokens)
        window.parts.transcript.tokens.card_wanted.emit()
        await until(window.parts.pinned.field.hasFocus)
        QTest.keyClick(window.parts.pinned.field, Qt.Key.Key_Escape)
        assert tokens.hasFocus()
        assert picture(tokens) == plain
        window.parts.composer.setFocus()
        tokens.setFocus(Qt.FocusReason.TabFocusReason)
        assert picture(tokens) != plain

    in_window(scene)
