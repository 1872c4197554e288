"""Fallback fonts for other scripts are loaded before there is text in these scripts, while the window is idle."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QObject
from PySide6.QtGui import QFont, QTextLayout, QTextLine
from PySide6.QtWidgets import QApplication

from tests.ui.conftest import Scene, until
from tests.ui.fakes import FakeWorkbench
from ui import MainWindow
from ui.theme import fonts as fallbacks
from ui.theme.fonts import SCRIPTS, FallbackFaces, interface_font
from ui.transcript.text.faces import Faces, reading_font

Play = Callable[[Scene], None]


@pytest.fixture
def laid_out(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Letters and fonts, in the order in which they are laid out."""
    found: list[tuple[str, str]] = []

    class Layout(QTextLayout):
        def createLine(self) -> QTextLine:  # noqa: N802  # Qt's name
            found.append((self.text(), self.font().toString()))
            return super().createLine()

    monkeypatch.setattr("ui.theme.fonts.QTextLayout", Layout)
    monkeypatch.setattr(fallbacks, "FIRST_MS", 0)
    return found


@pytest.mark.slow
def test_each_script_is_laid_out_in_each_font_in_a_separate_turn_of_the_loop(
    in_window: Play, bench: FakeWorkbench, laid_out: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    del bench
    fonts: list[QFont] = []

    async def scene(window: MainWindow) -> None:
        # given fallbacks whose pause between two scripts never ends
        monkeypatch.setattr(fallbacks, "REST_MS", 1 << 30)
        fonts[:] = [interface_font(31), reading_font(2.0)]  # fonts that the window does not have
        waiting = FallbackFaces(fonts, window)
        await until(lambda: len(waiting.left) < 2 * len(SCRIPTS))
        assert len(waiting.left) == 2 * len(SCRIPTS) - 1
        # and fallbacks without a pause
        monkeypatch.setattr(fallbacks, "REST_MS", 0)
        looking = FallbackFaces(fonts, window)
        await until(lambda: not looking.left)

    in_window(scene)
    asked = [(letter, font.toString()) for font in fonts for letter in SCRIPTS]
    assert [each for each in laid_out if each in asked] == [asked[0], *asked]


def test_the_window_loads_the_fallbacks_of_the_transcript_font_first(in_window: Play, bench: FakeWorkbench) -> None:
    del bench

    async def scene(window: MainWindow) -> None:
        assert window.fallbacks.left[0][0].toString() == Faces().text.toString()

    in_window(scene)


def test_loading_of_fallbacks_ends_with_its_window(app: QApplication, laid_out: list[tuple[str, str]]) -> None:
    window = QObject()
    FallbackFaces([interface_font()], window)
    window.deleteLater()
    QCoreApplication.sendPostedEvents(window, QEvent.Type.DeferredDelete.value)
    for _ in range(20):
        app.processEvents()
    assert laid_out == []
