"""Opens all parts of the window one after the other, for tests that check each of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QWidget

from tests.ui.comparison.comparison_window import compared
from tests.ui.comparison.similar_window import ROME, listed
from tests.ui.composer.test_before_send import PARTS, counting
from tests.ui.conftest import frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.inspector.test_depth import layers_of
from tests.ui.transcript.test_tool_cards import CLOCK, calling, cards_of
from tests.ui.window.test_conversation import finish
from ui import Composition, EngineState, MainWindow, OwnColours, StatusChanged, StatusView
from ui.controller.setup import FORM, MODEL, SAMPLING, SYSTEM, TOOLS
from ui.theme.scheme import current_theme
from ui.transcript import Mode

Look = Callable[[QWidget, str], Awaitable[None]]
COUNTED = Composition(12, None, 3032, 8192, parts=PARTS, new_tokens=112)


def prepare(bench: FakeWorkbench) -> None:
    """Prepares a workbench: a finished answer, its layers, the contents of the context, and the hint about tokens."""
    finish(bench)
    counting(bench, COUNTED)
    bench.layers = layers_of(bench.vocabulary)
    bench.left_hints = frozenset({"tokens", "models"})
    bench.views[TRIP] = replace(bench.views[TRIP], is_sample=True)


async def visit(window: MainWindow, bench: FakeWorkbench, look: Look) -> None:
    """Calls `look` with each part and its name while it is shown."""
    window.resize(1360, 860)
    await _text(window, look)
    await _popover(window, look)
    await _settings(window, look)
    await _comparisons(window, look)
    await _calls_and_too_long(window, bench, look)
    for action, name in ((window.acts.find, "find"), (window.acts.two_ways, "ways")):
        action.trigger()
        await frames()
        await look(window, name)
    await until(lambda: not window.controller.running)
    await look(window, "continuations")
    window.controller.draws.close_columns()
    bench.emit(StatusChanged(StatusView(EngineState.STARTING, "loading smollm2", load_share=0.5)))
    await until(window.parts.status.loading.isVisible)
    await look(window, "loading")
    bench.emit(StatusChanged(bench.status))
    window.acts.tree.trigger()
    await until(window.parts.tree.isVisible)
    await look(window, "tree")
    window.acts.new_session.trigger()
    await until(window.starters.card.isVisible)
    await look(window, "starters")


async def _text(window: MainWindow, look: Look) -> None:
    """The hint, the panel and the card of a token, and the parts that the composer and the status bar open."""
    parts = window.parts
    window.presenter.set_mode(Mode.TOKENS)
    current_theme().show(OwnColours.HALF, developer=True)
    await until(lambda: parts.coach.isVisible() and parts.first.isVisible())
    await look(window, "coach")
    parts.first.dismiss_button.click()
    assert window.controller.shown is not None
    window.presenter.pin(window.controller.shown.view.turns[-1].node_id, 2)
    for place, tab in enumerate(parts.inspector.tabs):
        tab.click()
        await frames()
        await look(window, f"inspector-{place}")
    parts.transcript.tokens.card_wanted.emit()
    await until(parts.pinned.isVisible)
    await look(window, "card")
    parts.pinned.close_again()
    meter = parts.composer.meter
    parts.composer.field.setPlainText("A draft")
    await until(lambda: meter.cost.text() != "")
    QTest.mouseClick(meter.context, Qt.MouseButton.LeftButton)
    await until(meter.panel.isVisible)
    assert meter.panel.total.text().count("3,032") == 1
    await look(window, "context")
    QTest.mouseClick(meter.context, Qt.MouseButton.LeftButton)
    parts.composer.field.clear()
    parts.status.figures_button.click()
    await until(parts.status.figures.isVisible)
    await look(parts.status.figures, "figures")
    parts.status.figures.hide()


async def _comparisons(window: MainWindow, look: Look) -> None:
    """Comparisons with another branch and another model, and the list of similar turns."""
    parts, controller = window.parts, window.controller
    controller.tree.compare(ROME.node_id)
    await until(parts.compare.isVisible)
    await look(window, "branches")
    parts.compare.dismiss()
    window.activateWindow()
    await until(window.isActiveWindow)
    await compared(window)
    await look(window, "second model")
    QTest.mouseClick(parts.comparison.close_button, Qt.MouseButton.LeftButton)
    await listed(window)
    await look(window, "similar")
    parts.similar.dismiss()


async def _calls_and_too_long(window: MainWindow, bench: FakeWorkbench, look: Look) -> None:
    """Tool calls with fields for their results; a message that does not fit."""
    composer, node = window.parts.composer, calling(bench, CLOCK)
    await cards_of(window, node, 1)
    await look(window, "calls")
    calling(bench)
    await until(lambda: node not in window.parts.cards.turns)
    await frames()  # the draft is counted again with the session
    await refused_for_length(window, bench)
    await look(window, "too long")
    composer.overflow.dismiss.click()
    counting(bench, COUNTED)
    composer.field.clear()


async def refused_for_length(window: MainWindow, bench: FakeWorkbench) -> None:
    """Sends a message that does not fit, until the choices to make room are shown."""
    composer = window.parts.composer
    counting(bench, Composition(12, None, 8200, 8192, can_grow=True))
    composer.field.setPlainText("Too long")
    await until(lambda: bench.asked("compose")[-1:] == [(TRIP, "Too long")] and composer.meter.is_too_long)
    QTest.keyClick(composer.field, Qt.Key.Key_Return)
    await until(composer.overflow.isVisible)


async def _popover(window: MainWindow, look: Look) -> None:
    for page in (MODEL, SYSTEM, SAMPLING, FORM, TOOLS):
        window.popover.open(page)
        await frames()
        if page == SAMPLING:
            window.popover.sampling.options.more.click()
        await look(window.popover, f"popover-{page}")
    window.popover.hide()


async def _settings(window: MainWindow, look: Look) -> None:
    window.acts.settings.trigger()
    await until(window.settings.isVisible)
    for page in range(len(window.settings.tabs)):
        window.settings.show_page(page)
        await frames()
        await look(window.settings, f"settings-{page}")
    window.settings.show_page(0)
    row = next(iter(window.settings.models.models.values()))
    row.open_button.click()
    await until(row.card.isVisible)
    await look(window.settings, "load")
    window.settings.hide()
