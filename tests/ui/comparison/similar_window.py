"""Helpers of window tests: listing the turns similar to one turn."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QPoint, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from tests.ui.conftest import Scene, until
from ui import EngineState, MainWindow, SimilarTurn
from ui.comparison.similar_panel import SimilarPanel
from ui.transcript.pane.meta import Action

Play = Callable[[Scene], None]
Key = Qt.Key
CTRL_SHIFT = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
ROME = SimilarTurn(43, "assistant", "You could visit Rome", 0.5, on_path=False, branch="… visit Rome")


def ask(window: MainWindow) -> None:
    """Requests similar turns by the shortcut, wherever the keyboard focus is."""
    window.activateWindow()
    QTest.keyClick(window, Key.Key_S, CTRL_SHIFT)


async def listed(window: MainWindow) -> SimilarPanel:
    ask(window)
    panel = window.parts.similar
    await until(lambda: bool(panel.list.rows.rows))
    return panel


async def standing(window: MainWindow) -> None:
    boxes = window.parts.transcript.tokens.page.boxes
    await until(lambda: bool(boxes) and all(box.body.done for box in boxes))


def press(window: MainWindow, turn: int, action: Action) -> None:
    """Moves to a turn, then clicks one of the actions that appeared."""
    pane = window.parts.transcript.tokens
    box = pane.page.boxes[turn]
    part = next(part for part in box.meta.parts(hovered=True) if part.action is action).box.center()
    top = box.top + box.body.height - pane.verticalScrollBar().value()
    at = QPoint(pane.column()[0] + round(part.x()), top + round(part.y()))
    over = QMouseEvent(
        QEvent.Type.MouseMove, at, pane.viewport().mapToGlobal(at), Qt.MouseButton.NoButton, Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier,
    )  # fmt: skip
    QApplication.sendEvent(pane.viewport(), over)
    QTest.mouseClick(pane.viewport(), Qt.MouseButton.LeftButton, pos=at)


def says(window: MainWindow, state: EngineState) -> bool:
    """Whether the status bar shows this state."""
    return window.parts.status.engine.text() == state.value


def spoken(panel: SimilarPanel) -> list[str]:
    model = panel.list.rows
    return [model.index(row).data(int(Qt.ItemDataRole.AccessibleTextRole)) for row in range(len(model.rows))]
