"""The turns that are like one of them: asked for, listed, gone to, closed; by mouse and keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from PySide6.QtCore import QEvent, QPoint, Qt
from PySide6.QtGui import QAccessible, QMouseEvent
from PySide6.QtGui import Qt as RichText
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMenu, QPushButton

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from ui import EngineState, MainWindow, SessionChanged, SimilarTurn, StatusChanged, StatusView
from ui.similar.panel import SimilarPanel
from ui.transcript.meta import Action

Play = Callable[[Scene], None]
Key = Qt.Key
CTRL_SHIFT = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
ROME = SimilarTurn(43, "assistant", "You could visit Rome", 0.5, on_path=False, branch="… visit Rome")


def ask(window: MainWindow) -> None:
    """By the key, whoever has the keyboard."""
    window.activateWindow()
    QTest.keyClick(window, Key.Key_S, CTRL_SHIFT)


async def listed(window: MainWindow) -> SimilarPanel:
    ask(window)
    panel = window.parts.similar
    await until(lambda: bool(panel.list.rows.rows))
    return panel


async def standing(window: MainWindow) -> None:
    boxes = window.parts.transcript.tokens.page.boxes
    await until(lambda: bool(boxes) and all(box.body.done for box in boxes))


def press(window: MainWindow, turn: int, action: Action) -> None:
    """Moves to a turn, then clicks one of the actions that appeared."""
    pane = window.parts.transcript.tokens
    box = pane.page.boxes[turn]
    part = next(part for part in box.meta.parts(hovered=True) if part.action is action).box.center()
    top = box.top + box.body.height - pane.verticalScrollBar().value()
    at = QPoint(pane.column()[0] + round(part.x()), top + round(part.y()))
    over = QMouseEvent(
        QEvent.Type.MouseMove, at, pane.viewport().mapToGlobal(at), Qt.MouseButton.NoButton, Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier,
    )  # fmt: skip
    QApplication.sendEvent(pane.viewport(), over)
    QTest.mouseClick(pane.viewport(), Qt.MouseButton.LeftButton, pos=at)


def says(window: MainWindow, state: EngineState) -> bool:
    """Whether the status bar has heard of it."""
    return window.parts.status.engine.text() == state.value


def spoken(panel: SimilarPanel) -> list[str]:
    model = panel.list.rows
    return [model.index(row).data(int(Qt.ItemDataRole.AccessibleTextRole)) for row in range(len(model.rows))]


def test_a_turn_is_compared_from_the_line_under_it(in_window: Play, bench: FakeWorkbench) -> None:
    bench.elsewhere = [ROME]

    async def scene(window: MainWindow) -> None:
        first, visit, why, last = bench.views[TRIP].turns
        await standing(window)
        bench.gate = asyncio.Semaphore(0)
        # when it is asked for with the mouse
        press(window, 1, Action.SIMILAR)
        panel = window.parts.similar
        # then the panel says which turn it is, and how far it is, over the conversation
        assert panel.isVisible()
        assert panel.title.text().startswith("Similar to “You could visit Lisbon")
        await until(lambda: panel.note.text() == "comparing turns: 0 of 3")
        assert panel.bar.isVisible()
        bench.gate.release()
        await until(lambda: panel.note.text() == "comparing turns: 1 of 3")
        for _ in range(2):
            bench.gate.release()
        await until(lambda: len(panel.list.rows.rows) == 4)
        # and then all others, the most similar first
        assert bench.asked("similar_turns") == [(TRIP, visit.node_id, "mean")]
        assert [row.node_id for row in panel.list.rows.rows] == [last.node_id, why.node_id, first.node_id, 43]
        assert spoken(panel)[0] == "similarity 0.970, model, Because the city is built for slow mornings, on this branch"
        assert spoken(panel)[3] == "similarity 0.500, model, You could visit Rome, on the branch … visit Rome"
        assert panel.note.text() == "4 other turns · cosine of the hidden states of SmolLM2 135M Instruct"
        assert panel.bar.isHidden()
        rows = panel.list.rows
        assert [round(rows.share(row), 2) for row in rows.rows] == [0.94, 0.74, 0.54, 0.0]

    in_window(scene)


def test_arrows_and_return_go_to_a_turn_and_escape_gives_the_keyboard_back(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        first, _, why, last = bench.views[TRIP].turns
        await standing(window)
        field, tokens = window.parts.composer.field, window.parts.transcript.tokens
        window.activateWindow()
        field.setFocus()
        panel = await listed(window)
        # the last turn is meant where no token is pinned
        assert bench.asked("similar_turns") == [(TRIP, last.node_id, "mean")]
        assert panel.list.hasFocus()
        # when one goes down to another turn
        QTest.keyClick(panel.list, Key.Key_Down)
        QTest.keyClick(panel.list, Key.Key_Down)
        QTest.keyClick(panel.list, Key.Key_Return)
        # then its beginning is marked, and the list keeps the keyboard
        assert panel.list.rows.rows[2].node_id == first.node_id
        assert tokens.selected_text == "Where should we go in April?"
        assert panel.list.hasFocus()
        assert panel.list.gone_to == first.node_id
        assert bench.asked("show_turn") == []
        # by mouse likewise, and over two branches side by side the conversation comes back
        window.acts.compare.trigger()
        await until(window.parts.compare.isVisible)
        QTest.mouseClick(
            panel.list.viewport(), Qt.MouseButton.LeftButton, pos=panel.list.visualRect(panel.list.rows.index(0)).center()
        )
        assert window.parts.compare.isHidden()
        assert tokens.selected_text == "Why there?"
        assert panel.list.gone_to == why.node_id
        # when it is closed, then nothing is marked and the message has the keyboard
        QTest.keyClick(panel.list, Key.Key_Escape)
        assert panel.isHidden()
        assert tokens.selected_text == ""
        assert field.hasFocus()

    in_window(scene)


def test_the_turn_of_the_pinned_token_is_meant(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        await standing(window)
        first = bench.views[TRIP].turns[0]
        window.stage.pin(first.node_id, 2)
        window.acts.similar.trigger()
        await until(lambda: bench.asked("similar_turns") == [(TRIP, first.node_id, "mean")])

    in_window(scene)


def test_a_turn_of_another_branch_is_gone_to_and_that_can_be_undone(in_window: Play, bench: FakeWorkbench) -> None:
    bench.elsewhere = [ROME]

    async def scene(window: MainWindow) -> None:
        before = bench.views[TRIP].turns[-1]
        panel = await listed(window)
        QTest.keyClick(panel.list, Key.Key_End)
        QTest.keyClick(panel.list, Key.Key_Enter)
        await until(lambda: bench.asked("show_turn") == [(TRIP, 43)])
        # then it is shown and marked, and the rows follow the path
        tokens = window.parts.transcript.tokens
        await until(lambda: tokens.selected_text.startswith("You could visit Lisbon"))
        await until(lambda: any(row.node_id == 43 and row.on_path for row in panel.list.rows.rows))
        held = panel.list.currentIndex().row()
        assert panel.list.rows.rows[held].node_id == 43
        # and back again
        window.acts.undo.trigger()
        await until(lambda: bench.asked("select") == [(TRIP, before.node_id)])

    in_window(scene)


def test_vectors_are_made_another_way(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = await listed(window)
        last = bench.views[TRIP].turns[-1]
        shown = [part for part in panel.poolings.buttons if part.isVisible()]
        assert [part.text() for part in shown] == ["mean", "last", "max"]
        QTest.mouseClick(shown[1], Qt.MouseButton.LeftButton)
        await until(lambda: bench.asked("similar_turns")[1:] == [(TRIP, last.node_id, "last")])
        await frames()
        # the rows before stay until the others are there; a model that was trained for it offers the first token
        bench.poolings = ("mean", "last", "max", "cls")
        QTest.keyClick(shown[2], Key.Key_Space)
        await until(lambda: panel.poolings.buttons[3].isVisible())
        assert panel.poolings.place == 2

    in_window(scene)


def test_closing_it_ends_what_is_under_way(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        bench.gate = asyncio.Semaphore(0)
        panel = window.parts.similar
        for close in ("x", "escape"):
            ask(window)
            await until(lambda: panel.note.text() == "comparing turns: 0 of 3")
            assert panel.close_button.accessibleName() == "Stop comparing"
            if close == "x":
                QTest.mouseClick(panel.close_button, Qt.MouseButton.LeftButton)
            else:
                QTest.keyClick(panel.list, Key.Key_Escape)
            assert panel.isHidden()
            await until(lambda: len(window.desk.tasks) == 0)
        bench.gate.release()
        await frames()
        assert panel.isHidden()

    in_window(scene)


def test_what_went_wrong_is_told_with_one_way_on(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.similar
        await until(lambda: bool(bench.asked("models")))
        await frames()
        bench.refusal = "the engine stopped; 2 of 3 turns are done and remembered. Try again to restart it"
        ask(window)
        await until(lambda: panel.note.text().startswith("the engine stopped"))
        assert panel.action.text() == "Try again"
        assert panel.accessibleName().endswith("Try again to restart it")
        QTest.mouseClick(panel.action, Qt.MouseButton.LeftButton)
        await until(lambda: bool(panel.list.rows.rows))
        assert panel.action.isHidden()
        # when there is no model, another one can be chosen
        bench.lacks_model = "smollm2 is not on this computer"
        ask(window)
        await until(lambda: panel.note.text() == "smollm2 is not on this computer")
        assert panel.list.rows.rows == ()
        assert panel.action.text() == "Choose a model"
        QTest.mouseClick(panel.action, Qt.MouseButton.LeftButton)
        await until(lambda: isinstance(QApplication.activePopupWidget(), QMenu))
        menu = QApplication.activePopupWidget()
        assert menu is not None
        menu.close()
        # and when it came, it is asked at once
        bench.lacks_model = ""
        for state in (EngineState.STARTING, EngineState.READY):
            bench.status = StatusView(state)
            bench.emit(StatusChanged(bench.status))
            await until(partial(says, window, state))
        await until(lambda: bool(panel.list.rows.rows))

    in_window(scene)


def test_without_a_model_or_a_turn_the_menu_does_not_offer_it(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        act = window.acts.similar
        assert act.isEnabled()
        bench.status = StatusView(EngineState.NONE, "smollm2 is not on this computer")
        bench.emit(StatusChanged(bench.status))
        await until(lambda: not act.isEnabled())
        # the reason, and the way to another one, stand in the status bar
        assert act.toolTip() == act.statusTip() == "smollm2 is not on this computer"
        assert window.parts.status.choose.isVisible()
        bench.status = StatusView(EngineState.NONE)
        bench.emit(StatusChanged(bench.status))
        await until(act.isEnabled)
        window.acts.new_session.trigger()
        await until(lambda: not act.isEnabled())

    in_window(scene)


def test_it_follows_the_session_and_ends_with_it(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = await listed(window)
        # when something is said, then it is in the list
        view = bench.views[TRIP]
        bench.views[TRIP] = replace(view, turns=(*view.turns, bench.turn("user", ["And", " then", "?"])))
        bench.emit(SessionChanged(bench.views[TRIP]))
        await until(lambda: len(panel.list.rows.rows) == 4)
        assert panel.list.rows.rows[0].words == "And then?"
        # when nothing but the title changed, nobody is asked
        asked = len(bench.asked("similar_turns"))
        bench.emit(SessionChanged(replace(bench.views[TRIP], title="Another title")))
        await until(lambda: window.parts.top.title.text() == "Another title")
        await frames()
        assert len(bench.asked("similar_turns")) == asked
        # when another session is shown, it goes
        window.desk.open(3)
        await until(panel.isHidden)

    in_window(scene)


def test_scripts_markup_and_invisible_characters_are_shown_as_they_are(in_window: Play, bench: FakeWorkbench) -> None:
    hostile = "<b>bold</b> & \x1b[31m\u202e 🐈‍⬛ 你好 مرحبا שלום"
    bench.elsewhere = [replace(ROME, words=hostile, branch=hostile, tokens=9120)]

    async def scene(window: MainWindow) -> None:
        panel = await listed(window)
        words = panel.list.rows.index(3).data()
        assert words == "<b>bold</b> & ESC[31mRLO 🐈‍⬛ 你好 مرحبا שלום"
        assert spoken(panel)[3].endswith("first 4,096 of 9,120 tokens")
        tip = panel.list.rows.index(3).data(int(Qt.ItemDataRole.ToolTipRole))
        assert "first 4,096 of 9,120 tokens" in tip
        assert not RichText.mightBeRichText(tip)
        for width in (1360, 900, 560):
            window.resize(width, 420)
            await frames()
            assert window.parts.transcript.height() > 40
            assert panel.list.height() >= panel.list.minimumSizeHint().height()
            assert not panel.grab().isNull()
        # every part that takes the keyboard is named, the list among them
        interface = QAccessible.queryAccessibleInterface(panel.list)
        assert interface is not None
        assert interface.text(QAccessible.Text.Name) == "Similar turns"
        assert interface.role() is QAccessible.Role.List
        assert all(part.accessibleName() or part.text() for part in panel.findChildren(QPushButton) if part.isVisible())

    in_window(scene)
