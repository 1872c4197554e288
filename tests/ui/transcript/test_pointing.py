"""Mouse and keys on tokens: pins, cards, alternatives, selection."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from runtime import Origin, TokenRun
from tests.ui.transcript.conftest import PATIENCE_MS, Show, centre, click, drag, settle
from tests.ui.transcript.samples import drawing as drawn
from tests.ui.transcript.samples import run_of, session, turn, written
from ui.port import TurnStatus
from ui.transcript import Mode, TranscriptView

LISBON = (2, 3)


def press(qtbot: QtBot, transcript: TranscriptView, key: Qt.Key, count: int = 1) -> None:
    for _ in range(count):
        QTest.keyClick(transcript.tokens, key)


def test_a_click_pins_the_token_and_emits_token_pinned(qtbot: QtBot, drawing: TranscriptView) -> None:
    said: list[object] = []
    drawing.token_pinned.connect(said.append)
    drawing.token_clicked.connect(lambda *args: said.append(args))
    click(qtbot, drawing, *LISBON)
    assert said == [LISBON, LISBON]
    assert drawing.pinned == LISBON


def test_arrow_keys_move_over_visible_tokens_and_turns(qtbot: QtBot, drawing: TranscriptView) -> None:
    # given the last token of the answer, which the hidden end token follows
    drawing.set_pinned(2, 25)
    # when going right, then
    seen: list[object] = []
    drawing.token_pinned.connect(seen.append)
    press(qtbot, drawing, Qt.Key.Key_Right, 2)
    press(qtbot, drawing, Qt.Key.Key_Left, 3)
    assert seen == [(3, 0), (3, 1), (3, 0), (2, 25), (2, 24)]


def test_left_without_a_pin_starts_at_the_end_and_moves_stop_at_the_ends_of_the_path(
    qtbot: QtBot, drawing: TranscriptView
) -> None:
    press(qtbot, drawing, Qt.Key.Key_Left)
    assert drawing.pinned == (4, 7)
    press(qtbot, drawing, Qt.Key.Key_Right)
    assert drawing.pinned == (4, 7)
    drawing.tokens.clear_pin()
    press(qtbot, drawing, Qt.Key.Key_Right)
    assert drawing.pinned == (1, 3)


def test_number_keys_choose_an_alternative_of_the_pinned_token(qtbot: QtBot, drawing: TranscriptView) -> None:
    chosen: list[tuple[int, int, int]] = []
    drawing.tokens.alternative_chosen.connect(lambda *args: chosen.append(args))
    press(qtbot, drawing, Qt.Key.Key_1)
    assert not chosen, "nothing is pinned"
    drawing.set_pinned(*LISBON)
    press(qtbot, drawing, Qt.Key.Key_1)
    press(qtbot, drawing, Qt.Key.Key_3)  # the token itself
    press(qtbot, drawing, Qt.Key.Key_4)
    press(qtbot, drawing, Qt.Key.Key_9)  # there are seven
    assert chosen == [(2, 3, 900), (2, 3, 902)]


def test_next_uncertain_steps_through_the_highest_entropies_in_order_and_wraps_round(
    qtbot: QtBot, drawing: TranscriptView
) -> None:
    seen = []
    for _ in range(4):
        drawing.tokens.next_uncertain()
        seen.append(drawing.pinned)
    assert seen == [(2, 11), (2, 20), (4, 6), (2, 11)]


def test_escape_removes_the_pin(qtbot: QtBot, drawing: TranscriptView) -> None:
    click(qtbot, drawing, *LISBON)
    with qtbot.waitSignal(drawing.token_pinned) as said:
        press(qtbot, drawing, Qt.Key.Key_Escape)
    assert said.args == [None]
    assert drawing.pinned is None


def test_set_pinned_emits_nothing_and_ignores_tokens_that_do_not_exist(qtbot: QtBot, drawing: TranscriptView) -> None:
    with qtbot.assertNotEmitted(drawing.token_pinned):
        drawing.set_pinned(2, 7)
        drawing.set_pinned(99, 0)
        drawing.set_pinned(2, 999)
    assert drawing.pinned == (2, 7)


def test_a_pin_on_a_token_that_left_the_path_is_removed_and_reported(qtbot: QtBot, drawing: TranscriptView) -> None:
    drawing.set_pinned(*LISBON)
    with qtbot.waitSignal(drawing.token_pinned) as said:
        drawing.set_session(session(turn(1, "user", written("Else"))))
    assert said.args == [None]


# ---- the card ---------------------------------------------------------------------------------------------------------


def hover(qtbot: QtBot, transcript: TranscriptView, node_id: int, index: int) -> None:
    viewport = transcript.tokens.viewport()
    QTest.mouseMove(viewport, pos=QPoint(1, 1))
    QTest.mouseMove(viewport, pos=centre(transcript, node_id, index))
    qtbot.waitUntil(lambda: transcript.card.content is not None, timeout=PATIENCE_MS)


def test_hovering_shows_the_alternatives(qtbot: QtBot, drawing: TranscriptView) -> None:
    hover(qtbot, drawing, *LISBON)
    content = drawing.card.content
    assert content is not None
    assert content.before == "…could visit"
    assert content.entropy == "2.31 bits"
    assert [(r.word, r.chosen) for r in content.rows] == [("Paris", False), ("Rome", False), ("Lisbon", True), ("Kyoto", False)]
    assert drawing.card.accessibleName().startswith("after …could visit, 2.31 bits: Paris .412")


def test_a_token_beyond_the_first_four_has_its_own_row(qtbot: QtBot, drawing: TranscriptView) -> None:
    hover(qtbot, drawing, 2, 11)
    content = drawing.card.content
    assert content is not None
    assert [r.word for r in content.rows] == ["Paris", "Rome", "Kyoto", "Prague", "empty"]
    assert content.rows[-1].chosen


def test_alternatives_without_a_vocabulary_are_shown_by_id(qtbot: QtBot, drawing: TranscriptView) -> None:
    drawing.set_vocabulary(lambda ids: [])
    hover(qtbot, drawing, *LISBON)
    content = drawing.card.content
    assert content is not None
    assert [r.word for r in content.rows] == ["#900", "#901", "Lisbon", "#902"]


@pytest.mark.slow
def test_the_card_is_hidden_when_the_mouse_leaves_or_the_page_scrolls(qtbot: QtBot, show: Show) -> None:
    transcript = show(session(*(turn(i, "assistant", written("You| could=a| visit=b", first_id=i * 10)) for i in range(1, 40))))
    transcript.tokens.verticalScrollBar().setValue(0)
    hover(qtbot, transcript, 2, 1)
    QTest.mouseMove(transcript.tokens.viewport(), pos=QPoint(2, 2))
    qtbot.waitUntil(lambda: not transcript.card.isVisible(), timeout=PATIENCE_MS)
    hover(qtbot, transcript, 2, 1)
    transcript.tokens.verticalScrollBar().setValue(60)
    qtbot.waitUntil(lambda: not transcript.card.isVisible(), timeout=PATIENCE_MS)


@pytest.mark.slow
@pytest.mark.parametrize("width", [300, 500, 780])
def test_the_card_stays_inside_the_viewport(qtbot: QtBot, show: Show, width: int) -> None:
    transcript = show(drawn(), width=width, height=330)
    pane = transcript.tokens
    for node_id, index in ((1, 3), (2, 3), (2, 18), (4, 7)):
        pane.set_pin(node_id, index)
        hover(qtbot, transcript, node_id, index)
        sheet = transcript.card.geometry().adjusted(36, 36, -36, -36)
        assert pane.viewport().geometry().contains(sheet)


def test_tokens_without_numbers_have_no_card(qtbot: QtBot, show: Show) -> None:
    run = TokenRun.concat([run_of(["never"], [None], Origin.TYPED), written(" scored=a", first_id=5)])
    transcript = show(session(turn(1, "user", run)))
    hover(qtbot, transcript, 1, 1)
    QTest.mouseMove(transcript.tokens.viewport(), pos=centre(transcript, 1, 0))
    qtbot.waitUntil(lambda: transcript.card.content is None, timeout=PATIENCE_MS)


# ---- selection --------------------------------------------------------------------------------------------------------


def test_dragging_selects_exact_text_across_turns_and_copies_it(qtbot: QtBot, drawing: TranscriptView) -> None:
    first = drawing.tokens.token_box(2, 23)
    last = drawing.tokens.token_box(3, 1)
    assert first is not None
    assert last is not None
    drag(qtbot, drawing, QPoint(first.left(), first.center().y()), QPoint(last.right() + 1, last.center().y()))
    QTest.keyClick(drawing.tokens, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == " window seat.\n\nWhy there"
    assert drawing.pinned is None, "a drag is not a click"


def test_control_characters_drawn_as_codes_are_copied_unchanged(qtbot: QtBot, show: Show) -> None:
    texts = ["a\tb", "\x1b[", "31m", "\n", "👩", "\u200d", "👧", " مرحبا", "\u202e", "  x"]
    transcript = show(session(turn(1, "assistant", run_of(texts, [1.0] * len(texts), Origin.SAMPLED))))
    QTest.keyClick(transcript.tokens, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    QTest.keyClick(transcript.tokens, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == "".join(texts)


def test_a_selection_is_kept_while_tokens_stream_in(qtbot: QtBot, drawing: TranscriptView) -> None:
    first, last = centre(drawing, 4, 0), centre(drawing, 4, 3)
    drag(qtbot, drawing, QPoint(drawing.tokens.column()[0], first.y()), QPoint(last.x(), last.y()))
    held = drawing.tokens.selected_text
    assert held.startswith("Because the city")
    drawing.append_tokens(4, written(" and| long| lunches=c", first_id=90))
    assert drawing.tokens.selected_text == held


@pytest.mark.parametrize("mode", Mode)
def test_a_selection_and_a_drag_survive_an_update_of_the_session(qtbot: QtBot, show: Show, mode: Mode) -> None:
    transcript = show(drawn())
    transcript.set_mode(mode)
    settle(qtbot, transcript)
    pane = transcript.tokens if mode is Mode.TOKENS else transcript.read
    viewport, view = pane.viewport(), drawn()
    left, y = pane.column()[0], pane.page.boxes[1].top + pane.page.boxes[1].height // 2 - pane.verticalScrollBar().value()
    first, last = QPoint(int(left) + 2, int(y)), QPoint(int(left) + 90, int(y))
    QTest.mousePress(viewport, Qt.MouseButton.LeftButton, pos=first)
    QTest.mouseMove(viewport, pos=last)
    held = pane.selected_text
    assert held
    transcript.set_session(replace(view, title="Another title"))
    assert pane.selected_text == held
    QTest.mouseMove(viewport, pos=last + QPoint(40, 0))
    assert len(pane.selected_text) > len(held)
    # another path under the mouse: the selection restarts at the place of the press
    transcript.set_session(replace(view, turns=view.turns[1:]))
    assert pane.selected_text == ""
    QTest.mouseMove(viewport, pos=last)
    QTest.mouseRelease(viewport, Qt.MouseButton.LeftButton, pos=last)


def test_dragging_from_the_right_selects_the_same(qtbot: QtBot, drawing: TranscriptView) -> None:
    left, right = centre(drawing, 2, 5), centre(drawing, 2, 14)
    drag(qtbot, drawing, left, right)
    forwards = drawing.tokens.selected_text
    drag(qtbot, drawing, right, left)
    assert drawing.tokens.selected_text == forwards != ""


def test_dragging_below_the_edge_scrolls_and_extends_the_selection(qtbot: QtBot, show: Show) -> None:
    transcript = show(session(turn(1, "assistant", written("|".join([" word"] * 3000)), status=TurnStatus.COMPLETE)))
    settle(qtbot, transcript)
    bar = transcript.tokens.verticalScrollBar()
    bar.setValue(0)
    viewport = transcript.tokens.viewport()
    QTest.mousePress(viewport, Qt.MouseButton.LeftButton, pos=QPoint(120, 60))
    for _ in range(5):
        QTest.mouseMove(viewport, pos=QPoint(300, viewport.height() + 40))
        QTest.mouseMove(viewport, pos=QPoint(301, viewport.height() + 40))
    QTest.mouseRelease(viewport, Qt.MouseButton.LeftButton, pos=QPoint(301, viewport.height() + 40))
    assert bar.value() > 0
    assert len(transcript.tokens.selected_text) > 2000
