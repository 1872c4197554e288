"""Calls of tools: cards in the text of both modes, with a field for the result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel, QWidget

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.window.test_conversation import finish
from ui import MainWindow, SessionChanged, SessionCopied, ToolCard
from ui.composer.draft_field import DraftField
from ui.transcript import Mode
from ui.transcript.overlay.tool_cards import CallCard, TurnCards

Play = Callable[[Scene], None]
HOSTILE = ToolCard("<b>weather</b>", '{\n  "city": "<img src=x> \N{RIGHT-TO-LEFT OVERRIDE}Oslo"\n}')
CLOCK = ToolCard("clock", "{}")
OTHER = 3  # a session


def calling(bench: FakeWorkbench, *calls: ToolCard) -> int:
    """Adds calls to the last answer; returns its node."""
    view = bench.views[TRIP]
    bench.views[TRIP] = replace(view, turns=(*view.turns[:-1], replace(view.turns[-1], calls=calls)))
    bench.emit(SessionChanged(bench.views[TRIP]))
    return view.turns[-1].node_id


def focused() -> QWidget:
    widget = QApplication.focusWidget()
    assert widget is not None
    return widget


def field(card: CallCard) -> DraftField:
    assert card.result is not None
    return card.result


async def cards_of(window: MainWindow, node_id: int, count: int) -> TurnCards:
    await until(lambda: node_id in window.parts.cards.turns and len(window.parts.cards.turns[node_id].cards) == count)
    return window.parts.cards.turns[node_id]


def test_a_call_is_shown_as_a_card_with_a_field_for_its_result(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        assert window.parts.cards.turns == {}
        node = calling(bench, HOSTILE, CLOCK)
        cards = await cards_of(window, node, 2)
        assert cards.isVisible()
        said = [label.text() for label in cards.cards[0].findChildren(QLabel)]
        assert said[0] == "calls <b>weather</b>"
        assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in said[1]
        assert said[1].startswith("{\n\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}")
        assert cards.cards[1].accessibleName() == "Call of clock"
        QTest.keyClicks(field(cards.cards[0]), "rain")
        assert not cards.send_button.isEnabled()
        bench.emit(SessionChanged(bench.views[TRIP]))
        await frames()
        assert field(cards.cards[0]).toPlainText() == "rain"  # the same calls: the typed text stays
        QTest.keyClicks(field(cards.cards[1]), "noon")
        QTest.keyClick(field(cards.cards[1]), Qt.Key.Key_Return)
        await until(lambda: bench.asked("answer_call") == [(TRIP, node, ["rain", "noon"])])
        # a malformed call shows the reason and cannot be answered
        calling(bench, ToolCard("", "", "call 1: the answer ends before the call does"))
        cards = await cards_of(window, node, 1)
        assert not cards.send_button.isVisible()
        assert cards.cards[0].result is None

    in_window(scene)


def test_typed_results_are_restored_when_their_session_is_shown_again(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        node = calling(bench, HOSTILE, CLOCK)
        QTest.keyClicks(field((await cards_of(window, node, 2)).cards[1]), "noon")
        window.controller.open(OTHER)
        await until(lambda: window.controller.is_shown(OTHER))
        assert node not in window.parts.cards.turns
        assert window.state().results == ((node, ["", "noon"]),)
        window.controller.open(TRIP)
        cards = await cards_of(window, node, 2)
        assert cards.results == ["", "noon"]
        # and in the copy of the session, whose turns have other ids
        view = bench.views[TRIP]
        again = tuple(replace(turn, node_id=turn.node_id + 1000, variants=(turn.node_id + 1000,)) for turn in view.turns)
        bench.views[77] = replace(view, session_id=77, turns=again)
        bench.emit(SessionCopied(TRIP, bench.views[77], {turn.node_id: turn.node_id + 1000 for turn in view.turns}))
        assert (await cards_of(window, node + 1000, 2)).results == ["", "noon"]
        assert window.state().results == ((node + 1000, ["", "noon"]),)

    in_window(scene)


def test_typed_results_are_restored_in_the_next_window(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        window.parts.cards.remember([(bench.views[TRIP].turns[-1].node_id, ["sunny"])])
        node = calling(bench, CLOCK)
        assert (await cards_of(window, node, 1)).results == ["sunny"]
        QTest.mouseClick(window.parts.cards.turns[node].send_button, Qt.MouseButton.LeftButton)
        await until(lambda: bench.asked("answer_call") == [(TRIP, node, ["sunny"])])
        # once the call is answered they are removed
        view = bench.views[TRIP]
        last = replace(next(turn for turn in view.turns if turn.node_id == node), calls=(), called=(CLOCK,))
        bench.views[TRIP] = replace(view, turns=tuple(last if turn.node_id == node else turn for turn in view.turns))
        bench.emit(SessionChanged(bench.views[TRIP]))
        await until(lambda: window.state().results == ())

    in_window(scene)


@pytest.mark.slow
@pytest.mark.parametrize("mode", Mode)
def test_the_card_is_between_its_answer_and_the_line_under_it(in_window: Play, bench: FakeWorkbench, mode: Mode) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        window.presenter.set_mode(mode)
        pane = window.parts.transcript.tokens if mode is Mode.TOKENS else window.parts.transcript.read
        node = calling(bench, CLOCK)
        cards = await cards_of(window, node, 1)
        await until(lambda: all(box.body.done for box in pane.page.boxes))
        box = pane.page.boxes[-1]
        scrolled = pane.verticalScrollBar().value()
        assert cards.parent() is pane.viewport()
        assert cards.y() >= box.top + box.body.height - scrolled
        assert cards.y() + cards.height() <= box.top + box.meta_top - scrolled
        assert (cards.x(), cards.width()) == pane.column()
        # and moves with the text
        window.resize(window.width(), 420)
        await until(lambda: pane.verticalScrollBar().maximum() > 0)
        pane.verticalScrollBar().setValue(pane.verticalScrollBar().maximum())
        before, low = cards.y(), pane.verticalScrollBar().value()
        pane.verticalScrollBar().setValue(low - 20)
        assert cards.y() == before + 20

    in_window(scene)


def test_typing_continues_after_a_change_of_mode(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        node = calling(bench, CLOCK)
        cards = await cards_of(window, node, 1)
        window.activateWindow()
        await until(window.isActiveWindow)
        QTest.mouseClick(field(cards.cards[0]), Qt.MouseButton.LeftButton)
        QTest.keyClicks(field(cards.cards[0]), "2 o")  # a digit typed here is not a shortcut of the transcript
        window.presenter.set_mode(Mode.READ)
        assert cards.parent() is window.parts.transcript.read.viewport()
        assert cards.isVisible()
        assert QApplication.focusWidget() is field(cards.cards[0])
        QTest.keyClicks(focused(), "'clock")
        assert field(cards.cards[0]).toPlainText() == "2 o'clock"
        assert bench.asked("branch") == []

    in_window(scene)


def test_tab_moves_from_the_text_to_its_cards(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        node = calling(bench, HOSTILE, CLOCK)
        cards = await cards_of(window, node, 2)
        window.resize(window.width(), 420)
        await frames()
        window.activateWindow()
        await until(window.isActiveWindow)
        window.parts.transcript.setFocus()
        window.parts.transcript.tokens.verticalScrollBar().setValue(0)
        seen = []
        for _ in range(2):
            QTest.keyClick(focused(), Qt.Key.Key_Tab)
            seen.append(focused())
        assert seen == [field(card) for card in cards.cards]
        # and the focused field is in sight
        top = seen[1].mapTo(window.parts.transcript.tokens.viewport(), QPoint(0, 0)).y()
        assert 0 <= top < window.parts.transcript.tokens.viewport().height()
        QTest.keyClicks(seen[1], "noon")
        QTest.keyClick(seen[1], Qt.Key.Key_Return)  # one result is missing: nothing is sent, and the text does not react either
        assert (bench.asked("answer_call"), bench.asked("branch")) == ([], [])

    in_window(scene)


def test_an_answered_call_stays_a_card_without_a_field(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    view = bench.views[TRIP]
    asking = replace(view.turns[-1], called=(CLOCK,))
    bench.views[TRIP] = replace(view, turns=(*view.turns[:-1], asking, bench.turn("tool", ["noon"])))

    async def scene(window: MainWindow) -> None:
        cards = await cards_of(window, asking.node_id, 1)
        assert [label.text() for label in cards.cards[0].findChildren(QLabel)] == ["called clock", "{}"]
        assert (cards.cards[0].result, cards.send_button.isVisible()) == (None, False)
        # another session has no cards
        window.controller.open(3)
        await until(lambda: window.parts.cards.turns == {})

    in_window(scene)


def test_a_result_may_have_several_lines(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        node = calling(bench, CLOCK)
        cards = await cards_of(window, node, 1)
        result = field(cards.cards[0])
        low = result.height()
        QTest.keyClicks(result, "noon")
        QTest.keyClick(result, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
        QTest.keyClicks(result, "or later")
        assert bench.asked("answer_call") == []
        assert result.height() > low
        QApplication.clipboard().setText("\nby\nsun")
        result.paste()
        assert result.height() > 2 * low
        await until(lambda: cards.height() >= result.height())  # the text makes room for it
        QTest.keyClick(result, Qt.Key.Key_Return)
        await until(lambda: bench.asked("answer_call") == [(TRIP, node, ["noon\nor later\nby\nsun"])])

    in_window(scene)


@pytest.mark.slow
def test_read_shows_the_card_and_not_the_source_of_the_call(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    call = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
    words = ["Let me", " look.", "\n\n<tool", '_call>{"name": "clock", "argum', 'ents": {}}', "</tool_call>", " A moment."]
    text = "".join(words)
    start = text.index("<tool")
    card = replace(CLOCK, span=(start, start + len(call)))
    view = bench.views[TRIP]
    answer = bench.turn("assistant", words)
    bench.views[TRIP] = replace(view, turns=(*view.turns[:-1], answer))

    async def scene(window: MainWindow) -> None:
        transcript = window.parts.transcript
        window.presenter.set_mode(Mode.READ)

        def read() -> str:
            transcript.read.select_all()
            return transcript.read.selected_text

        # given the answer as it streams, then its parsed calls
        await until(lambda: "tool_call" in read())
        calling(bench, card)
        await cards_of(window, answer.node_id, 1)
        await until(lambda: "tool_call" not in read())
        assert "clock" not in read()
        assert read().rstrip().endswith("A moment.")
        assert "Let me look." in read()
        # and Tokens shows all tokens of the call
        window.presenter.set_mode(Mode.TOKENS)
        transcript.tokens.select_all()
        assert call in transcript.tokens.selected_text
        # and a call that cannot be answered is shown as its source
        window.presenter.set_mode(Mode.READ)
        calling(bench, ToolCard("", "", "call 1: no such tool"))
        await until(lambda: "tool_call" in read())

    in_window(scene)


def test_an_answer_that_is_only_a_call_is_shown_as_its_card(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    call = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
    view = bench.views[TRIP]
    answer = bench.turn("assistant", [call])
    bench.views[TRIP] = replace(view, turns=(*view.turns[:-1], answer))

    async def scene(window: MainWindow) -> None:
        window.presenter.set_mode(Mode.READ)
        calling(bench, replace(CLOCK, span=(0, len(call))))
        await cards_of(window, answer.node_id, 1)
        pane = window.parts.transcript.read
        await until(lambda: pane.page.boxes[-1].body.done and pane.page.boxes[-1].body.height == 0)

    in_window(scene)
