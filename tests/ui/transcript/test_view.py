"""The transcript as the window uses it: sessions, streams, modes, scrolling."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from runtime import Origin, TokenRun
from tests.ui.transcript.conftest import Show, lay_out_slowly, settle
from tests.ui.transcript.samples import drawing as drawn
from tests.ui.transcript.samples import run_of, session, turn, written
from ui.port import SessionView, TurnStatus
from ui.theme.palette import DARK, LIGHT
from ui.transcript import Mode, TranscriptView


def words(count: int, first_id: int = 1, origin: Origin = Origin.SAMPLED) -> TokenRun:
    return run_of([f" word{i}" for i in range(count)], [1.0] * count, origin, first_id)


def long_session(turns: int = 20, count: int = 150, session_id: int = 1) -> SessionView:
    roles = ("user", "assistant")
    return session(*(turn(i, roles[i % 2], words(count, i * 1000)) for i in range(turns)), session_id=session_id)


def streaming(run: TokenRun) -> SessionView:
    return session(turn(1, "user", words(300)), turn(2, "assistant", run, status=TurnStatus.STREAMING))


def at_end(transcript: TranscriptView) -> bool:
    bar = transcript.tokens.verticalScrollBar()
    return bar.maximum() > 0 and bar.value() == bar.maximum()


# ---- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_keeps_the_end_in_sight(qtbot: QtBot, show: Show) -> None:
    transcript = show(streaming(words(100, 5000)))
    assert at_end(transcript)
    for _ in range(5):
        transcript.append_tokens(2, words(40, 6000))
        QApplication.processEvents()
        assert at_end(transcript)


def test_a_stream_does_not_move_a_page_that_is_scrolled_up(qtbot: QtBot, show: Show) -> None:
    # given a page scrolled up
    transcript = show(streaming(words(100, 5000)))
    bar = transcript.tokens.verticalScrollBar()
    bar.setValue(40)
    before = bar.maximum()
    # when more arrives
    transcript.append_tokens(2, words(400, 6000))
    # then the page is longer and nothing moved
    assert bar.maximum() > before
    assert bar.value() == 40


def test_streamed_tokens_look_the_same_as_after_reopening_the_session(qtbot: QtBot, show: Show) -> None:
    whole = written("Because| the=b| city=a| is| built=c|\n\n| for| slow=d| mornings=b|.| Be| cause=e")
    streamed = show(session(turn(4, "assistant", whole[:0], status=TurnStatus.WAITING)))
    for i in range(len(whole)):
        streamed.append_tokens(4, whole[i : i + 1])
    streamed.update_turn(turn(4, "assistant", whole))
    opened = show(session(turn(4, "assistant", whole)))
    assert streamed.tokens.viewport().grab().toImage() == opened.tokens.viewport().grab().toImage()


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("end", ["\n", "\n\n", "b"])
def test_a_stream_leaves_no_caret_behind(qtbot: QtBot, show: Show, mode: Mode, end: str) -> None:
    # given an answer whose caret is at the end of its line
    transcript = show(session(turn(4, "assistant", written("Because| it=b"), status=TurnStatus.STREAMING)))
    transcript.set_mode(mode)
    settle(qtbot, transcript)
    for run in (run_of([end], [1.0], Origin.SAMPLED, 20), written("slow=d| mornings=b", first_id=30)):
        transcript.append_tokens(4, run)
        QApplication.processEvents()
    # when more tokens have arrived, then the incremental painting equals a full painting
    pane = (transcript.tokens if mode is Mode.TOKENS else transcript.read).viewport()
    place = pane.mapTo(transcript, QPoint(0, 0))
    seen = transcript.screen().grabWindow(transcript.winId(), place.x(), place.y(), pane.width(), pane.height()).toImage()
    assert seen == pane.grab().toImage().convertToFormat(seen.format())


def test_a_waiting_turn_shows_its_note_until_tokens_arrive(show: Show) -> None:
    transcript = show(session(turn(1, "assistant", words(0), status=TurnStatus.WAITING)))
    waiting = transcript.tokens.viewport().grab().toImage()
    transcript.append_tokens(1, written("Hello=b"))
    assert transcript.tokens.page.boxes[0].turn.view.status is TurnStatus.STREAMING
    assert transcript.tokens.viewport().grab().toImage() != waiting


def test_tokens_and_turns_of_another_session_are_ignored(show: Show) -> None:
    transcript = show(drawn())
    transcript.append_tokens(77, words(3))
    transcript.update_turn(turn(77, "assistant", words(3)))
    assert [box.turn.node_id for box in transcript.tokens.page.boxes] == [1, 2, 3, 4]


def test_the_record_of_a_streamed_token_is_available(show: Show) -> None:
    transcript = show(drawn())
    transcript.append_tokens(4, written(" at=d", first_id=90))
    record = transcript.record(4, 8)
    assert record is not None
    assert record.text == " at"
    assert transcript.record(4, 9) is None
    assert transcript.record(77, 0) is None


# ---- sessions ---------------------------------------------------------------------------------------------------------


def test_turns_that_did_not_change_keep_their_layout(show: Show) -> None:
    # given a path
    view = drawn()
    transcript = show(view)
    before = [box.body for box in transcript.tokens.page.boxes]
    # when a sibling replaces one turn
    other = turn(9, "assistant", written("You| should=b| stay=e"), variants=(2, 9))
    transcript.set_session(replace(view, turns=(*view.turns[:1], other, *view.turns[2:])))
    # then only that one is new
    after = [box.body for box in transcript.tokens.page.boxes]
    assert [a is b for a, b in zip(before, after, strict=True)] == [True, False, True, True]


def test_another_path_of_the_session_keeps_the_place_and_another_session_shows_its_end(qtbot: QtBot, show: Show) -> None:
    view = long_session()
    transcript = show(view)
    bar = transcript.tokens.verticalScrollBar()
    bar.setValue(500)
    transcript.set_session(replace(view, turns=view.turns[:-1]))
    settle(qtbot, transcript)
    assert bar.value() == 500
    transcript.set_session(long_session(session_id=2))
    settle(qtbot, transcript)
    assert at_end(transcript)


def test_scores_that_arrive_later_colour_the_turn(show: Show) -> None:
    scored = written("You| could=a| visit=e")
    plain = TokenRun.unscored(scored.ids.tolist(), scored.token_bytes, scored.texts, Origin.TYPED)
    transcript = show(session(turn(1, "user", plain)))
    transcript.update_turn(turn(1, "user", scored))
    box = transcript.tokens.token_box(1, 2)
    assert box is not None
    picture = transcript.tokens.viewport().grab().toImage()
    assert picture.pixelColor(box.center().x(), box.top() + 2).name() == "#e0a595"  # between the strongest step and the window


@pytest.mark.slow
def test_a_session_of_a_hundred_thousand_tokens_is_laid_out_in_slices(qtbot: QtBot, show: Show) -> None:
    transcript = show(long_session(turns=10, count=10_000))
    assert at_end(transcript)
    assert transcript.tokens.page.height > 100_000


@pytest.mark.parametrize("width", [200, 500, 1300])
def test_the_column_fits_the_window_and_is_at_most_640_wide(show: Show, width: int) -> None:
    transcript = show(drawn(), width=width)
    left, column = transcript.tokens.column()
    assert column <= 640
    if width >= 500:
        assert left + column <= width
    assert transcript.strip.mapTo(transcript, QPoint(0, 0)).x() == left


def test_resizing_keeps_the_token_at_the_top(qtbot: QtBot, show: Show) -> None:
    transcript = show(long_session())
    transcript.tokens.verticalScrollBar().setValue(1500)
    before = transcript.tokens.anchor()
    transcript.resize(520, 690)
    settle(qtbot, transcript)
    after = transcript.tokens.anchor()
    assert after.turn == before.turn
    assert abs(after.token - before.token) < 12, "the same line, broken elsewhere"


def test_an_empty_session_has_a_hint(show: Show) -> None:
    transcript = show(session())
    picture = transcript.tokens.viewport().grab().toImage()
    across = {picture.pixelColor(x, picture.height() // 2).name() for x in range(picture.width())}
    assert len(across) > 5, "the hint's letters"
    assert {picture.pixelColor(x, 10).name() for x in range(picture.width())} == {LIGHT.window}


def test_another_text_size_wraps_again(qtbot: QtBot, show: Show) -> None:
    transcript = show(long_session())
    before = transcript.tokens.page.height
    transcript.set_text_scale(1.5)
    settle(qtbot, transcript)
    assert transcript.tokens.page.height > before * 1.3


# ---- modes ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("slow", [False, True])
def test_switching_modes_keeps_the_place(qtbot: QtBot, show: Show, monkeypatch: pytest.MonkeyPatch, slow: bool) -> None:
    # given a long session, also on a machine so slow that each slice lays out almost nothing
    transcript = show(long_session())
    if slow:
        lay_out_slowly(monkeypatch)
    bar = transcript.tokens.verticalScrollBar()
    for place in range(1200, 1800, 97 if slow else 13):  # in a turn's middle, at its end, between two
        bar.setValue(place)
        before = transcript.tokens.anchor()
        if slow:
            transcript.set_text_scale(1.0 if place % 2 else 1.2)  # invalidates the layout
            settle(qtbot, transcript)
        # when the other mode is shown, and this one again
        transcript.set_mode(Mode.READ)
        settle(qtbot, transcript)
        between = transcript.read.anchor()
        transcript.set_mode(Mode.TOKENS)
        settle(qtbot, transcript)
        # then the same words are at the top
        after = transcript.tokens.anchor()
        assert before.turn == between.turn == after.turn
        assert abs(after.token - before.token) < 24


def test_a_scroll_position_set_during_the_layout_is_kept(qtbot: QtBot, show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    transcript = show(long_session())
    bar = transcript.tokens.verticalScrollBar()
    bar.setValue(1500)
    lay_out_slowly(monkeypatch)
    transcript.set_text_scale(1.2)
    bar.setValue(0)
    settle(qtbot, transcript)
    assert bar.value() == 0


def test_changes_made_while_read_is_shown_appear_in_tokens_after_switching(qtbot: QtBot, show: Show) -> None:
    # given a pinned token and Read mode
    transcript = show(drawn())
    transcript.set_pinned(3, 1)
    transcript.set_mode(Mode.READ)
    # when the stream continues and ends, and another turn is added
    transcript.append_tokens(4, written(" and| more=b", first_id=90))
    transcript.update_turn(turn(4, "assistant", TokenRun.concat([drawn().turns[3].run, written(" and| more=b", first_id=90)])))
    transcript.set_session(session(*drawn().turns[:3], turn(8, "assistant", written("Another=c"))))
    # then Tokens mode shows it, and the pin is kept
    transcript.set_mode(Mode.TOKENS)
    settle(qtbot, transcript)
    assert [box.turn.node_id for box in transcript.tokens.page.boxes] == [1, 2, 3, 8]
    assert transcript.pinned == (3, 1)
    assert transcript.tokens.token_box(8, 0) is not None


def test_another_palette_applies_to_both_modes(qtbot: QtBot, show: Show) -> None:
    transcript = show(drawn())
    transcript.set_palette_of(DARK)
    for mode in (Mode.TOKENS, Mode.READ):
        transcript.set_mode(mode)
        QApplication.processEvents()
        assert transcript.grab().toImage().pixelColor(3, 400).name() == DARK.window


def test_everything_has_an_accessible_name(show: Show) -> None:
    transcript = show(drawn())
    for widget in (transcript, transcript.tokens, transcript.read, transcript.strip):
        assert widget.accessibleName()
