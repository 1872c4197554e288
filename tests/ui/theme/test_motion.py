"""Fades: 120 ms for the card and another branch, none with reduced motion, and nothing waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QAbstractAnimation, QPoint, Qt, QVariantAnimation
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from tests.ui.conftest import Scene, until
from tests.ui.fakes import TRIP, FakeWorkbench
from ui import MainWindow, Motion, Scheme, SessionChanged, apply_theme
from ui.theme import current_theme
from ui.theme.scheme import FADE_MS, system_reduces

Play = Callable[[Scene], None]
LONG_MS = 60_000  # a fade that does not end during the checks


@pytest.fixture(params=[Motion.SYSTEM, Motion.REDUCED])
def motion(app: QApplication, request: pytest.FixtureRequest) -> Iterator[Motion]:
    apply_theme(app, Scheme.LIGHT, motion=request.param)
    yield request.param
    apply_theme(app, Scheme.LIGHT, motion=Motion.SYSTEM)


def test_motion_follows_the_system_unless_reduced_motion_is_chosen(app: QApplication, monkeypatch: pytest.MonkeyPatch) -> None:
    theme = apply_theme(app, Scheme.LIGHT, motion=Motion.SYSTEM)
    assert theme.fade_ms == (0 if system_reduces() else FADE_MS) == 120
    monkeypatch.setattr("ui.theme.scheme.system_reduces", lambda: True)
    assert current_theme().fade_ms == 0


@pytest.mark.slow
def test_another_branch_fades_in_over_the_previous_one(
    in_window: Play, bench: FakeWorkbench, motion: Motion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ui.theme.scheme.FADE_MS", LONG_MS)

    async def scene(window: MainWindow) -> None:
        transcript = window.parts.transcript
        await until(lambda: window.parts.top.branch.forth.isEnabled())
        before = transcript.tokens.viewport().grab().toImage()
        other = bench.turn("assistant", ["Another", " branch", " altogether"])
        turns = bench.views[TRIP].turns
        bench.emit(SessionChanged(replace(bench.views[TRIP], turns=(turns[0], other))))
        await until(lambda: transcript.tokens.token_box(other.node_id, 0) is not None)
        if motion is Motion.REDUCED:
            assert not transcript.veil.isVisible()
            return
        veil = transcript.veil
        assert veil.isVisible()
        fade = veil.findChild(QVariantAnimation)
        assert fade is not None
        assert fade.duration() == LONG_MS
        fade.pause()
        fade.setCurrentTime(0)
        assert veil.grab().toImage().pixelColor(400, 40) == before.pixelColor(400, 40)
        # the veil ignores the mouse: the new text can be clicked at once
        box = transcript.tokens.token_box(other.node_id, 1)
        assert box is not None
        at = transcript.tokens.viewport().mapTo(window, box.center())
        assert window.childAt(at) is transcript.tokens.viewport()
        QTest.mouseClick(transcript.tokens.viewport(), Qt.MouseButton.LeftButton, pos=box.center())
        assert transcript.pinned == (other.node_id, 1)
        fade.setCurrentTime(LONG_MS - 10)
        fade.resume()
        await until(lambda: not veil.isVisible())
        assert fade.state() is QAbstractAnimation.State.Stopped

    in_window(scene)


def test_new_turns_and_other_sessions_do_not_fade_in(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        transcript = window.parts.transcript
        view = bench.views[TRIP]
        more = bench.turn("user", ["One", " more"])
        bench.emit(SessionChanged(replace(view, turns=(*view.turns, more))))
        await until(lambda: len(transcript.tokens.page.boxes) == len(view.turns) + 1)
        assert not transcript.veil.isVisible()
        listed = window.parts.sidebar.sessions.view
        QTest.mouseClick(listed.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(60, listed.viewport().height() - 8))
        window.controller.open(4)
        await until(lambda: window.controller.shown is not None and window.controller.shown.session_id == 4)
        assert not transcript.veil.isVisible()

    in_window(scene)
