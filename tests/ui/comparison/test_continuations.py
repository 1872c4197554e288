"""Continuations side by side: started by mouse and keys, streamed, stopped, kept."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.transcript.conftest import centre
from ui import BeamSearchRules, Column, ColumnKind, Columns, ColumnsChanged, MainWindow, TurnStatus
from ui.comparison.continuations import LEAST_PX, joint
from ui.transcript.measure import Measure

Play = Callable[[Scene], None]


@pytest.fixture
def idle(bench: FakeWorkbench) -> FakeWorkbench:
    """The spring trip without a running answer, and with one that can be continued."""
    view = bench.views[TRIP]
    last = bench.turn("assistant", ["Because", " of", " light"], status=TurnStatus.PARTIAL)
    bench.add(bench.summaries[TRIP], [*view.turns[:-1], last], branches=view.branches)
    return bench


async def pinned(window: MainWindow, bench: FakeWorkbench, index: int = 3) -> int:
    """Clicks a token of the first answer."""
    node_id = bench.views[TRIP].turns[1].node_id
    view = window.parts.transcript
    await until(lambda: view.tokens.page.boxes and all(box.body.done for box in view.tokens.page.boxes))
    await frames()
    QTest.mouseClick(view.tokens.viewport(), Qt.MouseButton.LeftButton, pos=centre(view, node_id, index))
    await until(lambda: window.parts.inspector.token.spot is not None)
    return node_id


@pytest.mark.slow
def test_eight_continuations_from_a_token_stream_side_by_side(in_window: Play, idle: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel, inspector = window.parts.columns, window.parts.inspector
        node_id = await pinned(window, idle)
        assert not panel.isVisible()
        idle.gate = asyncio.Semaphore(0)
        # when
        QTest.mouseClick(inspector.token.draws.buttons[8], Qt.MouseButton.LeftButton)
        await until(lambda: idle.asked("continue_many") == [(TRIP, node_id, 3, 8)])
        await until(lambda: len(panel.cards) == 8)
        # then there are eight columns, each with the words that have arrived and their joint probability
        assert panel.title.text() == "8 continuations after … could visit"
        for _ in range(4):
            idle.gate.release()
        await until(lambda: panel.cards[0].text.text == " Paris in spring,")
        assert panel.cards[1].text.text == " Kyoto for the cherry"
        assert window.controller.running
        assert window.acts.stop.isEnabled()
        assert "nats · p " in panel.cards[0].likely.text()
        assert not panel.cards[0].keep.isVisible()
        # when Stop is pressed
        QTest.mouseClick(panel.stop_button, Qt.MouseButton.LeftButton)
        idle.gate.release()
        await until(lambda: not window.controller.running)
        # then all have stopped, and each can be kept
        assert idle.asked("stop") == [(TRIP,)]
        assert [card.note.text() for card in panel.cards] == ["stopped"] * 8
        assert all(not card.keep.isHidden() for card in panel.cards)
        # when the third is kept
        kept = panel.cards[2].column.node_id
        idle.refusal = "an answer is on its way here"
        panel.area.ensureWidgetVisible(panel.cards[2].keep)
        QTest.mouseClick(panel.cards[2].keep, Qt.MouseButton.LeftButton)
        # then all stay if that is refused, and are closed once it is shown
        await until(lambda: "on its way" in window.parts.composer.notice.words)
        assert panel.isVisible()
        QTest.mouseClick(panel.cards[2].keep, Qt.MouseButton.LeftButton)
        await until(lambda: not panel.isVisible())
        assert idle.asked("select") == [(TRIP, kept)] * 2
        assert window.acts.undo.isEnabled()
        assert window.parts.composer.field.hasFocus()  # the next message can be written

    in_window(scene)


@pytest.mark.slow
def test_no_column_can_be_kept_while_another_streams(in_window: Play, idle: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel, run = window.parts.columns, idle.views[TRIP].turns[-1].run
        done, written = Column(901, run, running=False), Column(902, run)
        view = Columns(TRIP, ColumnKind.DRAWS, "", 2, columns=(done, written))
        idle.emit(ColumnsChanged(TRIP, view))
        await until(lambda: len(panel.cards) == 2)
        assert all(card.keep.isHidden() for card in panel.cards)
        ended = replace(view, columns=(done, replace(written, running=False)), running=False)
        idle.emit(ColumnsChanged(TRIP, ended))
        await until(lambda: not any(card.keep.isHidden() for card in panel.cards))

    in_window(scene)


@pytest.mark.slow
def test_beams_show_their_scores_and_the_shortcuts_of_the_menu_work(in_window: Play, idle: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.columns
        node_id = await pinned(window, idle)
        QTest.keyClick(
            window.parts.transcript.tokens, Qt.Key.Key_B, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier
        )
        await until(lambda: idle.asked("beams") == [(TRIP, node_id, 3, 4, BeamSearchRules())])
        await until(lambda: len(panel.cards) == 4 and not window.controller.running)
        assert panel.title.text() == "4 beams after … could visit"
        assert [card.score.text() for card in panel.cards] == ["score −0.50", "score −0.75", "score −1.00", "score −1.25"]
        window.resize(900, 700)  # with the narrowest columns, no number in their heads is cut off
        await until(lambda: all(card.width() == LEAST_PX for card in panel.cards))
        assert all(label.shown == label.text() for card in panel.cards for label in (card.likely, card.score))
        # Escape closes the columns
        panel.cards[0].keep.setFocus()
        QTest.keyClick(panel.cards[0].keep, Qt.Key.Key_Escape)
        assert not panel.isVisible()

    in_window(scene)


@pytest.mark.slow
def test_the_rules_of_a_beam_search_are_chosen_in_the_inspector(in_window: Play, idle: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        rows = window.parts.inspector.token.beam_rows
        node_id = await pinned(window, idle)
        assert not rows.penalty.isVisible()
        # when they are unfolded and set by keys
        QTest.mouseClick(rows.more, Qt.MouseButton.LeftButton)
        assert rows.penalty.isVisible()
        rows.penalty.setFocus()
        rows.penalty.selectAll()
        QTest.keyClicks(rows.penalty, rows.penalty.locale().toString(-0.75, "f", 2))
        rows.ends.setFocus()
        QTest.keyClick(rows.ends, Qt.Key.Key_End)
        QTest.mouseClick(rows.ways.buttons[2], Qt.MouseButton.LeftButton)
        # then the search uses them
        asked = [(TRIP, node_id, 3, 2, BeamSearchRules(-0.75, "never"))]
        await until(lambda: idle.asked("beams") == asked and not window.controller.running)
        # also the search of the menu, and after they are folded again
        QTest.mouseClick(rows.more, Qt.MouseButton.LeftButton)
        assert not rows.penalty.isVisible()
        rows.ends.setCurrentIndex(1)
        window.acts.beams.trigger()
        asked += [(TRIP, node_id, 3, 4, BeamSearchRules(-0.75, True))]
        await until(lambda: idle.asked("beams") == asked and not window.controller.running)

    in_window(scene)


def test_without_a_pinned_token_the_end_of_the_answer_is_continued(in_window: Play, idle: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        last = idle.views[TRIP].turns[-1].node_id
        window.acts.two_ways.trigger()
        await until(lambda: idle.asked("continue_many") == [(TRIP, last, None, 2)])
        await until(lambda: not window.controller.running)
        # a refusal is shown in the notice, and no panel is left
        idle.refusal = "the answer is complete"
        window.acts.two_ways.trigger()
        await until(lambda: window.parts.composer.notice.words == "the answer is complete")

    in_window(scene)


@pytest.mark.slow
def test_continuations_are_not_offered_in_text_of_the_user(in_window: Play, idle: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        node_id = idle.views[TRIP].turns[0].node_id
        view = window.parts.transcript
        await until(lambda: view.tokens.page.boxes and all(box.body.done for box in view.tokens.page.boxes))
        await frames()
        QTest.mouseClick(view.tokens.viewport(), Qt.MouseButton.LeftButton, pos=centre(view, node_id, 2))
        await until(lambda: window.parts.inspector.token.spot is not None)
        assert not window.parts.inspector.token.draws.isVisible()

    in_window(scene)


@pytest.mark.slow
def test_columns_belong_to_their_session(in_window: Play, idle: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.columns
        await pinned(window, idle)
        idle.gate = asyncio.Semaphore(0)
        window.acts.four_ways.trigger()
        await until(lambda: len(panel.cards) == 4)
        # when another session is opened meanwhile
        window.controller.open(3)
        await until(lambda: window.controller.shown is not None and window.controller.shown.session_id == 3)
        assert not panel.isVisible()
        assert not window.controller.running
        # then they are shown again on return, with the tokens that arrived meanwhile
        for _ in range(20):
            idle.gate.release()
        await frames()
        window.controller.open(TRIP)
        await until(lambda: panel.isVisible())
        await until(lambda: panel.cards[0].text.text.endswith("chairs."))
        # and an event that removes them closes them
        idle.emit(ColumnsChanged(TRIP, None))
        await until(lambda: not panel.isVisible())

    in_window(scene)


@pytest.mark.slow
def test_events_about_closed_columns_do_not_open_them_again(in_window: Play, idle: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.columns
        await pinned(window, idle)
        views: list[Columns | None] = []
        window.controller.draws.columns_changed.connect(views.append)
        window.acts.four_ways.trigger()
        await until(lambda: len(panel.cards) == 4 and not window.controller.running)
        view = views[-1]
        assert view is not None
        told = replace(view, note="reopened", columns=tuple(replace(column, note="reopened") for column in view.columns))
        idle.emit(ColumnsChanged(TRIP, told))
        await until(lambda: panel.note.text() == "reopened")
        assert [card.note.text() for card in panel.cards] == ["reopened"] * 4
        panel.closed.emit()
        await until(lambda: not panel.isVisible())
        idle.emit(ColumnsChanged(TRIP, told))
        await frames()
        assert not panel.isVisible()

    in_window(scene)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("width", [560, 900, 1360])
def test_columns_share_a_wide_panel_and_scroll_in_a_narrow_one(in_window: Play, idle: FakeWorkbench, width: int) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.columns
        window.resize(width, 800)
        await pinned(window, idle)
        window.acts.eight_ways.trigger()
        await until(lambda: len(panel.cards) == 8 and not window.controller.running)
        await frames()
        tops = {card.mapTo(panel, QPoint(0, 0)).y() for card in panel.cards}
        assert len(tops) == 1
        assert all(card.width() >= LEAST_PX for card in panel.cards)
        assert panel.area.horizontalScrollBar().maximum() > 0  # eight columns need more room
        # every token is inside its column, and no column is cut off below
        for card in panel.cards:
            assert card.text.height() >= card.text.heightForWidth(card.text.width())
            assert card.rect().contains(card.text.geometry())
        # the transcript is still visible
        assert window.parts.transcript.height() > 100

    in_window(scene)


def test_two_columns_share_a_wide_panel(in_window: Play, idle: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.columns
        window.resize(1360, 800)
        window.acts.two_ways.trigger()
        await until(lambda: len(panel.cards) == 2 and not window.controller.running)
        await frames()
        assert panel.area.horizontalScrollBar().maximum() == 0
        assert abs(panel.cards[0].width() - panel.cards[1].width()) <= 1
        # in a very narrow one they are one below the other
        panel.setFixedWidth(380)
        await frames()
        assert panel.cards[0].geometry().bottom() < panel.cards[1].geometry().top()

    in_window(scene)


@pytest.mark.slow
def test_columns_have_the_same_colours_as_the_transcript(in_window: Play, idle: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.columns
        window.acts.two_ways.trigger()
        await until(lambda: len(panel.cards) == 2 and not window.controller.running)
        await frames()
        before = panel.cards[0].text.grab().toImage()
        window.presenter.colour_by(Measure.ENTROPY)
        assert panel.cards[0].text.grab().toImage() != before
        window.presenter.colour_by(Measure.SURPRISAL)
        assert panel.cards[0].text.grab().toImage() == before

    in_window(scene)


@pytest.mark.parametrize(
    ("p", "words"), [(0.5, ".500"), (0.0021, ".002"), (4.2e-11, "4e−11"), (1e-300, "1e−300"), (9.99e-5, "9e−5")]
)
def test_a_joint_probability_is_shown_in_a_few_figures(p: float, words: str) -> None:
    assert joint(math.log(p)) == words


def test_a_joint_probability_smaller_than_any_float_is_shown() -> None:
    assert joint(-2302.6) == "9e−1,001"


@pytest.mark.slow
def test_the_keyboard_focus_stays_in_the_text_when_the_pin_is_removed(in_window: Play, idle: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        await pinned(window, idle)
        button = window.parts.inspector.token.draws.buttons[8]
        button.setFocus()
        window.presenter.take_pin(None)  # as when a sample is replaced by its copy
        await until(lambda: not button.isVisible())
        focused = window.focusWidget()
        assert focused is not None
        assert window.parts.transcript.isAncestorOf(focused)

    in_window(scene)


@pytest.mark.slow
def test_short_columns_leave_room_to_the_transcript(in_window: Play, idle: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        # given two short continuations
        panel, view = window.parts.columns, window.parts.transcript
        await pinned(window, idle)
        QTest.mouseClick(window.parts.inspector.token.draws.buttons[2], Qt.MouseButton.LeftButton)
        await until(lambda: len(panel.cards) == 2 and not window.controller.running)
        await frames()
        # then the strip ends at the end of the longest one, and nothing is cut off
        ends = [card.keep.mapTo(panel, QPoint(0, card.keep.height())).y() for card in panel.cards]
        assert panel.height() - max(ends) < 60
        assert panel.area.verticalScrollBar().maximum() == 0
        assert view.height() > panel.height()
        # when one of them is long
        shown = panel.cards[0].column
        short = panel.height()
        panel.append(shown.node_id, shown.run[:0].concat([shown.run] * 60), -1.0)
        await frames()
        # then the strip has grown up to its share of the window, and scrolls
        assert short < panel.height() < 2 * view.height()
        assert panel.area.verticalScrollBar().maximum() > 0

    in_window(scene)
