"""Further pictures, for review: states of the window that the documentation does not show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QWidget

from app.workbench import AppWorkbench
from ui import AppSettings, EngineState, MainWindow, SessionChanged, ToolCard
from ui.controller.setup import SAMPLING
from ui.inspector.depth import DepthTab
from ui.settings import DATA
from ui.theme import current_theme
from ui.window.welcome import StartersCard

MODEL_SECONDS = 120  # limit for a load or an answer of a model
SCRIPTS = "Translate: 🐈‍⬛ 你好，世界 — 日本語 — مرحبا بالعالم — שלום עולם"


def keep(widget: QWidget, path: Path) -> None:
    """Saves the picture with its 256 most frequent colours, others as the nearest of them: a quarter of the bytes."""
    image = widget.grab().toImage().convertToFormat(QImage.Format.Format_RGB32)
    height, width = image.height(), image.width()
    pixels = np.frombuffer(image.constBits(), np.uint32).reshape(height, image.bytesPerLine() // 4)[:, :width] & 0xFFFFFF
    colours, place, counts = np.unique(pixels, return_inverse=True, return_counts=True)
    parts = np.stack([colours >> 16, colours >> 8 & 0xFF, colours & 0xFF], axis=1).astype(np.int32)  # (colours, 3)
    kept = parts[np.argsort(-counts)[:256]]
    nearest = np.array([((kept - colour) ** 2).sum(axis=1).argmin() for colour in parts], np.uint8)
    drawn = np.ascontiguousarray(nearest[place].reshape(height, width))
    small = QImage(drawn.tobytes(), width, height, width, QImage.Format.Format_Indexed8)
    small.setColorTable([QColor(*map(int, colour)).rgb() for colour in kept])
    small.save(str(path), quality=0)


async def settled(window: MainWindow) -> None:
    """Waits until the layout of the text is complete."""
    for _ in range(500):
        await asyncio.sleep(0.02)
        shown = window.controller.shown
        boxes = window.parts.transcript.tokens.page.boxes
        if shown is not None and not window.controller.running and all(box.body.done for box in boxes):
            break
    await asyncio.sleep(0.2)
    await until(window.parts.transcript.veil.isHidden)  # one branch fades into another


async def new_session(window: MainWindow, **options: object) -> None:
    """Opens a new session, shown before anything is typed, with these options."""
    controller, before = window.controller, window.controller.shown
    controller.new_session()
    await until(lambda: controller.shown is not None and controller.shown is not before and not controller.shown.view.turns)
    await settled(window)
    assert controller.shown is not None
    for name, value in options.items():
        await controller.workbench.setup.set_option(controller.shown.session_id, name, value)


async def said(window: MainWindow, text: str) -> None:
    """Sends a message and waits for its answer, or for the reason why there is none."""
    QTest.keyClicks(window.parts.composer.field, text)
    QTest.mouseClick(window.parts.composer.send_button, Qt.MouseButton.LeftButton)
    for _second in range(MODEL_SECONDS):
        await asyncio.sleep(1)
        if not window.controller.running:
            break
    await settled(window)


async def comparison(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """Two branches of the sample side by side."""
    window.acts.compare.trigger()
    await settled(window)
    keep(window, folder / f"{name}.png")


async def first_run(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """The window at its first start."""
    for _attempt in range(100):
        await asyncio.sleep(0.1)
        if window.parts.first.isVisible() and window.parts.coach.isVisible():
            break
    window.parts.first.show_folder("~/.local/share/elsewise")  # pictures show no path of the machine
    await settled(window)
    keep(window, folder / f"{name}.png")


async def first_run_narrow(window: MainWindow, workbench: AppWorkbench, folder: Path, name: str) -> None:
    """The previous scene in a small window."""
    window.resize(900, 640)
    await first_run(window, workbench, folder, name)


async def models(window: MainWindow, workbench: AppWorkbench, folder: Path, name: str) -> None:
    """The shelf, the memory that loading a model takes, and the models that fit this machine."""
    await workbench.settings.change("scheme", "dark" if current_theme().palette.dark else "light")
    window.settings.open_models()
    for _attempt in range(100):
        await asyncio.sleep(0.1)
        if window.settings.models.models and window.settings.models.get.offers.rows:
            break
    row = next(iter(window.settings.models.models.values()))
    row.open_button.click()
    for _attempt in range(100):
        await asyncio.sleep(0.1)
        if row.card.isVisible():
            break
    await asyncio.sleep(0.3)
    keep(window.settings, folder / f"{name}.png")


async def no_model(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """A message to a missing model: the message is kept, with the reason under it."""
    await new_session(window)
    await said(window, "Is anyone there?")
    keep(window, folder / f"{name}.png")


async def scripts(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """Emoji of several code points, Chinese, Japanese, Arabic, Hebrew: typed, scored, answered."""
    await new_session(window, max_tokens=40)
    window.parts.composer.field.setPlainText(SCRIPTS)
    await said(window, "")
    keep(window, folder / f"{name}.png")


async def keep_cache(window: MainWindow, path: Path) -> None:
    """The inspector's *Cache*, which the developer view has."""
    scheme = "dark" if current_theme().palette.dark else "light"
    window.apply(AppSettings(scheme=scheme, developer="on"))
    QTest.mouseClick(window.parts.inspector.tabs[2], Qt.MouseButton.LeftButton)
    await settled(window)
    keep(window, path)
    window.apply(AppSettings(scheme=scheme))


async def cache(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """The cache after an answer."""
    await new_session(window, max_tokens=40)
    await said(window, "Name three colours.")
    await keep_cache(window, folder / f"{name}.png")


async def reopened(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """After a restart: the session is read from the disk, and continues with cached KV."""
    window.resize(1360, 860)  # larger than the screen on which the window was closed
    for _second in range(MODEL_SECONDS):
        await asyncio.sleep(1)
        if window.controller.engine.value == "ready":
            break
    await settled(window)
    await said(window, "And three animals?")
    await keep_cache(window, folder / f"{name}.png")


async def tool_call(window: MainWindow, workbench: AppWorkbench, folder: Path, name: str) -> None:
    """A call as a card, with a field for its result."""
    del workbench
    assert window.controller.shown is not None
    view = window.controller.shown.view
    call = ToolCard("weather", '{\n  "city": "Lisbon",\n  "days": 3\n}')
    last = replace(view.turns[-1], calls=(call,))
    window.controller.events.push(SessionChanged(replace(view, turns=(*view.turns[:-1], last))))
    await settled(window)
    result = window.parts.cards.turns[last.node_id].cards[0].result
    assert result is not None
    result.setPlainText("Saturday: sun, 21 °C\nSunday: rain from noon")
    await settled(window)
    keep(window, folder / f"{name}.png")


async def similar(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """The turns of the sample that are similar to its last answer, on all branches, with the first one of another branch."""
    window.acts.similar.trigger()
    panel = window.parts.similar
    for _second in range(MODEL_SECONDS):
        await asyncio.sleep(1)
        if panel.list.rows.rows or panel.action.isVisible():
            break
    off_path = next((i for i, row in enumerate(panel.list.rows.rows) if not row.on_path), 0)
    panel.list.setCurrentIndex(panel.list.rows.index(off_path))
    QTest.keyClick(panel.list, Qt.Key.Key_Return)
    await settled(window)
    keep(window, folder / f"{name}.png")


async def similar_narrow(window: MainWindow, workbench: AppWorkbench, folder: Path, name: str) -> None:
    """The previous scene in a small window."""
    window.resize(900, 640)
    await similar(window, workbench, folder, name)


async def starter_own(window: MainWindow, workbench: AppWorkbench, folder: Path, name: str) -> None:
    """The first way to begin: a text of the user in colours, before anything is sent."""
    card = await _starters(window, workbench, 480)
    card.own_text.click()
    field = window.parts.composer.field
    field.setPlainText("The cat sat on the mat, and the mat sat on a hill of old bicycles, quietly humming an opera.")
    await until(lambda: bool(field.colours.spans))
    await settled(window)
    keep(window, folder / f"{name}.png")


async def starter_endings(window: MainWindow, workbench: AppWorkbench, folder: Path, name: str) -> None:
    """The second: eight endings of one sentence."""
    card = await _starters(window, workbench, 620)
    card.endings.click()
    await until(lambda: len(window.parts.columns.cards) == 8 and not window.controller.running)
    await settled(window)
    keep(window, folder / f"{name}.png")


async def starter_unsure(window: MainWindow, workbench: AppWorkbench, folder: Path, name: str) -> None:
    """The third: an answer, and the card of the token at which the model hesitated most."""
    card = await _starters(window, workbench, 620)
    card.unsure.click()
    await until(window.parts.pinned.isVisible)
    await settled(window)
    keep(window, folder / f"{name}.png")


async def _starters(window: MainWindow, workbench: AppWorkbench, height: int) -> StartersCard:
    """The card of an empty session, in a small window without its panels, and a model that answers shortly."""
    window.resize(900, height)
    window.acts.sidebar.trigger()
    workbench.models.warm_up()
    await until(lambda: window.controller.engine is EngineState.READY)
    await new_session(window, max_tokens=160, seed=3)
    await until(window.starters.card.isVisible)
    return window.starters.card


async def depth(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """An answer coloured by the layer at which each token was decided, one of them in the Depth tab."""
    await new_session(window, max_tokens=60)
    await said(window, "Why does a prism split light into colours? Answer in two sentences.")
    assert window.controller.shown is not None
    answer, inspector = window.controller.shown.view.turns[-1], window.parts.inspector
    QTest.mouseClick(inspector.tabs[4], Qt.MouseButton.LeftButton)
    leading = np.flatnonzero((answer.run.rank == 1) & (answer.run.logprob < -0.2))
    window.presenter.pin(answer.node_id, int(leading[len(leading) // 2]))
    row = inspector.page(DepthTab).turn
    await until(row.isVisible)
    QTest.mouseClick(row.button, Qt.MouseButton.LeftButton)
    await until(lambda: not row.button.isVisible())
    await settled(window)
    keep(window, folder / f"{name}.png")


async def depth_narrow(window: MainWindow, workbench: AppWorkbench, folder: Path, name: str) -> None:
    """The same in a small window."""
    window.resize(900, 700)
    window.parts.show_inspector(True)
    await depth(window, workbench, folder, name)


async def until(holds: Callable[[], bool]) -> None:
    """Waits for the model."""
    for _tenth in range(10 * MODEL_SECONDS):
        if holds():
            return
        await asyncio.sleep(0.1)
    raise TimeoutError("the model has not answered")


async def narrow(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """A long title in a small window: it makes room for the model's name."""
    await resized(window, 900)
    keep(window, folder / f"{name}.png")


async def narrowest(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """The previous scene in the smallest window."""
    await resized(window, 560)
    keep(window, folder / f"{name}.png")


async def resized(window: MainWindow, width: int) -> None:
    """A session with a long title, in a window of that width."""
    assert window.controller.shown is not None
    title = "What the lighthouse keeper wrote about cats and the sea"
    window.controller.events.push(SessionChanged(replace(window.controller.shown.view, title=title)))
    window.resize(width, 640)
    await settled(window)


async def large(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """All text at 200 %."""
    window.apply(AppSettings(scheme="light", text_percent=200))
    await settled(window)
    keep(window, folder / f"{name}.png")
    window.apply(AppSettings(scheme="light"))


async def backup(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """The page about the data, after a backup."""
    window.acts.settings.trigger()
    window.settings.show_page(DATA)
    await asyncio.sleep(0.5)
    QTest.mouseClick(window.settings.data.back_up_button, Qt.MouseButton.LeftButton)
    for _attempt in range(100):
        await asyncio.sleep(0.1)
        if "verified" in window.settings.data.backed_up.text():
            break
    keep(window.settings, folder / f"{name}.png")


async def rare_options(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """The less common settings of the sampler, unfolded."""
    await new_session(window)
    window.resize(1360, 1280)
    window.popover.open(SAMPLING)
    await asyncio.sleep(0.3)
    window.popover.sampling.options.more.click()
    window.popover.setFixedHeight(1200)
    await asyncio.sleep(0.3)
    keep(window.popover, folder / f"{name}.png")
