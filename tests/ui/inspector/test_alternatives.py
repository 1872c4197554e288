"""Alternatives of a token: chosen by mouse and number keys, as a branch or as a draft, and undone."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from tests.ui.conftest import frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.spoken import OTHERS
from tests.ui.window.test_conversation import Play, finish, turns
from ui import MainWindow
from ui.inspector.alternatives import Alternative, AlternativeList
from ui.transcript import Mode


def test_an_alternative_in_the_inspector_makes_a_branch(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    answer = bench.views[TRIP].turns[1]

    async def scene(window: MainWindow) -> None:
        window.parts.transcript.token_pinned.emit((answer.node_id, 3))
        inspector = window.parts.inspector.token
        assert inspector.large.text() == "␣Lisbon"
        rome = inspector.alternatives.buttons[1]
        QTest.mouseClick(rome, Qt.MouseButton.LeftButton)
        rome_id = bench.vocabulary.id_of(OTHERS[1])
        await until(lambda: bench.asked("branch") == [(TRIP, answer.node_id, 3, rome_id)])
        await until(lambda: turns(window)[-1][1] == "You could visit Rome" + "".join(bench.answer))
        await until(lambda: not window.controller.running)
        assert window.parts.top.branch.place.text() == "4 / 4"

    in_window(scene)


def test_the_rank_of_a_token_is_not_cut_off(app: QApplication, qtbot: QtBot) -> None:
    shown = AlternativeList()
    qtbot.addWidget(shown)
    pictures = []
    for rank in (45_123, 45_124):
        ranked = [Alternative(1, b" is", -1.0, 1, 1.0, chosen=False), Alternative(2, b" gl", -9.0, rank, 0.1, chosen=True)]
        shown.show_alternatives(ranked, can_choose=True)
        pictures.append(shown.grab().toImage())
    assert pictures[0] != pictures[1]  # in the last digit


def test_an_alternative_in_text_of_the_user_opens_a_draft_and_sends_nothing(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    question = bench.views[TRIP].turns[0]

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        QTest.keyClicks(composer.field, "half a thought")
        window.parts.transcript.token_pinned.emit((question.node_id, 4))
        QTest.mouseClick(window.parts.inspector.token.alternatives.buttons[9], Qt.MouseButton.LeftButton)
        # then the draft is the turn up to the alternative
        assert composer.draft == "Where should we go Oslo"
        assert composer.version.words == "Another version of “Where should we go in April?”"
        assert bench.asked("branch") == bench.asked("send") == []
        # and it is sent as a sibling of the old turn
        composer.field.setPlainText("Where should we go from Oslo?")
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await until(lambda: bench.asked("send") == [(TRIP, "Where should we go from Oslo?", question.node_id)])
        await until(lambda: turns(window)[-1][1] == "".join(bench.answer) and not window.controller.running)
        assert (composer.draft, composer.version.words) == ("half a thought", "")
        assert window.parts.top.branch.place.text() == "2 / 2"

    in_window(scene)


def test_number_keys_choose_alternatives_but_not_while_typing(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    answer = bench.views[TRIP].turns[1]

    async def scene(window: MainWindow) -> None:
        window.activateWindow()
        await until(window.isActiveWindow)
        window.parts.transcript.token_pinned.emit((answer.node_id, 3))
        # in the message field a digit is text
        window.parts.composer.field.setFocus()
        QTest.keyClicks(window.parts.composer.field, "1")
        await frames()
        assert (window.parts.composer.draft, bench.asked("branch")) == ("1", [])
        # the token itself (3) is no alternative; 1 is
        window.parts.sidebar.tree.setFocus()
        QTest.keyClick(window.parts.sidebar.tree, Qt.Key.Key_3)
        QTest.keyClick(window.parts.sidebar.tree, Qt.Key.Key_1)
        await until(lambda: len(bench.asked("branch")) == 1)
        assert bench.asked("branch")[0][-1] == bench.vocabulary.id_of(OTHERS[0])
        await until(lambda: not window.controller.running)

    in_window(scene)


def test_a_digit_branches_only_where_the_token_is_visible(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    answer = bench.views[TRIP].turns[1]

    async def scene(window: MainWindow) -> None:
        window.activateWindow()
        await until(window.isActiveWindow)
        parts = window.parts
        parts.transcript.token_pinned.emit((answer.node_id, 3))
        # in the whole tree it starts a search
        window.acts.tree.trigger()
        await until(parts.tree.view.hasFocus)
        QTest.keyClick(parts.tree.view, Qt.Key.Key_2)
        await until(parts.tree.finder.isVisible)
        assert parts.tree.finder.field.text() == "2"
        window.acts.tree.trigger()
        await until(parts.tree.isHidden)
        # in Read without the inspector it does nothing
        parts.show_inspector(False)
        window.presenter.set_mode(Mode.READ)
        parts.transcript.setFocus()
        focused = QApplication.focusWidget()
        assert focused is not None
        QTest.keyClick(focused, Qt.Key.Key_2)
        await frames()
        assert bench.asked("branch") == []

    in_window(scene)


def test_variants_are_shown_with_the_branch_chip_and_undone(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        chip = window.parts.top.branch
        assert (chip.name.text(), chip.place.text()) == ("rainy ending", "2 / 3")
        tip = bench.views[TRIP].turns[-1].node_id
        QTest.mouseClick(chip.forth, Qt.MouseButton.LeftButton)
        await until(lambda: bench.asked("select") == [(TRIP, 43)])
        await until(lambda: chip.place.text() == "3 / 3")
        assert not chip.forth.isEnabled()
        assert window.acts.undo.text() == "Undo Branch Selection"
        window.acts.undo.trigger()
        await until(lambda: bench.asked("select")[-1] == (TRIP, tip, "as before"))
        assert not window.acts.undo.isEnabled()

    in_window(scene)
