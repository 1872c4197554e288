"""A session is laid out in slices: the visible turns first, the rest in later turns of the event loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from PySide6.QtCore import QEvent, QObject
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from runtime import Origin
from tests.ui.transcript.conftest import Show, settle
from tests.ui.transcript.samples import run_of, session, turn
from ui.port import SessionView
from ui.transcript import Measure, Mode, TranscriptView
from ui.transcript.pane.pane import Pane

TURNS = 60
HUGE = 5  # a turn that is higher than the window
LONG = 3600.0  # seconds
View = TranscriptView
Asked = Callable[[View], object]


def many(session_id: int, first: int = 1) -> SessionView:
    """A session with so many turns that most are out of sight; each contains its number."""
    turns = []
    for node in range(first, first + TURNS):
        count = 900 if node == HUGE else 60
        words = [f" turn{node}", *(f" word{i}" for i in range(count))]
        bits = [float(1 + (node * 7 + i) % 5) for i in range(count + 1)]
        origin = Origin.TYPED if node % 2 else Origin.SAMPLED
        turns.append(turn(node, "user" if node % 2 else "assistant", run_of(words, bits, origin, node * 100)))
    return session(*turns, session_id=session_id)


@pytest.fixture(autouse=True)
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lays out the visible turns at once, then one turn per turn of the event loop, independent of the machine's speed."""
    monkeypatch.setattr("ui.transcript.pane.pane.AT_ONCE_SECONDS", LONG)
    monkeypatch.setattr("ui.transcript.pane.pane.SLICE_SECONDS", 0.0)
    monkeypatch.setattr("ui.transcript.pane.pane.SLICE_MS", 0)
    monkeypatch.setattr("ui.transcript.overlay.strip.AT_ONCE_SECONDS", 0.0)
    monkeypatch.setattr("ui.transcript.overlay.strip.SLICE_SECONDS", 0.0)
    monkeypatch.setattr("ui.transcript.overlay.strip.SLICE_MS", 0)


@pytest.fixture
def transcript(show: Show) -> TranscriptView:
    """A transcript that has shown another session before."""
    return show(session(turn(1000, "assistant", run_of([" as", " before"], [1.0, 2.0], Origin.SAMPLED)), session_id=9))


def laid_out(pane: Pane) -> list[bool]:  # type: ignore[type-arg]  # of any body
    return [box.done for box in pane.page.boxes]


def in_sight(pane: Pane) -> list[bool]:  # type: ignore[type-arg]  # likewise
    top, bottom = pane.verticalScrollBar().value(), pane.verticalScrollBar().value() + pane.viewport().height()
    return [box.top + box.height > top and box.top < bottom for box in pane.page.boxes]


@pytest.mark.parametrize("mode", Mode)
def test_visible_turns_are_laid_out_first(qtbot: QtBot, transcript: View, mode: Mode) -> None:
    transcript.set_mode(mode)
    pane = transcript.tokens if mode is Mode.TOKENS else transcript.read
    # when a long session is shown
    transcript.set_session(many(1))
    # then its end is in sight and laid out, and most other turns have no layout yet
    assert pane.is_at_end
    assert all(done for done, seen in zip(laid_out(pane), in_sight(pane), strict=True) if seen)
    assert sum(box.made is not None for box in pane.page.boxes) < TURNS / 2
    # and everything in the end, with the end still in sight
    qtbot.waitUntil(lambda: all(laid_out(pane)))
    assert pane.is_at_end


class Painted(QObject):
    """Counts how often a widget was painted."""

    def __init__(self) -> None:
        super().__init__()
        self.times = 0

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802  # Qt's name
        self.times += event.type() is QEvent.Type.Paint
        return super().eventFilter(watched, event)


def test_turns_out_of_sight_are_laid_out_without_a_repaint(qtbot: QtBot, transcript: View) -> None:
    pane = transcript.tokens
    transcript.set_session(many(1))
    for _ in range(6):
        QApplication.processEvents()
    assert not all(laid_out(pane))
    seen, painted = pane.viewport().grab().toImage(), Painted()
    pane.viewport().installEventFilter(painted)
    # when the rest is laid out
    qtbot.waitUntil(lambda: all(laid_out(pane)))
    QApplication.processEvents()
    # then nothing visible was repainted or changed
    assert painted.times == 0
    pane.viewport().removeEventFilter(painted)
    assert pane.viewport().grab().toImage() == seen


def test_a_session_is_painted_once_and_not_in_the_turn_of_the_loop_that_sets_it(transcript: View) -> None:
    pane, painted = transcript.tokens, Painted()
    viewport = pane.viewport()
    viewport.installEventFilter(painted)
    # when a session is shown, and the window is resized for it
    transcript.set_session(many(1))
    transcript.resize(transcript.width(), transcript.height() - 30)
    QApplication.sendPostedEvents()
    viewport.repaint()
    viewport.grab()  # a grab does not count as painting
    at_once, in_sight_at_once = painted.times, laid_out(pane)
    # then the old picture stays for a moment, and no more is laid out meanwhile
    while painted.times == at_once:
        assert laid_out(pane) == in_sight_at_once
        QApplication.processEvents()
    for _ in range(6):
        QApplication.processEvents()
    assert (at_once, painted.times) == (1, 2)
    viewport.removeEventFilter(painted)


def test_a_resize_paints_once(qtbot: QtBot, transcript: View) -> None:
    transcript.set_session(many(1))
    qtbot.waitUntil(lambda: all(laid_out(transcript.tokens)))
    viewport, painted = transcript.tokens.viewport(), Painted()
    viewport.installEventFilter(painted)
    transcript.resize(transcript.width(), transcript.height() - 100)
    for _ in range(6):
        QApplication.processEvents()
    assert painted.times == 1
    viewport.removeEventFilter(painted)


def test_the_visible_text_stays_in_place_while_turns_above_get_their_height(qtbot: QtBot, transcript: View) -> None:
    pane = transcript.tokens
    transcript.set_session(many(1))
    bar = pane.verticalScrollBar()
    # when it is scrolled before all is laid out
    bar.setValue(bar.maximum() // 2)
    held = pane.anchor()
    box, length = pane.page.boxes[held.turn], bar.maximum()
    assert not all(laid_out(pane))
    qtbot.waitUntil(lambda: all(laid_out(pane)))
    # then the page has another length, and the same token is at the same place
    assert bar.maximum() != length
    assert box.top + box.body.top_of(held.token) - bar.value() == held.offset


def test_another_session_ends_the_slices_of_the_first(qtbot: QtBot, transcript: View) -> None:
    pane = transcript.tokens
    transcript.set_session(many(1))
    left = list(pane.page.boxes)
    made = sum(box.made is not None for box in left)
    # when another one is opened before the first is laid out
    transcript.set_session(many(2, first=500))
    qtbot.waitUntil(lambda: all(laid_out(pane)))
    # then no more turns of the first are laid out, and all turns are of the other
    assert sum(box.made is not None for box in left) == made < TURNS
    assert [box.turn.node_id for box in pane.page.boxes] == list(range(500, 500 + TURNS))
    assert pane.is_at_end


def found(view: View) -> object:
    told: list[tuple[object, int]] = []
    view.found_changed.connect(lambda place, total: told.append((place, total)))
    view.look_for("turn3 word0")
    view.find_next(1)
    return told, view.tokens.selected_text


def copied(view: View) -> object:
    view.tokens.select_all()
    return view.tokens.selected_text


def copied_typeset(view: View) -> object:
    view.set_mode(Mode.READ)
    view.read.select_all()
    return view.read.selected_text


def pinned(view: View) -> object:
    view.set_pinned(HUGE, 800)
    return view.pinned, view.record(HUGE, 800) is not None


def walked(view: View) -> object:
    view.tokens.next_uncertain()
    return view.pinned


def coloured(view: View) -> object:
    view.colours.colour_by(Measure.RANK)
    return [bytes(box.turn.tokens.marks) for box in view.tokens.page.boxes]


def pointed(view: View) -> object:
    return [view.strip.token_at(view.strip.width() * share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]


def changed(view: View) -> object:
    again = run_of([" other", " words"], [2.0, 3.0], Origin.SAMPLED, 7000)
    view.update_turn(turn(2, "assistant", again))
    view.append_tokens(TURNS, again)
    return [box.turn.text for box in view.tokens.page.boxes]


def read_and_back(view: View) -> object:
    view.set_mode(Mode.READ)
    view.set_mode(Mode.TOKENS)
    return view.tokens.is_at_end, len(view.tokens.page.boxes)


ASKED: dict[str, Asked] = {
    "find": found,
    "copy all": copied,
    "copy all typeset": copied_typeset,
    "pin": pinned,
    "next uncertain": walked,
    "colours": coloured,
    "strip": pointed,
    "a turn changes": changed,
    "Read and back": read_and_back,
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ASKED)
def test_requests_before_the_layout_is_complete_have_the_same_result_as_after_it(qtbot: QtBot, show: Show, name: str) -> None:
    early, late = (show(session(session_id=9)) for _ in range(2))
    late.set_session(many(1))
    settle(qtbot, late)
    early.set_session(many(1))
    assert not all(laid_out(early.tokens))
    answer = ASKED[name](early)
    assert answer == ASKED[name](late)
    # and both look the same in the end
    for view in (early, late):
        settle(qtbot, view)
    if early.pinned is not None:  # it is scrolled only as far as necessary, by the heights known so far
        box = early.tokens.token_box(*early.pinned)
        assert box is not None
        assert early.tokens.viewport().rect().contains(box)
    else:
        assert early.tokens.viewport().grab().toImage() == late.tokens.viewport().grab().toImage()


def test_the_strip_keeps_its_line_until_the_next_session_is_read(qtbot: QtBot, show: Show) -> None:
    transcript = show(many(1))
    qtbot.waitUntil(lambda: transcript.strip.is_read)
    before = transcript.strip.grab().toImage()
    steep = [turn(n, "assistant", run_of([" a", " b", " c"], [9.0, 1.0, 1.0], Origin.SAMPLED)) for n in range(300, 320)]
    transcript.set_session(session(*steep, session_id=2))
    assert not transcript.strip.is_read
    assert transcript.strip.grab().toImage() == before
    qtbot.waitUntil(lambda: transcript.strip.is_read)
    assert transcript.strip.grab().toImage() != before


def test_a_hidden_transcript_lays_out_nothing_until_it_is_shown_again(qtbot: QtBot, transcript: View) -> None:
    pane = transcript.tokens
    transcript.set_session(many(1))
    transcript.hide()
    made = sum(laid_out(pane))
    for _ in range(20):
        QApplication.processEvents()
    assert sum(laid_out(pane)) == made < TURNS
    transcript.show()
    qtbot.waitUntil(lambda: all(laid_out(pane)))
