"""An empty session: three ways to begin, each with one click."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.window.test_conversation import finish
from ui import EngineState, MainWindow, StatusChanged, StatusView
from ui.transcript import Mode

Play = Callable[[Scene], None]
LEFT = Qt.MouseButton.LeftButton


async def empty(window: MainWindow) -> None:
    assert not window.starters.card.isVisible()
    QTest.keyClick(window, Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier)
    await until(window.starters.card.isVisible)


def test_tab_reaches_the_starters_before_the_message(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        await empty(window)
        card, parts = window.starters.card, window.parts
        for mode in Mode:
            window.presenter.set_mode(mode)
            parts.transcript.setFocus()
            for expected in (card.own_text, card.endings, card.unsure, parts.composer.field):
                focused = QApplication.focusWidget()
                assert focused is not None
                QTest.keyClick(focused, Qt.Key.Key_Tab)
                assert QApplication.focusWidget() is expected

    in_window(scene)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [False, True])  # at the longest length of an answer
def test_eight_endings_are_shown_side_by_side(in_window: Play, bench: FakeWorkbench, *, cut: bool) -> None:
    finish(bench)
    bench.cuts_answers = cut

    async def scene(window: MainWindow) -> None:
        await empty(window)
        QTest.mouseClick(window.starters.card.endings, LEFT)
        await until(lambda: bool(bench.asked("continue_many")))
        assert window.controller.shown is not None
        last = window.controller.shown.last_answer
        assert last is not None
        assert window.controller.shown.session_id != TRIP
        assert bench.asked("continue_many") == [(window.controller.shown.session_id, last.node_id, 0, 8)]
        await until(lambda: len(window.parts.columns.cards) == 8)
        assert not window.starters.card.isVisible()

    in_window(scene)


@pytest.mark.slow
def test_the_card_of_the_most_uncertain_token_is_opened(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        await empty(window)
        QTest.mouseClick(window.starters.card.unsure, LEFT)
        await until(lambda: window.parts.transcript.pinned is not None and window.parts.pinned.isVisible())
        assert len(bench.asked("send")) == 1
        # the last token of the answer has the highest entropy
        assert window.controller.shown is not None
        assert window.controller.shown.last_answer is not None
        assert window.parts.transcript.pinned == (window.controller.shown.last_answer.node_id, len(bench.answer) - 1)
        # the starter applies once: nothing is pinned for the next answer
        window.parts.pinned.close_again()
        QTest.keyClicks(window.parts.composer.field, "Go on")
        await until(window.parts.composer.send_button.isEnabled)
        QTest.keyClick(window.parts.composer.field, Qt.Key.Key_Return)
        await until(lambda: len(bench.asked("send")) == 2 and not window.controller.running)
        await frames()
        assert not window.parts.pinned.isVisible()
        # and while the user is typing as the answer ends: the token is pinned, the keyboard focus stays
        await empty(window)
        bench.gate = asyncio.Semaphore(1)
        QTest.mouseClick(window.starters.card.unsure, LEFT)
        await until(lambda: window.controller.running)
        QTest.keyClicks(window.parts.composer.field, "My ne")
        for _ in bench.answer:
            bench.gate.release()
        await until(lambda: window.parts.transcript.pinned is not None)
        await frames()
        assert window.parts.composer.field.hasFocus()
        assert not window.parts.pinned.isVisible()

    in_window(scene)


@pytest.mark.slow
def test_a_stopped_starter_runs_no_further_steps(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    gate = bench.gate = asyncio.Semaphore(1)

    async def scene(window: MainWindow) -> None:
        await empty(window)
        QTest.mouseClick(window.starters.card.endings, LEFT)
        await until(lambda: window.controller.running)
        await frames()
        QTest.mouseClick(window.parts.composer.send_button, LEFT)
        gate.release()
        await until(lambda: not window.controller.running)
        await frames()
        assert bench.asked("continue_many") == []

    in_window(scene)


@pytest.mark.slow
def test_the_users_text_is_coloured_without_an_answer(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    bench.surprises = {"rain": 9.0}

    async def scene(window: MainWindow) -> None:
        window.presenter.set_mode(Mode.READ)
        await empty(window)
        QTest.mouseClick(window.starters.card.own_text, LEFT)
        field = window.parts.composer.field
        assert field.hasFocus()
        assert "your own text" in field.placeholderText()
        QTest.keyClicks(field, "rain")
        await until(lambda: field.colours.spans == [("rain", 5)])
        assert field.colours.shown
        assert bench.asked("send") == []

    in_window(scene)


def test_starters_that_need_a_model_are_disabled_with_the_reason(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        await empty(window)
        bench.emit(StatusChanged(StatusView(EngineState.NONE, "smollm2 is not on this computer")))
        card = window.starters.card
        await until(lambda: not card.endings.isEnabled())
        assert "choose a model first" in card.unsure.toolTip()
        assert card.own_text.isEnabled()
        # and so are those that a model on a server does not support
        bench.emit(StatusChanged(StatusView(EngineState.READY, model="big at host", lacks=frozenset({"kv", "token_ids"}))))
        await until(card.unsure.isEnabled)
        assert not card.own_text.isEnabled()
        assert "nothing is sent before Send" in card.own_text.toolTip()
        assert not card.endings.isEnabled()
        assert "a branch cannot start at a token" in card.endings.toolTip()

    in_window(scene)
