"""Space previews the continuation of an alternative, in grey, at its place; any move removes the preview."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.ui.comparison.test_continuations import pinned
from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.transcript.conftest import centre
from ui import MainWindow, TurnStatus
from ui.transcript.overlay.ghost import ghost_of, next_alternative

Play = Callable[[Scene], None]


@pytest.fixture
def idle(bench: FakeWorkbench) -> FakeWorkbench:
    view = bench.views[TRIP]
    last = bench.turn("assistant", ["Because", " of", " light"], status=TurnStatus.PARTIAL)
    bench.add(bench.summaries[TRIP], [*view.turns[:-1], last], branches=view.branches)
    return bench


@pytest.mark.slow
def test_space_previews_one_alternative_after_the_other(in_window: Play, idle: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        tokens = window.parts.transcript.tokens
        node_id = await pinned(window, idle)  # " Lisbon", third of the ten
        idle.gate = asyncio.Semaphore(0)
        paris, rome = idle.vocabulary.id_of(" Paris"), idle.vocabulary.id_of(" Rome")
        # when
        QTest.keyClick(tokens, Qt.Key.Key_Space)
        # then the alternative is shown at once, its continuation as soon as it is computed
        assert tokens.ghost is not None
        assert tokens.ghost.text == " Paris…"
        await until(lambda: idle.asked("preview") == [(TRIP, node_id, 3, paris, 8)])
        idle.gate.release()
        await until(lambda: tokens.ghost is not None and tokens.ghost.text == " Paris when it rains")
        assert not tokens.grab().isNull()
        # the next Space shows the next one
        QTest.keyClick(tokens, Qt.Key.Key_Space)
        await until(lambda: idle.asked("preview")[-1] == (TRIP, node_id, 3, rome, 8))
        idle.gate.release()
        await until(lambda: tokens.ghost is not None and tokens.ghost.text == " Rome when it rains")
        # no branch was made
        assert idle.asked("branch") == []
        # Escape removes it and keeps the token pinned
        QTest.keyClick(tokens, Qt.Key.Key_Escape)
        assert tokens.ghost is None
        assert tokens.pinned == (node_id, 3)

    in_window(scene)


@pytest.mark.slow
def test_return_chooses_the_previewed_alternative(in_window: Play, idle: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        tokens = window.parts.transcript.tokens
        node_id = await pinned(window, idle)
        QTest.keyClick(tokens, Qt.Key.Key_Space)
        QTest.keyClick(tokens, Qt.Key.Key_Space)
        QTest.keyClick(tokens, Qt.Key.Key_Return)
        await until(lambda: idle.asked("branch") == [(TRIP, node_id, 3, idle.vocabulary.id_of(" Rome"))])
        await until(lambda: tokens.ghost is None)

    in_window(scene)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("move", [Qt.Key.Key_Right, Qt.Key.Key_Left, Qt.Key.Key_Escape])
def test_any_move_cancels_the_request(in_window: Play, idle: FakeWorkbench, move: Qt.Key) -> None:
    async def scene(window: MainWindow) -> None:
        tokens = window.parts.transcript.tokens
        await pinned(window, idle)
        idle.gate = asyncio.Semaphore(0)
        QTest.keyClick(tokens, Qt.Key.Key_Space)
        await until(lambda: len(idle.asked("preview")) == 1)
        QTest.keyClick(tokens, move)
        # then the request is cancelled, and no preview is shown
        await until(lambda: len(window.controller.tasks) == 0)
        idle.gate.release()
        await frames()
        assert tokens.ghost is None

    in_window(scene)


@pytest.mark.slow
def test_space_on_a_bar_of_the_inspector_previews_it_and_return_chooses(in_window: Play, idle: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        tokens, buttons = window.parts.transcript.tokens, window.parts.inspector.token.alternatives.buttons
        node_id = await pinned(window, idle)
        buttons[3].setFocus()
        QTest.keyClick(buttons[3], Qt.Key.Key_Space)
        await until(lambda: tokens.ghost is not None and tokens.ghost.text == " Kyoto when it rains")
        assert idle.asked("branch") == []
        QTest.keyClick(buttons[3], Qt.Key.Key_Return)
        await until(lambda: idle.asked("branch") == [(TRIP, node_id, 3, idle.vocabulary.id_of(" Kyoto"))])

    in_window(scene)


@pytest.mark.slow
def test_a_refused_preview_shows_the_reason_and_keeps_the_word(in_window: Play, idle: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        await pinned(window, idle)
        idle.refusal = "no model runs"
        QTest.keyClick(window.parts.transcript.tokens, Qt.Key.Key_Space)
        await until(lambda: window.parts.composer.notice.words == "no model runs")
        ghost = window.parts.transcript.tokens.ghost
        assert ghost is not None
        assert ghost.text == " Paris"  # no continuation is pending any more

    in_window(scene)


@pytest.mark.slow
def test_text_of_the_user_has_no_preview(in_window: Play, idle: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        view = window.parts.transcript
        await until(lambda: view.tokens.page.boxes and all(box.body.done for box in view.tokens.page.boxes))
        await frames()
        own = idle.views[TRIP].turns[0].node_id
        QTest.mouseClick(view.tokens.viewport(), Qt.MouseButton.LeftButton, pos=centre(view, own, 2))
        QTest.keyClick(view.tokens, Qt.Key.Key_Space)
        await frames()
        assert view.tokens.ghost is None
        assert idle.asked("preview") == []

    in_window(scene)


@pytest.mark.slow
def test_the_text_is_painted_as_before_once_the_preview_is_removed(in_window: Play, idle: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        tokens = window.parts.transcript.tokens
        await pinned(window, idle)
        window.parts.pinned.close_again()  # and with it the caret of its field
        await frames()
        before = tokens.viewport().grab().toImage()
        QTest.keyClick(tokens, Qt.Key.Key_Space)
        await until(lambda: tokens.ghost is not None and tokens.ghost.tail is not None)
        during = tokens.viewport().grab().toImage()
        QTest.keyClick(tokens, Qt.Key.Key_Escape)
        after = tokens.viewport().grab().toImage()
        assert during != before
        assert after == before

    in_window(scene)


def test_stepping_through_alternatives_wraps_round_and_skips_the_token_itself() -> None:
    assert next_alternative((5, 6, 7), 6, None) == 5
    assert next_alternative((5, 6, 7), 6, 5) == 7
    assert next_alternative((5, 6, 7), 6, 7) == 5
    assert next_alternative((6,), 6, None) is None


def test_a_preview_makes_hidden_and_control_characters_visible() -> None:
    ghost = ghost_of(1, 0, 9, b"\x1b[31m").with_tail("\u202eevil\n".encode())
    assert ghost.text == "ESC[31mRLOevil↵ "
    assert ghost_of(1, 0, 9, b"").word == "#9"
