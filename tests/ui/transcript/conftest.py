"""A transcript on an offscreen screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from tests.ui.transcript import samples
from ui import OwnColours, Scheme, apply_theme
from ui.port import SessionView
from ui.transcript import TranscriptView

Show = Callable[..., TranscriptView]
PATIENCE_MS = 60_000  # how long a layout may take on a busy machine


@pytest.fixture
def show(qtbot: QtBot, qapp: QApplication) -> Iterator[Show]:
    """Shows a session in a transcript of the drawing's size, laid out to the end."""
    apply_theme(qapp, Scheme.LIGHT).show(OwnColours.HALF, developer=False)

    def make(view: SessionView, *, width: int = 780, height: int = 690) -> TranscriptView:
        transcript = TranscriptView()
        qtbot.addWidget(transcript)
        transcript.resize(width, height)
        transcript.set_vocabulary(samples.resolve)
        with qtbot.waitExposed(transcript):
            transcript.show()
        transcript.set_session(view)
        settle(qtbot, transcript)
        return transcript

    yield make
    qapp.processEvents()


@pytest.fixture
def drawing(show: Show) -> TranscriptView:
    return show(samples.drawing())


def lay_out_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine so slow that each slice lays out almost nothing."""
    monkeypatch.setattr("ui.transcript.pane.pane.AT_ONCE_SECONDS", -1.0)
    monkeypatch.setattr("ui.transcript.pane.pane.SLICE_SECONDS", -1.0)


def settle(qtbot: QtBot, transcript: TranscriptView) -> None:
    """Waits until both modes have laid out all their content."""
    pane = transcript.tokens if transcript.mode.value == "tokens" else transcript.read
    qtbot.waitUntil(lambda: all(box.body.done for box in pane.page.boxes), timeout=PATIENCE_MS)
    QApplication.processEvents()


def centre(transcript: TranscriptView, node_id: int, index: int) -> QPoint:
    """The middle of a token, in the viewport of Tokens mode."""
    box = transcript.tokens.token_box(node_id, index)
    assert box is not None, f"token {index} of node {node_id} is not drawn"
    return box.center()


def click(qtbot: QtBot, transcript: TranscriptView, node_id: int, index: int) -> None:
    """A real click on a token."""
    QTest.mouseClick(transcript.tokens.viewport(), Qt.MouseButton.LeftButton, pos=centre(transcript, node_id, index))


def drag(qtbot: QtBot, transcript: TranscriptView, first: QPoint, last: QPoint) -> None:
    """A real drag with the left button."""
    viewport = transcript.tokens.viewport()
    QTest.mousePress(viewport, Qt.MouseButton.LeftButton, pos=first)
    QTest.mouseMove(viewport, pos=(first + last) / 2)
    QTest.mouseMove(viewport, pos=last)
    QTest.mouseRelease(viewport, Qt.MouseButton.LeftButton, pos=last)
