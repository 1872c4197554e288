"""Similar turns: requested, listed, shown, closed; by mouse and keys."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtGui import QAccessible
from PySide6.QtGui import Qt as RichText
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QPushButton

from tests.ui.comparison.similar_window import ROME, Key, Play, listed, press, spoken, standing
from tests.ui.conftest import frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from ui import MainWindow
from ui.transcript.pane.meta import Action


def test_a_turn_is_compared_from_the_line_under_it(in_window: Play, bench: FakeWorkbench) -> None:
    bench.other_branches = [ROME]

    async def scene(window: MainWindow) -> None:
        first, visit, why, last = bench.views[TRIP].turns
        await standing(window)
        bench.gate = asyncio.Semaphore(0)
        # when it is requested with the mouse
        press(window, 1, Action.SIMILAR)
        panel = window.parts.similar
        # then the panel over the conversation names the turn and shows the progress
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


def test_arrows_and_return_show_a_turn_and_escape_returns_the_keyboard_focus(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        first, _, why, last = bench.views[TRIP].turns
        await standing(window)
        field, tokens = window.parts.composer.field, window.parts.transcript.tokens
        window.activateWindow()
        field.setFocus()
        panel = await listed(window)
        # without a pinned token the last turn is used
        assert bench.asked("similar_turns") == [(TRIP, last.node_id, "mean")]
        assert panel.list.hasFocus()
        # when the Down key selects another turn
        QTest.keyClick(panel.list, Key.Key_Down)
        QTest.keyClick(panel.list, Key.Key_Down)
        QTest.keyClick(panel.list, Key.Key_Return)
        # then its beginning is marked, and the list keeps the keyboard focus
        assert panel.list.rows.rows[2].node_id == first.node_id
        assert tokens.selected_text == "Where should we go in April?"
        assert panel.list.hasFocus()
        assert panel.list.last_chosen == first.node_id
        assert bench.asked("show_turn") == []
        # by mouse likewise, and a comparison of branches is replaced by the conversation
        window.acts.compare.trigger()
        await until(window.parts.compare.isVisible)
        QTest.mouseClick(
            panel.list.viewport(), Qt.MouseButton.LeftButton, pos=panel.list.visualRect(panel.list.rows.index(0)).center()
        )
        assert window.parts.compare.isHidden()
        assert tokens.selected_text == "Why there?"
        assert panel.list.last_chosen == why.node_id
        # when it is closed, then nothing is marked and the message has the keyboard focus
        QTest.keyClick(panel.list, Key.Key_Escape)
        assert panel.isHidden()
        assert tokens.selected_text == ""
        assert field.hasFocus()

    in_window(scene)


def test_the_turn_of_the_pinned_token_is_compared(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        await standing(window)
        first = bench.views[TRIP].turns[0]
        window.presenter.pin(first.node_id, 2)
        window.acts.similar.trigger()
        await until(lambda: bench.asked("similar_turns") == [(TRIP, first.node_id, "mean")])

    in_window(scene)


def test_showing_a_turn_of_another_branch_can_be_undone(in_window: Play, bench: FakeWorkbench) -> None:
    bench.other_branches = [ROME]

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
        await until(lambda: bench.asked("select") == [(TRIP, before.node_id, "as before")])

    in_window(scene)


@pytest.mark.slow
def test_the_pooling_of_the_embeddings_can_be_changed(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = await listed(window)
        last = bench.views[TRIP].turns[-1]
        shown = [part for part in panel.poolings.buttons if part.isVisible()]
        assert [part.text() for part in shown] == ["mean", "last", "max"]
        QTest.mouseClick(shown[1], Qt.MouseButton.LeftButton)
        await until(lambda: bench.asked("similar_turns")[1:] == [(TRIP, last.node_id, "last")])
        await frames()
        # the previous rows stay until the new ones arrive; only a model trained for it offers the first token
        bench.poolings = ("mean", "last", "max", "cls")
        QTest.keyClick(shown[2], Key.Key_Space)
        await until(lambda: panel.poolings.buttons[3].isVisible())
        assert panel.poolings.place == 2

    in_window(scene)


@pytest.mark.slow
def test_scripts_markup_and_invisible_characters_are_shown_literally(in_window: Play, bench: FakeWorkbench) -> None:
    hostile = "<b>bold</b> & \x1b[31m\u202e 🐈‍⬛ 你好 مرحبا שלום"
    bench.other_branches = [replace(ROME, words=hostile, branch=hostile, tokens=9120)]

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
        # every part that takes the keyboard focus has a name, including the list
        interface = QAccessible.queryAccessibleInterface(panel.list)
        assert interface is not None
        assert interface.text(QAccessible.Text.Name) == "Similar turns"
        assert interface.role() is QAccessible.Role.List
        assert all(part.accessibleName() or part.text() for part in panel.findChildren(QPushButton) if part.isVisible())

    in_window(scene)
