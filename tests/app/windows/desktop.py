"""Helpers for tests of several windows: the windows, and mouse and keys."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from app.windows import AppWindows
from runtime import GenerationOptions, SamplingOptions
from tests.app.workbench.scene import Engine, rows, until
from ui import MainWindow, TurnView

CTRL, SHIFT = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.ShiftModifier
WORDS = 12  # tokens of each answer
OPTIONS = GenerationOptions(max_tokens=WORDS, ignore_eos=True, sampling=SamplingOptions(temperature=0.8), seed=5)


@dataclass
class Desktop:
    """The windows of a test, with the mouse and keys."""

    path: Path
    engine: Engine
    windows: AppWindows
    first: MainWindow

    @property
    def all(self) -> list[MainWindow]:
        """The visible windows, in the order in which they were opened."""
        tops = [w for w in QApplication.topLevelWidgets() if isinstance(w, MainWindow) and w.isVisible()]
        return sorted(tops, key=lambda window: window is not self.first)

    async def another(self, window: MainWindow | None = None) -> MainWindow:
        """Opens one more window from a window, by its key."""
        known = self.all
        await press(window or self.first, Qt.Key.Key_N, CTRL | SHIFT)
        await until(lambda: len(self.all) == len(known) + 1)
        made = next(each for each in self.all if each not in known)
        await until(lambda: made.controller.shown is not None)
        return made

    def kept(self) -> list[str]:
        """The texts of all turns in the file, read over another connection."""
        return [str(text) for (text,) in rows(self.path, "SELECT text FROM nodes WHERE role = 'user' ORDER BY id")]


async def press(window: MainWindow, key: Qt.Key, modifiers: Qt.KeyboardModifier) -> None:
    """Presses a shortcut in a window that has the focus."""
    window.activateWindow()
    await until(window.isActiveWindow)
    QTest.keyClick(window, key, modifiers)


def say(window: MainWindow, text: str) -> None:
    QTest.keyClicks(window.parts.composer.field, text)
    QTest.keyClick(window.parts.composer.field, Qt.Key.Key_Return)


def session_of(window: MainWindow) -> int:
    assert window.controller.shown is not None
    return window.controller.shown.session_id


def last(window: MainWindow) -> TurnView | None:
    assert window.controller.shown is not None
    turns = window.controller.shown.view.turns
    return turns[-1] if turns and turns[-1].role == "assistant" else None


def made(window: MainWindow) -> int:
    """The number of tokens of the last answer in the window."""
    answer = last(window)
    return 0 if answer is None else sum(origin == 2 for origin in answer.run.origin.tolist())


def choose(window: MainWindow, session_id: int) -> None:
    """Clicks a session in the list."""
    view = window.parts.sidebar.sessions.view
    index = window.parts.sidebar.sessions.rows.index_of(session_id)
    view.scrollTo(index)
    QTest.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=view.visualRect(index).center())


async def next_token(gate: asyncio.Semaphore, *windows: MainWindow) -> None:
    """Lets the engine yield one more token, in any of the windows."""
    before = sum(made(window) for window in windows)
    gate.release()
    await until(lambda: sum(made(window) for window in windows) > before)


async def answered(window: MainWindow, text: str) -> int:
    """A message and its whole answer; its session."""
    say(window, text)
    await until(lambda: made(window) == WORDS and not window.controller.running)
    return session_of(window)
