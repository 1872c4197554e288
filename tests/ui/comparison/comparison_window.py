"""Helpers of window tests: comparing with a second model."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMenu

from tests.ui.conftest import Scene, until
from ui import MainWindow
from ui.transcript.tokens import RARE, STEP

Play = Callable[[Scene], None]


def marks(window: MainWindow) -> list[bytes]:
    """The colours and underlines of all turns, as they are painted."""
    boxes = window.parts.transcript.tokens.page.boxes
    return [bytes(mark & (STEP | RARE) for mark in box.turn.tokens.marks) for box in boxes]


async def menu() -> QMenu:
    await until(lambda: isinstance(QApplication.activePopupWidget(), QMenu))
    found = QApplication.activePopupWidget()
    assert isinstance(found, QMenu)
    return found


def choose(popup: QMenu, action: QAction) -> None:
    QTest.mouseClick(popup, Qt.MouseButton.LeftButton, pos=popup.actionGeometry(action).center())


async def compare(window: MainWindow) -> None:
    """Chooses the last entry by the shortcut and the mouse."""
    window.activateWindow()
    QTest.keyClick(window, Qt.Key.Key_D, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier)
    popup = await menu()
    choose(popup, popup.actions()[-1])
    await until(lambda: QApplication.activePopupWidget() is None)


async def compared(window: MainWindow) -> None:
    await compare(window)
    await until(lambda: window.parts.transcript.colours.shows_difference)
