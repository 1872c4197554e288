"""The Depth tab: the layer from which a token leads, the note under the pointer, requests and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest

from runtime import LensRun
from tests.ui.conftest import Scene, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.inspector.test_inspector import spot_of
from tests.ui.spoken import Vocabulary, run_of
from tests.ui.transcript.conftest import centre
from ui import EngineState, MainWindow, SessionView, StatusChanged, StatusView, TurnDepth, TurnDepthCost
from ui.inspector import Inspector
from ui.inspector.depth import DepthTab
from ui.transcript import Measure
from ui.transcript.tokens import STEP

Play = Callable[[Scene], None]
LISBON = [40, 12, 3, 1, 1]  # ranks of the token after each of five rows; it leads from layer 3 of 4
ROME = [9, 1, 1, 2, 2]


def layers_of(vocabulary: Vocabulary, lisbon: list[int] = LISBON) -> LensRun:
    rows, ids = len(lisbon), [vocabulary.id_of(word) for word in (" Lisbon", " Rome", " Kyoto")]
    ranks = np.array([lisbon, ROME], np.int32).T[None]
    top = [ids if rank == 1 else [ids[1], ids[2], ids[0]] for rank in lisbon]
    return LensRun(
        positions=np.array([7], np.int32),
        token_ids=np.array([ids[:2]], np.int32),
        logprobs=-np.log(ranks).astype(np.float32),
        ranks=ranks,
        top_ids=np.array([top], np.int32),
        top_logprobs=np.log(np.array([[[0.7, 0.2, 0.01]] * rows], np.float32)),
        entropy=np.ones((1, rows), np.float32),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (LISBON, "leads from layer 3 of 4"),
        ([1, 1, 1, 1, 1], "leads from layer 0 of 4"),
        ([1, 1, 1, 2, 1], "leads from layer 4 of 4"),
        ([1, 1, 1, 1, 1500], "does not lead: rank 1,500 after layer 4"),
    ],
    ids=str,
)
def test_the_layer_from_which_the_token_leads_is_shown(
    ranks: list[int], words: str, inspector: Inspector, vocabulary: Vocabulary
) -> None:
    spot = spot_of(run_of(vocabulary, [" Lisbon"], [3.0]))
    inspector.show_spot(spot, vocabulary.bytes_of, can_choose=True)
    QTest.mouseClick(inspector.tabs[4], Qt.MouseButton.LeftButton)
    inspector.page(DepthTab).show_depth(spot.node_id, spot.index, layers_of(vocabulary, ranks))
    assert inspector.page(DepthTab).verdict.text() == words
    assert "layer 0: " in inspector.page(DepthTab).layers.accessibleDescription()


def test_the_note_describes_the_token_under_the_pointer(inspector: Inspector, vocabulary: Vocabulary) -> None:
    spot = spot_of(run_of(vocabulary, [" Lisbon"], [3.0]))
    inspector.show_spot(spot, vocabulary.bytes_of, can_choose=True)
    QTest.mouseClick(inspector.tabs[4], Qt.MouseButton.LeftButton)
    tab = inspector.page(DepthTab)
    tab.show_depth(spot.node_id, spot.index, layers_of(vocabulary))
    explanation = tab.note.text()
    # given the likeliest token of the first row, an alternative: when the pointer is moved to it
    table = tab.layers
    at = next(QPoint(x, y) for y in range(table.height()) for x in range(0, 200, 4) if table.cell_at(x, y) is not None)
    QTest.mouseMove(table, at)
    # then the note has its rank, and outside such cells the note explains the table
    assert tab.note.text() == "␣Rome: rank 2 after the last layer"
    QTest.mouseMove(table, QPoint(table.width() - 3, at.y()))
    assert tab.note.text() == explanation
    # and a late answer about another token is ignored
    tab.show_depth(spot.node_id, spot.index + 1, layers_of(vocabulary, [1, 1, 1, 1, 1]))
    assert tab.verdict.text() == "leads from layer 3 of 4"


def test_depth_is_requested_only_while_its_tab_is_visible_and_a_refusal_is_shown(in_window: Play, bench: FakeWorkbench) -> None:
    answer = bench.turn("assistant", [], run=run_of(bench.vocabulary, [" Lisbon", " Rome"], [3.0, 1.0]))
    bench.views[TRIP] = SessionView(TRIP, "A spring trip", (bench.turn("user", ["Where", "?"]), answer), ())
    bench.layers = layers_of(bench.vocabulary)

    async def scene(window: MainWindow) -> None:
        depth, tokens = window.parts.inspector.page(DepthTab), window.parts.transcript.tokens.viewport()
        QTest.mouseClick(tokens, Qt.MouseButton.LeftButton, pos=centre(window.parts.transcript, answer.node_id, 0))
        await until(lambda: window.parts.inspector.token.spot is not None)
        assert bench.asked("depth") == []
        # when the tab is opened
        QTest.mouseClick(window.parts.inspector.tabs[4], Qt.MouseButton.LeftButton)
        await until(lambda: depth.verdict.text() == "leads from layer 3 of 4")
        assert bench.asked("depth") == [(TRIP, answer.node_id, 0)]
        # the start and end of an answer request only the current cost of the turn
        told: list[EngineState] = []
        window.controller.status_changed.connect(lambda status: told.append(status.engine))
        for engine in (EngineState.BUSY, EngineState.READY):
            bench.emit(StatusChanged(StatusView(engine)))
            await until(partial(told.count, engine))
        await until(lambda: len(bench.asked("turn_depth_cost")) == 2 and not len(window.controller.tasks))
        assert bench.asked("depth") == [(TRIP, answer.node_id, 0)]
        # when the model changes, depth is requested again, and a refusal replaces the table
        bench.refusal = "these tokens are those of A, and B is in use"
        bench.emit(StatusChanged(StatusView(EngineState.STARTING)))
        await until(lambda: depth.note.text() == "these tokens are those of A, and B is in use")
        assert depth.layers.run is None
        assert not depth.verdict.isVisible()

    in_window(scene)


def test_arrow_keys_move_between_cells_and_missing_ranks_are_requested(in_window: Play, bench: FakeWorkbench) -> None:
    answer = bench.turn("assistant", [], run=run_of(bench.vocabulary, [" Lisbon", " Rome"], [3.0, 1.0]))
    bench.views[TRIP] = SessionView(TRIP, "A spring trip", (bench.turn("user", ["Where", "?"]), answer), ())
    first = bench.layers = layers_of(bench.vocabulary)
    lisbon, rome, kyoto = (bench.vocabulary.id_of(word) for word in (" Lisbon", " Rome", " Kyoto"))

    async def scene(window: MainWindow) -> None:
        depth, tokens = window.parts.inspector.page(DepthTab), window.parts.transcript.tokens.viewport()
        QTest.mouseClick(tokens, Qt.MouseButton.LeftButton, pos=centre(window.parts.transcript, answer.node_id, 0))
        tab = window.parts.inspector.tabs[4]
        QTest.mouseClick(tab, Qt.MouseButton.LeftButton)
        await until(lambda: depth.layers.run is not None)
        explanation, table = depth.note.text(), depth.layers
        # given focus on the tab, when Tab moves it into the table, then the cell of the leading layer is current
        tab.setFocus()
        for _ in range(20):
            QTest.keyClick(window.focusWidget(), Qt.Key.Key_Tab)
            if table.hasFocus():
                break
        assert depth.note.text() == "␣Lisbon: leads from layer 3"
        assert table.accessibleName() == "layer 3: ␣Lisbon"
        # when the current cell is a stored alternative, then its rank is shown and its line is drawn
        without = table.grab().toImage()
        QTest.keyClick(table, Qt.Key.Key_Right)
        assert depth.note.text() == "␣Rome: rank 2 after the last layer"
        assert table.token == rome
        assert table.grab().toImage() != without
        assert bench.asked("depth") == [(TRIP, answer.node_id, 0)]
        # and when it is a token without stored ranks, then these are requested with the others, once, and the cell stays
        more = np.array([[8], [7], [4], [3], [3]], np.int32)[None]
        bench.layers = replace(
            first,
            token_ids=np.array([[lisbon, kyoto, rome]], np.int32),
            ranks=np.concatenate([first.ranks[:, :, :1], more, first.ranks[:, :, 1:]], axis=2),
        )
        QTest.keyClick(table, Qt.Key.Key_Right)
        assert depth.note.text() == "␣Kyoto: reading its ranks…"
        await until(lambda: depth.note.text() == "␣Kyoto: rank 3 after the last layer")
        assert bench.asked("depth")[1:] == [(TRIP, answer.node_id, 0, kyoto, rome)]
        for key, name in ((Qt.Key.Key_Home, "layer 0: ␣Lisbon"), (Qt.Key.Key_Left, "layer 0: ␣Kyoto")):
            QTest.keyClick(table, key)
            assert table.accessibleName() == name
        QTest.keyClick(table, Qt.Key.Key_End)
        QTest.keyClick(table, Qt.Key.Key_Down)  # there is no cell below
        assert table.accessibleName() == "layer 4: ␣Rome"
        # and a click selects a cell too; without focus the table is as before
        QTest.mouseClick(table, Qt.MouseButton.LeftButton, pos=QPoint(40, table.height() - 5))
        assert table.accessibleName() == "layer 4: ␣Lisbon"
        tab.setFocus()
        assert depth.note.text() == explanation
        assert table.accessibleName() == "Layers"
        assert len(bench.asked("depth")) == 2

    in_window(scene)


def steps_of(window: MainWindow, node_id: int) -> list[int]:
    turn = next(turn for turn in window.parts.transcript.turns if turn.node_id == node_id)
    return [mark & STEP for mark in turn.tokens.marks]


def test_a_turn_is_coloured_by_layer_on_request(in_window: Play, bench: FakeWorkbench) -> None:
    words = [" Lisbon", " Rome", " Kyoto", " Rome", " Lisbon"]
    question = bench.turn("user", ["Where", "?"])
    answer = bench.turn("assistant", [], run=run_of(bench.vocabulary, words, [3.0, 1.0, 9.0, 0.1, 4.0]))
    bench.views[TRIP] = SessionView(TRIP, "A spring trip", (question, answer), ())
    bench.layers = layers_of(bench.vocabulary)
    bench.turn_layers = TurnDepth(np.array([-2, 3, 12, 30, -1], np.int32), 30)
    bench.gate = gate = asyncio.Semaphore(0)

    async def scene(window: MainWindow) -> None:
        row, tokens = window.parts.inspector.page(DepthTab).turn, window.parts.transcript.tokens.viewport()
        QTest.mouseClick(window.parts.inspector.tabs[4], Qt.MouseButton.LeftButton)
        QTest.mouseClick(tokens, Qt.MouseButton.LeftButton, pos=centre(window.parts.transcript, answer.node_id, 1))
        # given: the cost is shown first, and nothing is computed
        await until(lambda: row.isVisible())
        assert "412 tokens: as much work as reading 3,100" in row.words.text()
        assert bench.asked("turn_depth") == []
        before = steps_of(window, answer.node_id)
        # when it is started, it shows its progress, and can be stopped
        QTest.mouseClick(row.button, Qt.MouseButton.LeftButton)
        gate.release()
        gate.release()
        await until(lambda: row.words.text() == "Reading the layers: 2 of 5 tokens")
        assert row.button.text() == "Stop"
        QTest.mouseClick(row.button, Qt.MouseButton.LeftButton)
        await until(lambda: row.button.text() == "Colour the turn by layer")
        assert steps_of(window, answer.node_id) == before
        # and when it is started again and completes
        for _ in range(9):
            gate.release()
        QTest.mouseClick(row.button, Qt.MouseButton.LeftButton)
        await until(lambda: not row.button.isVisible())
        # then only that turn is coloured by layer, most strongly where the token never leads
        assert window.parts.status.legend.measure is Measure.LAYER
        assert steps_of(window, answer.node_id) == [0, 0, 1, 4, 5]
        assert set(steps_of(window, question.node_id)) == {0}
        assert "the token does not lead" in window.parts.status.legend.accessibleName()
        # and changing the measure and back needs no model
        window.presenter.colour_by(Measure.SURPRISAL)
        assert steps_of(window, answer.node_id) == before
        window.presenter.colour_by(Measure.LAYER)
        assert steps_of(window, answer.node_id) == [0, 0, 1, 4, 5]
        assert len(bench.asked("turn_depth")) == 2
        # and when the answer has grown, it is offered again
        row.show_cost(answer.node_id, TurnDepthCost(500, 4_000))
        assert row.button.isVisible()

    in_window(scene)


@pytest.mark.slow
def test_a_refused_colouring_shows_the_reason_and_another_session_stops_a_running_one(
    in_window: Play, bench: FakeWorkbench
) -> None:
    answer = bench.turn("assistant", [], run=run_of(bench.vocabulary, [" Lisbon", " Rome"], [3.0, 1.0]))
    bench.views[TRIP] = SessionView(TRIP, "A spring trip", (bench.turn("user", ["Where", "?"]), answer), ())
    bench.layers, bench.turn_layers = layers_of(bench.vocabulary), TurnDepth(np.array([1, 2], np.int32), 4)

    async def scene(window: MainWindow) -> None:
        row, tokens = window.parts.inspector.page(DepthTab).turn, window.parts.transcript.tokens.viewport()
        QTest.mouseClick(window.parts.inspector.tabs[4], Qt.MouseButton.LeftButton)
        QTest.mouseClick(tokens, Qt.MouseButton.LeftButton, pos=centre(window.parts.transcript, answer.node_id, 1))
        await until(lambda: row.isVisible())
        bench.refusal = "the engine stopped"
        QTest.mouseClick(row.button, Qt.MouseButton.LeftButton)
        await until(lambda: row.words.text() == "the engine stopped")
        assert row.button.text() == "Colour the turn by layer"
        assert window.parts.transcript.measure is Measure.SURPRISAL
        # when it runs and another session is shown
        bench.gate = asyncio.Semaphore(0)
        QTest.mouseClick(row.button, Qt.MouseButton.LeftButton)
        await until(lambda: row.button.text() == "Stop")
        window.controller.new_session()
        await until(lambda: not row.isVisible())
        bench.gate = None
        assert window.parts.transcript.measure is Measure.SURPRISAL

    in_window(scene)
