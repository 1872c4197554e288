"""The card of the pinned token, with mouse and keys in a whole window."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from PySide6.QtCore import QEvent, QPoint, QPointF, QRect, Qt
from PySide6.QtGui import QMouseEvent, QTextCursor
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.spoken import run_of
from tests.ui.transcript.conftest import centre
from tests.ui.window.test_conversation import finish
from ui import EngineState, MainWindow, Refusal, StatusChanged, StatusView, TokensArrived
from ui.theme.text_size import resize_text
from ui.transcript.overlay.pinned_card import PinnedCard, best_place

Play = Callable[[Scene], None]
LISBON, BOAT = 3, 4


def visit_of(bench: FakeWorkbench) -> int:
    return bench.views[TRIP].turns[1].node_id


async def pin(window: MainWindow, node: int, index: int = LISBON) -> PinnedCard:
    """A click on a token."""
    window.activateWindow()
    view = window.parts.transcript
    QTest.mouseClick(view.tokens.viewport(), Qt.MouseButton.LeftButton, pos=centre(view, node, index))
    await until(lambda: window.parts.pinned.isVisible())
    return window.parts.pinned


def move(widget: QWidget, at: QPoint) -> None:
    """The mouse comes to a point of a widget."""
    none = Qt.MouseButton.NoButton
    where = QPointF(at), QPointF(widget.mapToGlobal(at))
    QApplication.sendEvent(widget, QMouseEvent(QEvent.Type.MouseMove, *where, none, none, Qt.KeyboardModifier.NoModifier))


def shown(card: PinnedCard) -> list[str]:
    return [bar.alternative.data.decode() for bar in card.rows if bar.isVisible() and bar.alternative is not None]


def test_a_click_pins_a_card_and_a_number_branches(in_window: Play, bench: FakeWorkbench) -> None:
    visit = visit_of(bench)
    finish(bench)

    async def scene(window: MainWindow) -> None:
        window.parts.show_inspector(False)
        card = await pin(window, visit)
        assert shown(card)[:3] == [" Paris", " Rome", " Lisbon"]
        assert len(shown(card)) == 10
        # it stays while the pointer moves into it, and no second card opens
        move(card, card.rect().center())
        await frames(6)
        assert card.isVisible()
        assert not window.parts.transcript.card.isVisible()
        # a press elsewhere closes it; Return on the pinned token opens it again; Escape closes it, and the pin stays
        QTest.mouseClick(window.parts.composer.field.viewport(), Qt.MouseButton.LeftButton)
        assert not card.isVisible()
        QTest.keyClick(window.parts.transcript.tokens, Qt.Key.Key_Return)
        assert card.isVisible()
        QTest.keyClick(card.field, Qt.Key.Key_Escape)
        assert not card.isVisible()
        # every letter opens it likewise, as the first one of words
        for letter in "abcdefghijklmnopqrstuvwxyzV":
            QTest.keyClicks(window.parts.transcript.tokens, letter)
            assert card.field.hasFocus()
            assert card.field.text() == letter
            QTest.keyClick(card.field, Qt.Key.Key_Backspace)
            QTest.keyClick(card.field, Qt.Key.Key_Escape)
            assert not card.isVisible()
        assert window.parts.transcript.pinned == (visit, LISBON)
        # Return on the token itself branches to nothing; a number does
        QTest.keyClick(window.parts.transcript.tokens, Qt.Key.Key_Return)
        QTest.keyClick(card.field, Qt.Key.Key_Return)
        assert bench.asked("branch") == []
        QTest.keyClick(card.field, Qt.Key.Key_2)
        await until(lambda: bench.asked("branch") == [(TRIP, visit, LISBON, 1001)])
        assert not card.isVisible()
        await until(lambda: window.parts.transcript.pinned == (bench.views[TRIP].turns[-1].node_id, LISBON))
        assert window.parts.inspector.token.large.text() == "␣Rome"
        await until(lambda: not window.controller.running)

    in_window(scene)


def test_return_in_the_text_beside_words_that_are_typed_branches_to_nothing(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        card, tokens = await pin(window, visit_of(bench)), window.parts.transcript.tokens
        QTest.keyClicks(card.field, "Rome")
        tokens.setFocus()
        QTest.keyClick(tokens, Qt.Key.Key_Return)
        assert card.field.hasFocus()
        assert card.field.text() == "Rome"
        await frames()
        assert bench.asked("branch") == []

    in_window(scene)


def test_what_is_typed_where_no_token_is_pinned_belongs_to_the_message(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        window.activateWindow()
        view, field = window.parts.transcript, window.parts.composer.field
        for mode, pane in ((window.acts.tokens, view.tokens), (window.acts.read, view.read)):
            field.setPlainText("One, ")
            field.moveCursor(QTextCursor.MoveOperation.End)
            mode.trigger()
            pane.setFocus()
            QTest.keyClick(pane, Qt.Key.Key_PageUp)
            QTest.keyClick(pane, Qt.Key.Key_Space)
            assert pane.hasFocus()
            QTest.keyClicks(pane, "n")
            assert field.hasFocus()
            QTest.keyClicks(field, "either")
            assert field.toPlainText() == "One, neither"
        # and at a pinned token it is the token's
        window.acts.tokens.trigger()
        card = await pin(window, visit_of(bench))
        QTest.keyClick(card.field, Qt.Key.Key_Escape)
        QTest.keyClicks(view.tokens, "n")
        assert card.field.text() == "n"
        assert field.toPlainText() == "One, neither"
        # but for a model that cannot go on from them
        QTest.keyClick(card.field, Qt.Key.Key_Escape)
        lacks = frozenset({"token_ids", "embed"})
        bench.status = StatusView(EngineState.READY, model="big at host", lacks=lacks)
        bench.emit(StatusChanged(bench.status))
        await until(lambda: not window.acts.similar.isEnabled())
        view.tokens.setFocus()
        QTest.keyClicks(view.tokens, "!")
        assert field.hasFocus()
        assert field.toPlainText() == "One, neither!"

    in_window(scene)


@pytest.mark.slow
def test_keys_mark_preview_search_and_step(in_window: Play, bench: FakeWorkbench) -> None:
    visit = visit_of(bench)
    finish(bench)

    async def scene(window: MainWindow) -> None:
        card = await pin(window, visit)
        QTest.keyClick(card.field, Qt.Key.Key_Up)
        QTest.keyClick(card.field, Qt.Key.Key_Space)
        await until(lambda: [call[3] for call in bench.asked("preview")] == [1001])
        # an arrow goes to the neighbour, and the card goes along
        QTest.keyClick(card.field, Qt.Key.Key_Right)
        assert window.parts.transcript.pinned == (visit, LISBON + 1)
        assert card.isVisible()
        # typing looks through the vocabulary; a digit is a digit there
        QTest.keyClicks(card.field, "bak")
        assert shown(card) == [" bakery"]
        assert card.rows[0].accessibleName().startswith("␣bakery, probability –")
        QTest.keyClicks(card.field, "7")
        assert shown(card) == []
        assert card.nothing.text() == "No token contains “bak7”."
        QTest.keyClick(card.field, Qt.Key.Key_Backspace)
        assert not card.branch.isEnabled()
        QTest.keyClick(card.field, Qt.Key.Key_Down)
        QTest.keyClick(card.field, Qt.Key.Key_Return)
        await until(lambda: [call[1:3] for call in bench.asked("branch")] == [(visit, LISBON + 1)])
        await until(lambda: not window.controller.running)

    in_window(scene)


@pytest.mark.slow
def test_words_typed_at_a_token_are_a_branch_that_the_model_goes_on_from(in_window: Play, bench: FakeWorkbench) -> None:
    visit = visit_of(bench)
    finish(bench)

    async def scene(window: MainWindow) -> None:
        tokens = window.parts.transcript.tokens
        card = await pin(window, visit)
        token = tokens.token_box(visit, LISBON)
        assert token is not None
        caret = tokens.viewport().grab(token).toImage()
        # typed words stand in the text, in the place of the token and what follows it
        assert not card.write.isVisible()
        QTest.keyClicks(card.field, "Porto or Braga")
        assert tokens.ghost is not None
        assert tokens.ghost.text == " Porto or Braga"
        assert tokens.viewport().grab(token).toImage() != caret
        assert card.write.text() == "Write “Porto or Braga” and go on"
        await until(lambda: bench.asked("tokenise") == [(" Porto or Braga",)])  # so that Return need not wait for it
        # no token has these words: Return writes them, and the model goes on; both versions are there
        QTest.keyClick(card.field, Qt.Key.Key_Return)
        await until(lambda: bench.asked("write") == [(TRIP, visit, LISBON, " Porto or Braga")])
        await until(lambda: not window.controller.running)
        assert not card.isVisible()
        assert tokens.ghost is None
        new = bench.views[TRIP].turns[-1]
        assert visit in new.variants
        assert new.run.texts[LISBON] == " Porto or Braga"
        assert window.acts.previous.isEnabled()  # to the version that was there before
        # a part of a token is written too; Escape leaves everything as it is
        await until(lambda: tokens.token_box(new.node_id, 1) is not None)
        card = await pin(window, new.node_id, 1)
        QTest.keyClicks(card.field, "bak")
        assert shown(card) == [" bakery"]
        QTest.keyClick(card.field, Qt.Key.Key_Escape)
        assert tokens.ghost is None
        card = await pin(window, new.node_id, 1)
        assert card.field.text() == "bak"
        QTest.keyClick(card.field, Qt.Key.Key_Return)
        space = " " * new.run.texts[1].startswith(" ")
        await until(lambda: [call[3] for call in bench.asked("write")[1:]] == [f"{space}bak"])
        await until(lambda: not window.controller.running)

    in_window(scene)


def test_what_is_typed_stays_when_the_numbers_change_and_the_token_is_scrolled_away(
    in_window: Play, bench: FakeWorkbench
) -> None:
    visit = visit_of(bench)
    finish(bench)

    async def scene(window: MainWindow) -> None:
        card = await pin(window, visit)
        QTest.keyClicks(card.field, "Lisbon")  # the token's own word can be written, too
        turn = bench.views[TRIP].turns[1]
        run = dataclasses.replace(turn.run, entropy=turn.run.entropy + np.float32(0.5))
        bench.change(TRIP, [replace(one, run=run) if one is turn else one for one in bench.views[TRIP].turns])
        await until(lambda: "entropy" in card.choice.text())
        await frames(4)
        assert (card.isVisible(), card.field.text()) == (True, "Lisbon")
        # and with its token, when the card is closed or another token is pinned
        QTest.keyClick(card.field, Qt.Key.Key_Escape)
        assert (await pin(window, visit, BOAT)).field.text() == ""
        assert (await pin(window, visit)).field.text() == "Lisbon"
        window.resize(900, 420)
        bar = window.parts.transcript.tokens.verticalScrollBar()
        bar.setValue(bar.maximum())
        await frames(4)
        assert (card.isVisible(), card.field.text()) == (True, "Lisbon")
        QTest.keyClick(card.field, Qt.Key.Key_Return)
        await until(lambda: bench.asked("write") == [(TRIP, visit, LISBON, " Lisbon")])
        await until(lambda: not window.controller.running)

    in_window(scene)


@pytest.mark.parametrize("with_ctrl", [False, True])
def test_the_words_of_a_token_are_that_token_unless_ctrl_writes_them(
    in_window: Play, bench: FakeWorkbench, with_ctrl: bool
) -> None:
    visit = visit_of(bench)
    finish(bench)
    token = bench.vocabulary.id_of(" bakery")

    async def scene(window: MainWindow) -> None:
        card = await pin(window, visit)
        QTest.keyClicks(card.field, "bakery")
        modifier = Qt.KeyboardModifier.ControlModifier if with_ctrl else Qt.KeyboardModifier.NoModifier
        QTest.keyClick(card.field, Qt.Key.Key_Return, modifier)
        await until(lambda: bench.asked("write" if with_ctrl else "branch"))
        assert bench.asked("branch") == ([] if with_ctrl else [(TRIP, visit, LISBON, token)])
        assert bench.asked("write") == ([(TRIP, visit, LISBON, " bakery")] if with_ctrl else [])
        await until(lambda: not window.controller.running)

    in_window(scene)


def test_words_may_begin_with_a_digit_or_a_space_once_the_field_is_asked_for(in_window: Play, bench: FakeWorkbench) -> None:
    visit = visit_of(bench)
    finish(bench)

    async def scene(window: MainWindow) -> None:
        tokens = window.parts.transcript.tokens
        card = await pin(window, visit)
        hint = card.field.placeholderText()

        def press_f2() -> None:
            QTest.keyClick(card.field, Qt.Key.Key_F2)

        def click() -> None:
            QTest.mouseClick(card.field, Qt.MouseButton.LeftButton)

        def go_round() -> None:
            QTest.keyClick(card.field, Qt.Key.Key_Tab)
            assert card.field.placeholderText() == hint
            QTest.keyClick(window.focusWidget(), Qt.Key.Key_Tab, Qt.KeyboardModifier.ShiftModifier)

        for ask_for_it in (press_f2, click, go_round):
            await until(card.field.hasFocus)
            ask_for_it()
            assert card.field.hasFocus()
            assert card.field.placeholderText() != hint
            QTest.keyClicks(card.field, " ")
            assert card.field.text() == " "
            QTest.keyClick(card.field, Qt.Key.Key_Backspace)
            QTest.keyClicks(card.field, "2 of us")
            assert card.field.text() == "2 of us"
            # a card that is opened again chooses by its numbers, unless words wait in it
            card.field.selectAll()
            QTest.keyClick(card.field, Qt.Key.Key_Delete)
            QTest.keyClick(card.field, Qt.Key.Key_Escape)
            QTest.keyClick(tokens, Qt.Key.Key_Return)
            assert card.field.placeholderText() == hint
        assert (bench.asked("branch"), bench.asked("preview")) == ([], [])
        press_f2()
        QTest.keyClicks(card.field, "2 of us")
        QTest.keyClick(card.field, Qt.Key.Key_Return)
        await until(lambda: bench.asked("write") == [(TRIP, visit, LISBON, " 2 of us")])
        await until(lambda: not window.controller.running)

    in_window(scene)


def test_words_that_cannot_be_written_are_in_the_card_again(in_window: Play, bench: FakeWorkbench) -> None:
    visit = visit_of(bench)
    finish(bench)

    async def scene(window: MainWindow) -> None:
        card = await pin(window, visit)
        QTest.keyClicks(card.field, "Porto or Braga")
        await until(lambda: not len(window.controller.tasks))
        bench.refusal = "no model is loaded"
        QTest.mouseClick(card.write, Qt.MouseButton.LeftButton)
        await until(lambda: window.parts.composer.notice.words == "no model is loaded")
        assert card.isVisible()
        assert card.field.text() == " Porto or Braga"

    in_window(scene)


def test_words_typed_in_a_message_are_another_version_of_it_as_a_draft(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    question = bench.views[TRIP].turns[0]

    async def scene(window: MainWindow) -> None:
        field = window.parts.composer.field
        place = next(i for i, text in enumerate(question.run.texts) if "April" in text)
        card = await pin(window, question.node_id, place)
        QTest.keyClicks(card.field, "early or late")
        QTest.keyClick(card.field, Qt.Key.Key_Return)
        assert field.toPlainText() == "Where should we go in early or late April?"
        assert field.textCursor().position() == len("Where should we go in early or late")
        assert field.hasFocus()
        assert bench.asked("send") == []
        QTest.keyClick(field, Qt.Key.Key_Return)
        await until(lambda: bench.asked("send") == [(TRIP, "Where should we go in early or late April?", question.node_id)])
        await until(lambda: not window.controller.running)

    in_window(scene)


def test_the_buttons_of_the_card(in_window: Play, bench: FakeWorkbench) -> None:
    visit = visit_of(bench)
    finish(bench)

    async def scene(window: MainWindow) -> None:
        parts = window.parts
        parts.show_inspector(False)
        card = await pin(window, visit)
        QTest.keyClick(card.field, Qt.Key.Key_Up)
        QTest.mouseClick(card.ban, Qt.MouseButton.LeftButton)
        await until(lambda: bench.asked("set_option") == [(TRIP, "banned_tokens", [1001])])
        await until(lambda: "␣Rome is banned" in parts.toast.words)
        QTest.mouseClick(card.why, Qt.MouseButton.LeftButton)
        assert parts.inspector.isVisible()
        assert parts.inspector.why.isVisible()
        QTest.mouseClick(card.ways[4], Qt.MouseButton.LeftButton)
        await until(lambda: bench.asked("continue_many") == [(TRIP, visit, LISBON, 4)])
        await until(lambda: not window.controller.running)

    in_window(scene)


def test_a_ban_adds_to_those_of_the_preset_and_is_undone(in_window: Play, bench: FakeWorkbench) -> None:
    options = [
        replace(each, value=(7, 8), source="preset") if each.name == "banned_tokens" else each
        for each in bench.held_setup(TRIP).options
    ]
    bench.keep_setup(TRIP, options=options)

    async def scene(window: MainWindow) -> None:
        card = await pin(window, visit_of(bench))
        QTest.keyClick(card.field, Qt.Key.Key_Up)
        QTest.mouseClick(card.ban, Qt.MouseButton.LeftButton)
        await until(lambda: bench.asked("set_option") == [(TRIP, "banned_tokens", [7, 8, 1001])])
        await until(lambda: window.controller.undo_stack.label == "Ban")
        # once more it is nothing new, and nothing to take back
        QTest.mouseClick(card.ban, Qt.MouseButton.LeftButton)
        await until(lambda: not len(window.controller.tasks))
        window.acts.undo.trigger()
        await until(lambda: bench.asked("set_option")[1:] == [(TRIP, "banned_tokens", None)])
        assert window.controller.undo_stack.label == ""

    in_window(scene)


def test_undoing_a_ban_leaves_those_set_by_hand_since(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        card = await pin(window, visit_of(bench))
        QTest.keyClick(card.field, Qt.Key.Key_Up)
        QTest.mouseClick(card.ban, Qt.MouseButton.LeftButton)
        await until(lambda: window.controller.undo_stack.label == "Ban")
        window.setup.change(lambda commands, session: commands.set_option(session, "banned_tokens", [1001, 9]))
        await until(lambda: not len(window.controller.tasks))
        window.acts.undo.trigger()
        await until(lambda: bench.asked("set_option")[2:] == [(TRIP, "banned_tokens", [9])])
        await until(window.acts.redo.isEnabled)
        window.acts.redo.trigger()
        await until(lambda: bench.asked("set_option")[3:] == [(TRIP, "banned_tokens", [9, 1001])])

    in_window(scene)


def test_the_mark_stays_on_its_token_when_the_row_arrives(in_window: Play, bench: FakeWorkbench) -> None:
    visit = visit_of(bench)
    finish(bench)
    for word in (" rain", " rains", " train"):  # the first ones may be words of the trip
        bench.vocabulary.id_of(word)

    async def scene(window: MainWindow) -> None:
        card = await pin(window, visit)
        bench.gate = asyncio.Semaphore(0)
        QTest.keyClicks(card.field, "rain")
        QTest.keyClick(card.field, Qt.Key.Key_Down)
        QTest.keyClick(card.field, Qt.Key.Key_Down)
        # the row is asked for once, however long it takes
        await until(lambda: bench.asked("whole_row") == [(TRIP, visit, LISBON, "here")])
        bench.row = np.full(2000, -8.0, np.float32)
        bench.gate.release()
        await until(lambda: "probability –" not in card.rows[0].accessibleName())
        bench.gate = None
        assert shown(card)[2] == " train"
        QTest.keyClick(card.field, Qt.Key.Key_Return)
        wanted = bench.vocabulary.id_of(" train")
        await until(lambda: bench.asked("branch") == [(TRIP, visit, LISBON, wanted)])
        await until(lambda: not window.controller.running)

    in_window(scene)


def test_from_a_message_a_key_goes_to_an_uncertain_token_and_a_number_branches(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        window.activateWindow()
        field = window.parts.composer.field
        field.setFocus()
        QTest.keyClick(field, Qt.Key.Key_J, Qt.KeyboardModifier.ControlModifier)
        await until(lambda: window.parts.transcript.pinned is not None)
        QTest.keyClick(window.focusWidget(), Qt.Key.Key_2)
        await until(lambda: [call[1:3] for call in bench.asked("branch")] == [window.parts.transcript.pinned])
        assert field.toPlainText() == ""
        await until(lambda: not window.controller.running)

    in_window(scene)


@pytest.mark.slow
def test_a_refused_row_is_not_asked_for_again_until_another_model_runs(in_window: Play, bench: FakeWorkbench) -> None:
    visit = visit_of(bench)
    finish(bench)

    async def scene(window: MainWindow) -> None:
        card = await pin(window, visit)
        bench.refusal = "the model is on a server"
        QTest.keyClicks(card.field, "b")
        await until(lambda: len(bench.asked("whole_row")) == 1 and not bench.refusal)
        await until(lambda: not len(window.controller.tasks))
        QTest.keyClicks(card.field, "ak")
        await frames(4)
        assert len(bench.asked("whole_row")) == 1
        assert shown(card) == [" bakery"]
        assert window.parts.composer.notice.words == ""
        # when the model is unloaded and another one is there, it is asked
        bench.row = np.full(2000, -8.0, np.float32)
        bench.refusal = "no model runs"
        bench.emit(StatusChanged(StatusView(EngineState.STARTING)))
        await until(lambda: not bench.refusal)
        bench.emit(StatusChanged(StatusView(EngineState.READY)))
        await until(lambda: "probability –" not in card.rows[0].accessibleName())
        assert len(bench.asked("whole_row")) == 3
        # and what it said is forgotten with it
        bench.refusal = "no model runs"
        bench.emit(StatusChanged(StatusView(EngineState.DIED)))
        await until(lambda: "probability –" in card.rows[0].accessibleName())

    in_window(scene)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ended", ["refused", "pinned", "left", "pressed twice"])
def test_a_branch_is_followed_unless_it_does_not_come(in_window: Play, bench: FakeWorkbench, ended: str) -> None:
    visit = visit_of(bench)
    finish(bench)

    async def branch(session_id: int, node_id: int, index: int, token_id: int) -> None:
        bench.note("branch", session_id, node_id, index, token_id)
        if len(bench.asked("branch")) > 1:
            raise Refusal("an answer is under way")

    bench.answers.branch = branch  # type: ignore[method-assign]  # it is on its way for ever

    async def scene(window: MainWindow) -> None:
        card = await pin(window, visit)
        if ended == "refused":
            bench.refusal = "an answer is under way"
        for _ in range(2 if ended == "pressed twice" else 1):
            QTest.keyClick(card.field, Qt.Key.Key_2)
        await until(lambda: bench.asked("branch"))
        if ended in ("refused", "pressed twice"):
            await until(lambda: window.parts.composer.notice.words == "an answer is under way")
        elif ended == "pinned":
            await pin(window, visit, LISBON + 2)
        else:
            for session in (BOAT, TRIP):
                window.controller.open(session)
                await until(lambda session=session: window.controller.is_shown(session))  # type: ignore[misc]
        # when a sibling of the answer is shown, it is as it was chosen there
        pinned, turns = window.parts.transcript.pinned, bench.views[TRIP].turns
        other = bench.new_id()
        sibling = replace(turns[1], node_id=other, variants=(visit, other))
        bench.change(TRIP, [turns[0], sibling])
        await until(lambda: window.controller.shown is not None and window.controller.shown.turn(other) is not None)
        await frames(2)
        assert (window.parts.transcript.pinned == (other, LISBON)) == (ended == "pressed twice")
        assert pinned is None or pinned[0] == visit

    in_window(scene)


@pytest.mark.slow
def test_it_covers_neither_the_token_nor_the_actions(app: QApplication, in_window: Play, bench: FakeWorkbench) -> None:
    visit = visit_of(bench)
    finish(bench)
    all_rows: dict[int, list[str]] = {}

    async def scene(window: MainWindow) -> None:
        parts = window.parts
        parts.show_inspector(False)
        sizes = [(*size, 1.0) for size in product((1360, 900, 560), (860, 640, 480, 420))] + [
            (900, 700, 2.0),
            (1440, 900, 2.0),
            (700, 500, 2.0),
            (560, 420, 2.0),
        ]
        for (width, height, scale), index in product(sizes, (LISBON, 18, 20)):
            resize_text(app, scale)
            window.resize(width, height)
            await frames()
            parts.transcript.set_pinned(visit, index)
            await frames(2)
            card = await pin(window, visit, index)
            pane = parts.transcript.tokens
            token, line = pane.token_box(visit, index), pane.line_box(visit)
            assert token is not None
            assert line is not None
            corner = pane.viewport().mapTo(parts.column, QPoint(0, 0))
            assert parts.column.rect().contains(card.sheet())
            assert not card.sheet().intersects(token.translated(corner))
            small = scale == 2 and height <= 500
            assert small or not card.sheet().intersects(line.translated(corner))  # where it has no other place
            # the rows there is room for are the best ones, and the token's
            rows = all_rows.setdefault(index, shown(card))
            assert len(rows) >= 10
            assert set(shown(card)) <= {*rows[: len(shown(card))], rows[2 if index == LISBON else -1]}
            for part in card.findChildren(QWidget):
                assert not part.isVisible() or card.rect().contains(part.geometry()), part
            card.close_again()

    in_window(scene)


@pytest.mark.slow
def test_streaming_text_under_a_resting_pointer_opens_nothing(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        view = window.parts.transcript
        last = bench.views[TRIP].turns[-1].node_id
        end = centre(view, last, 7)
        rests = QPoint(end.x() + 90, end.y())  # where the text will come to
        move(view.tokens.viewport(), rests)
        await frames(6)
        assert view.card.content is None
        bench.emit(TokensArrived(TRIP, last, run_of(bench.vocabulary, [" and", " long", " lunches", " outside"])))
        await until(lambda: view.tokens.token_box(last, 11) is not None)
        move(view.tokens.viewport(), rests)  # as a screen sends it when what is under the pointer changed
        await frames(8)
        assert view.card.content is None
        move(view.tokens.viewport(), rests + QPoint(3, 0))
        await until(lambda: view.card.content is not None)

    in_window(scene)


@given(
    height=st.integers(100, 500), token=st.integers(0, 700), lines=st.integers(1, 30), room=st.integers(300, 1200),
)  # fmt: skip
def test_the_best_place_is_free_where_any_is(height: int, token: int, lines: int, room: int) -> None:
    token = min(token, room - 30)  # a card is shown only for a token that is in sight
    span, line = QRect(40, token, 50, 24), QRect(0, token + 28 * lines, 600, 20)
    top, free = best_place(height, span, line, QRect(0, 0, 600, room))
    if free < height:  # then it is the largest there is
        assert free >= room - line.bottom() - 9
        assert free >= token - 9
        return
    sheet = QRect(40, token - 8 - height if top is None else top, 372, height)
    assert not sheet.intersects(span)
    assert not sheet.intersects(line)
    assert sheet.top() >= 0
    assert sheet.bottom() <= room
