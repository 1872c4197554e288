"""The Depth tab: where a token takes the lead, what the pointer adds, when it is asked for and what is refused."""

from __future__ import annotations

from collections.abc import Callable

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
from ui import EngineState, MainWindow, SessionView, StatusChanged, StatusView
from ui.inspector import Inspector

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
def test_the_layer_that_takes_the_lead_is_named(
    ranks: list[int], words: str, inspector: Inspector, vocabulary: Vocabulary
) -> None:
    spot = spot_of(run_of(vocabulary, [" Lisbon"], [3.0]))
    inspector.show_spot(spot, vocabulary.bytes_of, can_choose=True)
    QTest.mouseClick(inspector.tabs[4], Qt.MouseButton.LeftButton)
    inspector.layers.show_depth(spot.node_id, spot.index, layers_of(vocabulary, ranks))
    assert inspector.layers.verdict.text() == words
    assert "layer 0: " in inspector.layers.layers.accessibleDescription()


def test_the_pointer_tells_of_the_token_under_it(inspector: Inspector, vocabulary: Vocabulary) -> None:
    spot = spot_of(run_of(vocabulary, [" Lisbon"], [3.0]))
    inspector.show_spot(spot, vocabulary.bytes_of, can_choose=True)
    QTest.mouseClick(inspector.tabs[4], Qt.MouseButton.LeftButton)
    tab = inspector.layers
    tab.show_depth(spot.node_id, spot.index, layers_of(vocabulary))
    resting = tab.note.text()
    # given the likeliest of the first row, an alternative: when the pointer comes to it
    table = tab.layers
    at = next(QPoint(x, y) for y in range(table.height()) for x in range(0, 200, 4) if table.cell_at(x, y) > 0)
    QTest.mouseMove(table, at)
    # then its rank is told, and a cell without a column, or none, tells how to read the table
    assert tab.note.text() == "␣Rome: rank 2 after the last layer"
    QTest.mouseMove(table, QPoint(table.width() - 3, at.y()))
    assert tab.note.text() == resting
    # and another token's answer, which comes late, is passed over
    tab.show_depth(spot.node_id, spot.index + 1, layers_of(vocabulary, [1, 1, 1, 1, 1]))
    assert tab.verdict.text() == "leads from layer 3 of 4"


def test_the_window_asks_only_while_it_can_be_seen_and_says_what_is_refused(in_window: Play, bench: FakeWorkbench) -> None:
    answer = bench.turn("assistant", [], run=run_of(bench.vocabulary, [" Lisbon", " Rome"], [3.0, 1.0]))
    bench.views[TRIP] = SessionView(TRIP, "A spring trip", (bench.turn("user", ["Where", "?"]), answer), ())
    bench.layers = layers_of(bench.vocabulary)

    async def scene(window: MainWindow) -> None:
        depth, tokens = window.parts.inspector.layers, window.parts.transcript.tokens.viewport()
        QTest.mouseClick(tokens, Qt.MouseButton.LeftButton, pos=centre(window.parts.transcript, answer.node_id, 0))
        await until(lambda: window.parts.inspector.token.spot is not None)
        assert bench.asked("depth") == []
        # when the tab is opened
        QTest.mouseClick(window.parts.inspector.tabs[4], Qt.MouseButton.LeftButton)
        await until(lambda: depth.verdict.text() == "leads from layer 3 of 4")
        assert bench.asked("depth") == [(TRIP, answer.node_id, 0)]
        # when the model changes, it is asked again, and a refusal stands in the table's place
        bench.refusal = "these tokens are those of A, and B is in use"
        bench.emit(StatusChanged(StatusView(EngineState.STARTING)))
        await until(lambda: depth.note.text() == "these tokens are those of A, and B is in use")
        assert depth.layers.run is None
        assert not depth.verdict.isVisible()

    in_window(scene)
