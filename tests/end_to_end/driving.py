"""Actions of a person in the window, and queries of tests: keys, clicks, the shown turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from runtime import Origin
from tests.ui.transcript.conftest import centre
from ui import MainWindow, TurnView

PATIENCE_SECONDS = 150  # for a condition on a busy machine; one that holds takes no time


async def until(condition: Callable[[], object]) -> None:
    """Lets the app run until the condition holds."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, "the condition never held"
        await asyncio.sleep(0.005)


def last(window: MainWindow) -> TurnView:
    assert window.controller.shown is not None
    return window.controller.shown.view.turns[-1]


def say(window: MainWindow, text: str) -> None:
    field = window.parts.composer.field
    if text.isascii():
        QTest.keyClicks(field, text)
    else:
        field.insertPlainText(text)  # not on the keyboard: inserted as by an input method
    QTest.keyClick(window.parts.composer.field, Qt.Key.Key_Return)


def generated(turn: TurnView) -> list[int]:
    """Indices of the tokens that the model generated."""
    return [i for i, origin in enumerate(turn.run.origin.tolist()) if origin in (Origin.SAMPLED, Origin.PICKED)]


def whole(turn: TurnView, after: int) -> int:
    """The first generated token after `after` with whole characters: random weights also generate parts of one."""
    texts = turn.run.texts
    own = (i for i in generated(turn)[:-1] if i > after and texts[i].isascii() and texts[i].strip() and texts[i].isprintable())
    return next(i for i in own if texts[i - 1] and texts[i + 1].isascii())


async def at_rest(window: MainWindow) -> None:
    """Waits until no work of the shown session is pending, and all of its events are painted."""
    await until(lambda: not window.controller.running and window.controller.events.idle)


async def click(window: MainWindow, node_id: int, index: int) -> None:
    """A real click on a token, once the text no longer moves."""
    view = window.parts.transcript
    await until(lambda: not window.controller.running and all(box.body.done for box in view.tokens.page.boxes))
    await asyncio.sleep(0.1)
    QTest.mouseClick(view.tokens.viewport(), Qt.MouseButton.LeftButton, pos=centre(view, node_id, index))
    await until(lambda: view.pinned == (node_id, index))
