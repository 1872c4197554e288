"""What the window has, opened one after the other, for tests that look at all of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QWidget

from tests.ui.composer.test_before_send import PARTS, counting
from tests.ui.conftest import frames, until
from tests.ui.fakes import FakeWorkbench
from tests.ui.inspector.test_depth import layers_of
from tests.ui.window.test_conversation import finish
from ui import Composition, EngineState, MainWindow, StatusChanged, StatusView
from ui.controller.setup import FORM, MODEL, SAMPLING, SYSTEM, TOOLS
from ui.transcript import Mode

Look = Callable[[QWidget, str], Awaitable[None]]


def prepare(bench: FakeWorkbench) -> None:
    """Before the window opens: an answer that has ended, its layers, what fills the context, and the hint about tokens."""
    finish(bench)
    counting(bench, Composition(12, None, 3032, 8192, parts=PARTS, new_tokens=112))
    bench.layers = layers_of(bench.vocabulary)
    bench.left_hints = frozenset({"tokens"})


async def visit(window: MainWindow, bench: FakeWorkbench, look: Look) -> None:
    """Calls `look` with each part and its name while it is shown."""
    window.resize(1360, 860)
    await _text(window, look)
    await _popover(window, look)
    await _settings(window, look)
    for action, name in ((window.acts.find, "find"), (window.acts.compare, "compare"), (window.acts.two_ways, "ways")):
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
    """The coach, the panel and the card of a token, and what the composer and the status bar open."""
    parts = window.parts
    window.presenter.set_mode(Mode.TOKENS)
    await until(parts.coach.isVisible)
    await look(window, "coach")
    assert window.controller.shown is not None
    window.presenter.pin(window.controller.shown.view.turns[-1].node_id, 2)
    for place, tab in enumerate(parts.inspector.tabs):
        tab.click()
        await frames()
        await look(window, f"inspector-{place}")
    parts.transcript.card_wanted.emit()
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
