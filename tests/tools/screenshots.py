"""Takes the pictures of the documentation from the real window, without a screen: ``make screenshots``."""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import qasync
from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from app.paths import DataFolder
from app.window import run_window
from app.workbench import AppWorkbench
from app.workbench.models.settings import HINTS, HINTS_SETTING
from runtime import Origin
from storage import SessionStore
from tests.tools import more_scenes as more
from tests.tools.more_scenes import MODEL_SECONDS, keep, settled
from tests.tools.tree_scenes import full_tree, full_tree_alone, full_tree_narrow, save_tree
from tests.ui.pseudo import Pseudo
from ui import AppSettings, MainWindow, Scheme, TurnView, apply_theme
from ui.controller.setup import FORM, SAMPLING
from ui.theme import current_theme

Scene = Callable[[MainWindow, AppWorkbench, Path], Awaitable[None]]


def surprising(turn: TurnView) -> int:
    """The index of the turn's most surprising generated token."""
    made = [i for i in range(len(turn.run)) if int(turn.run.origin[i]) in (Origin.SAMPLED, Origin.PICKED)]
    return min(made, key=lambda i: float(turn.run.logprob[i]))


def answers(window: MainWindow) -> list[TurnView]:
    """The model's turns."""
    assert window.controller.shown is not None
    return [turn for turn in window.controller.shown.view.turns if turn.role == "assistant"]


def pin(window: MainWindow, node_id: int, index: int) -> None:
    """Clicks a token."""
    tokens = window.parts.transcript.tokens
    box = tokens.token_box(node_id, index)
    assert box is not None
    QTest.mouseClick(tokens.viewport(), Qt.MouseButton.LeftButton, pos=box.center())


async def hover(window: MainWindow, node_id: int, index: int) -> None:
    """Moves the mouse over a token and waits for the card."""
    tokens = window.parts.transcript.tokens
    box = tokens.token_box(node_id, index)
    assert box is not None
    at = QPointF(box.center())
    viewport = tokens.viewport()
    move = QMouseEvent(
        QEvent.Type.MouseMove, at, QPointF(viewport.mapToGlobal(box.center())), Qt.MouseButton.NoButton,
        Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier,
    )  # fmt: skip
    QApplication.sendEvent(viewport, move)
    await asyncio.sleep(0.6)


async def tokens_with_card(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """The sample in Tokens mode: the most surprising token pinned, and the card under the mouse."""
    turn = answers(window)[0]
    pin(window, turn.node_id, surprising(turn))
    await settled(window)
    await hover(window, turn.node_id, surprising(turn))
    keep(window, folder / f"{name}.png")


async def before_an_alternative(window: MainWindow, bench: AppWorkbench, folder: Path, name: str) -> None:
    """The token at which the branch of `branch_with_tree` leaves, with the keyboard focus on the alternative that it takes."""
    assert window.controller.shown is not None
    here = answers(window)[0]
    other = next(row for row in window.controller.shown.view.branches if row.depth and not row.on_path)
    window.controller.tree.select(other.node_id)
    await settled(window)
    there = answers(window)[0]
    picked = next(i for i in range(len(there.run)) if int(there.run.origin[i]) == Origin.PICKED)
    window.controller.tree.select(here.node_id)
    await settled(window)
    pin(window, here.node_id, picked)
    await settled(window)
    buttons = window.parts.inspector.token.alternatives.buttons
    taken = next(b for b in buttons if b.alternative is not None and b.alternative.token_id == int(there.run.ids[picked]))
    window.activateWindow()
    taken.setFocus()
    await settled(window)
    keep(window, folder / f"{name}.png")


async def branch_with_tree(window: MainWindow, bench: AppWorkbench, folder: Path, name: str) -> None:
    """Another branch of the sample, chosen in the outline."""
    assert window.controller.shown is not None
    other = next(row for row in window.controller.shown.view.branches if row.depth and not row.on_path)
    window.controller.tree.select(other.node_id)
    await settled(window)
    turn = answers(window)[0]
    picked = next(i for i in range(len(turn.run)) if int(turn.run.origin[i]) == Origin.PICKED)
    pin(window, turn.node_id, picked)
    await settled(window)
    keep(window, folder / f"{name}.png")


async def why_with_sliders(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """Why the sample's most surprising token was drawn, and what top-p .5 would have drawn instead, and how."""
    turn = answers(window)[0]
    pin(window, turn.node_id, surprising(turn))
    QTest.mouseClick(window.parts.inspector.tabs[3], Qt.MouseButton.LeftButton)
    await settled(window)
    row = window.parts.inspector.why.dials.rows["top_p"]
    row.slider.setValue(500)
    QTest.mouseClick(row.name, Qt.MouseButton.LeftButton)
    await settled(window)
    keep(window, folder / f"{name}.png")


async def eight_continuations(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """Eight continuations of the most surprising token, drawn by the real model."""
    turn = answers(window)[0]
    pin(window, turn.node_id, surprising(turn))
    QTest.mouseClick(window.parts.inspector.token.draws.buttons[8], Qt.MouseButton.LeftButton)
    for _second in range(MODEL_SECONDS):
        await asyncio.sleep(1)
        if len(window.parts.columns.cards) == 8 and not window.controller.running:
            break
    await settled(window)
    keep(window, folder / f"{name}.png")


async def narrow_continuations(window: MainWindow, bench: AppWorkbench, folder: Path, name: str) -> None:
    """The previous scene in a small window."""
    window.resize(900, 700)
    window.parts.show_inspector(True)
    await eight_continuations(window, bench, folder, name)


async def preview_in_place(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """The preview of an alternative of the most surprising token, in grey."""
    turn = answers(window)[0]
    pin(window, turn.node_id, surprising(turn))
    tokens = window.parts.transcript.tokens
    for _second in range(MODEL_SECONDS):  # the engine may still be starting
        QTest.keyClick(tokens, Qt.Key.Key_Escape)
        pin(window, turn.node_id, surprising(turn))
        QTest.keyClick(tokens, Qt.Key.Key_Space)
        await asyncio.sleep(1)
        if tokens.ghost is not None and tokens.ghost.tail:
            break
    window.parts.composer.notice.clear()
    await asyncio.sleep(0.2)
    keep(window, folder / f"{name}.png")


async def sampling(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """The sampling options of the session, and the source of each."""
    await more.new_session(window)
    window.popover.open(SAMPLING)
    await asyncio.sleep(0.3)
    field = window.popover.sampling.options.fields["temperature"]
    QTest.keyClicks(field, "0.3")
    QTest.keyClick(field, Qt.Key.Key_Return)
    await asyncio.sleep(0.3)
    keep(window, folder / f"{name}.png")


async def form(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """A schema that cannot be used, with the message of the grammar library; at 900 pixels."""
    window.resize(900, 700)
    await more.new_session(window)
    window.popover.open(FORM)
    await asyncio.sleep(0.3)
    QTest.mouseClick(window.popover.form.kinds.buttons[1], Qt.MouseButton.LeftButton)
    QTest.keyClicks(window.popover.form.source, '{"type": "objekt"}')
    for _attempt in range(100):
        await asyncio.sleep(0.1)
        if window.popover.form.state.text() not in ("checking…", ""):
            break
    keep(window, folder / f"{name}.png")


async def large_text(window: MainWindow, workbench: AppWorkbench, folder: Path, name: str) -> None:
    """Conversations at 150 %, the context meter open."""
    window.apply(AppSettings(scheme=Scheme.DARK.value, text_percent=150))
    window.parts.composer.meter.panel.show()
    await settled(window)
    keep(window, folder / f"{name}.png")


async def contrast(window: MainWindow, bench: AppWorkbench, folder: Path, name: str) -> None:
    """The sample in high contrast, a token's card open; light or dark as the scheme is."""
    scheme = "dark" if current_theme().palette.dark else "light"
    window.apply(AppSettings(scheme=scheme, contrast="high"))
    await tokens_with_card(window, bench, folder, name)
    window.apply(AppSettings(scheme=scheme))


async def settings(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """The settings, models and device."""
    window.acts.settings.trigger()
    await more.until(lambda: bool(window.settings.models.models and window.settings.models.get.offers.rows))
    await asyncio.sleep(0.3)
    keep(window.settings, folder / f"{name}.png")


def take(
    application: QApplication,
    folder: Path,
    name: str,
    scheme: Scheme,
    *scenes: Callable[..., Awaitable[None]],
    model: str = "smollm2",
    demo: bool = True,
    hints: bool = False,
    tree: bool = False,
) -> None:
    """Opens the window on a fresh data folder with the sample, plays the scene, closes it; again for each further scene."""
    apply_theme(application, scheme)

    async def whole(data: DataFolder, scene: Callable[..., Awaitable[None]], *, again: bool) -> None:
        tasks: list[asyncio.Task[None]] = []

        async def act(window: MainWindow, workbench: AppWorkbench) -> None:
            try:
                await settled(window)
                await scene(window, workbench, folder, name)
            finally:
                window.close()

        def on_shown(window: MainWindow, workbench: AppWorkbench) -> None:
            tasks.append(asyncio.create_task(act(window, workbench)))

        store = SessionStore.open(data.sessions)
        if not hints:
            await store.set_setting(HINTS_SETTING, sorted(HINTS))
        if tree:
            await save_tree(store)
        await run_window(data, store, model, "auto", demo=demo and not again, on_shown=on_shown)
        await tasks[0]

    with tempfile.TemporaryDirectory() as scratch:
        data = DataFolder(Path(scratch) / "data")
        data.make()
        for place, scene in enumerate(scenes):
            with asyncio.Runner(loop_factory=lambda: qasync.QEventLoop(application)) as runner:
                runner.run(whole(data, scene, again=place > 0))


def main() -> None:
    """Writes the pictures into the given folder."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.screenshots", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs"))
    parser.add_argument("names", nargs="*", help="pictures to draw, by name; else those of the documentation")
    parser.add_argument("--all", action="store_true", help="every picture")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    application = QApplication(["elsewise"])
    application.setQuitOnLastWindowClosed(False)
    unknown = set(options.names)

    def draw(name: str, scheme: Scheme, *scenes: Callable[..., Awaitable[None]], **setting: Any) -> None:
        unknown.discard(name)
        if not options.names or name in options.names:
            take(application, options.folder, name, scheme, *scenes, **setting)

    draw("tokens", Scheme.LIGHT, tokens_with_card)
    draw("alternative", Scheme.LIGHT, before_an_alternative)
    draw("branch", Scheme.LIGHT, branch_with_tree)
    draw("tokens-dark", Scheme.DARK, tokens_with_card)
    draw("why-dark", Scheme.DARK, why_with_sliders)
    draw("depth", Scheme.LIGHT, more.depth)
    draw("comparison", Scheme.LIGHT, more.comparison)
    draw("similar", Scheme.LIGHT, more.similar)
    draw("first-run", Scheme.LIGHT, more.first_run, hints=True)
    draw("starter-own", Scheme.LIGHT, more.starter_own)
    draw("starter-endings", Scheme.LIGHT, more.starter_endings)
    draw("starter-unsure", Scheme.LIGHT, more.starter_unsure)
    draw("models", Scheme.LIGHT, more.models)
    with patch.dict(os.environ, {"ELSEWISE_MODELS": "/models"}):  # pictures show no path of the machine
        draw("no-model", Scheme.DARK, more.no_model, model="org/qwen3-0.6b")
    draw("tool-call", Scheme.LIGHT, more.tool_call)
    draw("narrow", Scheme.DARK, more.narrow)
    draw("large", Scheme.LIGHT, more.large)
    draw("continuations", Scheme.LIGHT, eight_continuations)
    draw("scripts", Scheme.LIGHT, more.scripts)
    draw("reopened", Scheme.DARK, more.cache, more.reopened)
    if options.all or options.names:  # the scenes above are in the documentation
        draw("why", Scheme.LIGHT, why_with_sliders)
        draw("preview", Scheme.LIGHT, preview_in_place)
        draw("continuations-dark-900", Scheme.DARK, narrow_continuations)
        draw("depth-dark", Scheme.DARK, more.depth)
        draw("depth-dark-900", Scheme.DARK, more.depth_narrow)
        draw("sampling", Scheme.LIGHT, sampling)
        draw("form-dark-900", Scheme.DARK, form)
        draw("text-150-dark", Scheme.DARK, large_text)
        draw("settings", Scheme.LIGHT, settings)
        draw("cache", Scheme.LIGHT, more.cache)
        draw("models-dark", Scheme.DARK, more.models)
        draw("first-run-900", Scheme.DARK, more.first_run_narrow, hints=True)
        draw("similar-dark-900", Scheme.DARK, more.similar_narrow)
        draw("narrowest", Scheme.DARK, more.narrowest)
        draw("backup", Scheme.LIGHT, more.backup)
        draw("tree", Scheme.LIGHT, full_tree, tree=True)
        draw("tree-dark", Scheme.DARK, full_tree, tree=True)
        draw("tree-alone", Scheme.LIGHT, full_tree_alone, tree=True)
        draw("tree-900", Scheme.LIGHT, full_tree_narrow, tree=True)
        draw("contrast", Scheme.LIGHT, contrast)
        draw("contrast-dark", Scheme.DARK, contrast)
        draw("rare-options", Scheme.LIGHT, more.rare_options)
        application.installTranslator(translator := Pseudo())  # a longer language, in both reading directions
        draw("pseudo", Scheme.LIGHT, tokens_with_card)
        draw("pseudo-settings", Scheme.LIGHT, settings)
        application.setLayoutDirection(Qt.LayoutDirection.RightToLeft)
        draw("pseudo-rtl", Scheme.LIGHT, tokens_with_card)
        draw("pseudo-rtl-settings", Scheme.DARK, settings)
        application.removeTranslator(translator)
    if unknown:
        parser.error(f"no picture is called {', '.join(sorted(unknown))}")


if __name__ == "__main__":
    main()
