"""Continuations with a real engine: previewed, drawn as columns, searched by beams, kept, replayed, pruned."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from app.workbench import AppWorkbench
from tests.end_to_end.conftest import Scene
from tests.end_to_end.driving import at_rest, click, generated, last, say, until, whole
from tests.end_to_end.test_window import answered, seeded_session
from tests.tiny_models import tiny_folder
from ui import MainWindow, TurnStatus, TurnView

OpenApp = Callable[[str, str, Scene], None]
CONTROL_ALT = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier


async def stopped_answer(window: MainWindow, workbench: AppWorkbench) -> TurnView:
    await seeded_session(window, workbench)
    say(window, "Where should we go?")
    await answered(window, 24)
    QTest.keyClick(window, Qt.Key.Key_Period, Qt.KeyboardModifier.ControlModifier)
    await until(lambda: last(window).status is TurnStatus.PARTIAL)
    return last(window)


@pytest.mark.slow
def test_continuations_beams_preview_and_why(open_app: OpenApp, paced: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.workbench.answers.continuations.DRAWN_TOKENS", 100_000)  # a column ends only when it is stopped
    kept: dict[str, int] = {}

    async def scene(window: MainWindow, workbench: AppWorkbench) -> None:
        turn = await stopped_answer(window, workbench)
        tokens, panel, why = window.parts.transcript.tokens, window.parts.columns, window.parts.inspector.why
        index = whole(turn, generated(turn)[2])
        await click(window, turn.node_id, index)

        # Space previews an alternative: greedy words of the real model; nothing is stored
        QTest.keyClick(tokens, Qt.Key.Key_Space)
        await until(lambda: tokens.ghost is not None and tokens.ghost.tail)
        assert len(last(window).variants) == 1
        QTest.keyClick(tokens, Qt.Key.Key_Escape)

        # four continuations of that token stream as columns
        QTest.mouseClick(window.parts.inspector.token.draws.buttons[4], Qt.MouseButton.LeftButton)
        await until(lambda: len(panel.cards) == 4 and all(card.text.length >= 24 for card in panel.cards))
        assert window.controller.running
        # and stop together
        QTest.keyClick(window, Qt.Key.Key_Period, Qt.KeyboardModifier.ControlModifier)
        await at_rest(window)
        columns = [card.column for card in panel.cards]
        assert last(window).node_id == turn.node_id
        assert last(window).variants == (turn.node_id, *(column.node_id for column in columns))
        # one is kept: it is shown after the earlier turns
        panel.area.ensureWidgetVisible(panel.cards[1].keep)
        QTest.mouseClick(panel.cards[1].keep, Qt.MouseButton.LeftButton)
        await until(lambda: last(window).node_id == columns[1].node_id)
        assert last(window).run.ids.tolist() == [*turn.run.ids[:index].tolist(), *columns[1].run.ids.tolist()]
        assert not panel.isVisible()

        await until(lambda: all(box.body.done for box in tokens.page.boxes))

        # Why: the whole row of the real model draws the stored token again, with the random number of its place
        at = whole(last(window), index)
        await click(window, columns[1].node_id, at)
        QTest.mouseClick(window.parts.inspector.tabs[3], Qt.MouseButton.LeftButton)
        await until(lambda: why.ask.isVisible())
        QTest.mouseClick(why.ask, Qt.MouseButton.LeftButton)
        await until(lambda: why.outcome.stages and why.outcome.whole)
        assert why.outcome.token == last(window).run.ids[at]
        # with other settings it shows another draw, without the model
        why.dials.rows["temperature"].slider.setFocus()
        for _ in range(12):
            QTest.keyClick(why.dials.rows["temperature"].slider, Qt.Key.Key_PageDown)
        assert why.dials.sampling.temperature == 0.0
        record = last(window).run.record(at)
        assert why.outcome.token == record.top_ids[0]

        # beams of the same place, best first
        QTest.keyClick(tokens, Qt.Key.Key_B, CONTROL_ALT)
        await until(lambda: len(panel.cards) == 4)
        await at_rest(window)
        scores = [card.column.score for card in panel.cards]
        assert scores == sorted(scores, key=lambda score: -(score or 0.0))
        for card in panel.cards:
            assert card.column.logprob == pytest.approx(float(np.nansum(card.column.run.logprob)), abs=1e-3)
        beams = [card.column.node_id for card in panel.cards]
        QTest.mouseClick(panel.close_button, Qt.MouseButton.LeftButton)

        # the shown branch is pruned from the fork of the beams: the newest beam is shown, and the branch is no longer a variant
        before = last(window)
        QTest.keyClick(tokens, Qt.Key.Key_P, CONTROL_ALT)
        await until(lambda: last(window).node_id != before.node_id)
        assert last(window).node_id == max(beams)
        assert last(window).run.ids[:at].tolist() == before.run.ids[:at].tolist()
        assert last(window).variants == tuple(node for node in before.variants if node != before.node_id)
        kept.update(shown=last(window).node_id, pruned=before.node_id, start=at - index, count=len(last(window).variants))

    open_app(str(tiny_folder("llama").path), paced, scene)

    async def next_morning(window: MainWindow, workbench: AppWorkbench) -> None:
        # everything is restored, and the pruned branch is still hidden
        await until(lambda: window.controller.shown is not None and window.controller.shown.view.turns)
        assert last(window).node_id == kept["shown"]
        assert len(last(window).variants) == kept["count"]
        window.acts.undo.trigger()  # nothing to undo after a restart
        window.acts.pruned.trigger()
        rows = window.parts.sidebar.tree.rows.rows
        assert [(row.node_id, row.start) for row in rows if row.pruned] == [(kept["pruned"], kept["start"])]

    open_app(str(tiny_folder("llama").path), paced, next_morning)
