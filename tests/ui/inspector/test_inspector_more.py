"""The inspector beside the transcript: cumulative mass, sums of the selection, and the action of an empty tab."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtGui import QFont, QFontMetrics
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.window.test_conversation import finish
from ui import MainWindow
from ui.inspector.depth import DepthTab
from ui.inspector.path import numbers_of
from ui.inspector.tab import Empty
from ui.inspector.words import token
from ui.theme.fonts import mono_font
from ui.theme.text_size import resize_text

Play = Callable[[Scene], None]


@pytest.mark.slow
def test_each_alternative_shows_the_cumulative_mass_up_to_it(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        turn = bench.views[TRIP].turns[1]
        window.presenter.pin(turn.node_id, 3)
        shown = [b.alternative.so_far for b in window.parts.inspector.token.alternatives.buttons if b.alternative is not None]
        masses = [mass for mass in shown if mass is not None]
        sums = np.cumsum(np.exp(turn.run.top_logprobs[3][: len(masses)].astype(np.float64)))
        assert len(masses) > 3
        assert masses == pytest.approx(sums.tolist(), rel=1e-4)
        second = window.parts.inspector.token.alternatives.buttons[1]
        assert second.accessibleDescription() == f"{sums[1] * 100:.1f} % up to here"

    in_window(scene)


@pytest.mark.slow
def test_alternatives_have_room_for_their_words_at_any_text_size(
    in_window: Play, bench: FakeWorkbench, app: QApplication
) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        window.presenter.pin(bench.views[TRIP].turns[1].node_id, 3)
        for scale in (1.0, 2.0, 1.0):  # while the tab is shown
            resize_text(app, scale)
            await frames()
            metrics = QFontMetrics(mono_font(weight=QFont.Weight.DemiBold))
            button = window.parts.inspector.token.alternatives.buttons[2]
            assert button.alternative is not None
            assert button.token_px >= metrics.horizontalAdvance(token(button.alternative.data)), scale

    in_window(scene)


@pytest.mark.slow
def test_the_path_tab_shows_the_sums_of_the_selection(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        window.parts.inspector.tabs[1].click()
        path, pane = window.parts.inspector.path, window.parts.transcript.tokens
        await until(lambda: not path.facts.isHidden())
        assert not path.range.isVisible()
        # when some words of an answer are selected with the mouse
        turn = bench.views[TRIP].turns[1]
        first, last = pane.token_box(turn.node_id, 2), pane.token_box(turn.node_id, 4)
        assert first is not None
        assert last is not None
        port = pane.viewport()
        QTest.mousePress(port, Qt.MouseButton.LeftButton, pos=first.topLeft() + (first.bottomLeft() - first.topLeft()) / 2)
        QTest.mouseMove(port, last.center())
        QTest.mouseMove(port, last.topRight() + (last.bottomRight() - last.topRight()) / 2)
        QTest.mouseRelease(port, Qt.MouseButton.LeftButton, pos=last.topRight() + (last.bottomRight() - last.topRight()) / 2)
        await until(path.range.isVisible)
        # then their sums are shown
        wanted = numbers_of((replace(turn, run=turn.run[2:5]),))
        assert path.range.texts["tokens"] == "3"
        assert path.range.texts["perplexity"] == f"{wanted.perplexity:,.2f}"
        assert path.range.texts["joint log-probability"] == f"−{-wanted.logprob:.1f} nats"
        # and the sums of the whole selection, of any role, selected by keys
        pane.setFocus()
        QTest.keyClick(pane, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
        whole = numbers_of(tuple(replace(each, role="assistant") for each in bench.views[TRIP].turns))
        await until(lambda: path.range.texts["scored"] == str(whole.scored))
        assert math.isclose(float(path.range.texts["perplexity"].replace(",", "")), whole.perplexity, abs_tol=0.01)
        # until the selection is cleared
        QTest.keyClick(pane, Qt.Key.Key_Escape)
        await until(lambda: not path.range.isVisible())

    in_window(scene)


def press(empty: Empty) -> None:
    QTest.mouseClick(empty.button, Qt.MouseButton.LeftButton)


@pytest.mark.slow
def test_an_empty_tab_offers_exactly_one_action(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        inspector = window.parts.inspector
        window.activateWindow()
        await until(window.isActiveWindow)
        # with tokens, it pins one
        for place, tab, mode in ((0, inspector.token, window.acts.tokens), (3, inspector.why, window.acts.read)):
            mode.trigger()
            inspector.tabs[place].click()
            assert tab.empty.isVisible()
            assert tab.empty.button.text() == "Show an uncertain token"
            press(tab.empty)
            await until(lambda: inspector.token.spot is not None)
            assert not tab.empty.isVisible()
            assert window.parts.transcript.tokens.hasFocus()
            window.parts.transcript.setFocus()
            QTest.keyClick(window.parts.transcript.tokens, Qt.Key.Key_Escape)
            await until(lambda: inspector.token.spot is None)
        # without tokens, it focuses the message field
        window.controller.new_session()
        await until(lambda: window.controller.shown is not None and window.controller.shown.session_id != TRIP)
        own = (inspector.token.empty, inspector.path.empty, inspector.why.empty, inspector.page(DepthTab).empty)
        for place, empty in zip((0, 1, 3, 4), own, strict=True):
            window.parts.transcript.setFocus()
            inspector.tabs[place].click()
            await frames(1)
            assert empty.button.text() == "Write a message"
            press(empty)
            assert window.parts.composer.field.hasFocus()

    in_window(scene)
