from __future__ import annotations

from dataclasses import replace

import numpy as np
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from runtime import Origin
from tests.ui.transcript.conftest import Show
from tests.ui.transcript.samples import drawing, run_of, session, turn, written
from ui.transcript import Mode, TranscriptView


def click_at(qtbot: QtBot, transcript: TranscriptView, share: float) -> None:
    at = QPoint(int(transcript.strip.width() * share), 20)
    QTest.mouseClick(transcript.strip, Qt.MouseButton.LeftButton, pos=at)


def test_a_click_pins_the_token_under_it(qtbot: QtBot, show: Show) -> None:
    transcript = show(drawing())
    clicked: list[tuple[int, int]] = []
    transcript.token_clicked.connect(lambda *args: clicked.append(args))
    click_at(qtbot, transcript, 0.001)
    click_at(qtbot, transcript, 0.999)
    assert clicked == [(2, 0), (4, 7)]
    assert transcript.pinned == (4, 7)
    assert "how open each choice was" in transcript.strip.toolTip()  # the tooltip explains the line


def test_the_highest_point_of_many_tokens_can_be_clicked(qtbot: QtBot, show: Show) -> None:
    # given thousands of equal tokens and one outlier
    bits = [1.0] * 8000
    bits[4321] = 30.0
    transcript = show(
        session(turn(1, "user", written("Hi")), turn(2, "assistant", run_of([" w"] * 8000, bits, Origin.SAMPLED)))
    )
    # when its place is clicked
    clicked: list[tuple[int, int]] = []
    transcript.token_clicked.connect(lambda *args: clicked.append(args))
    click_at(qtbot, transcript, 4321.5 / 8000)
    # then the outlier is reported as clicked
    assert clicked == [(2, 4321)]


def test_there_is_no_strip_without_generated_tokens_or_in_read_mode(show: Show) -> None:
    transcript = show(session(turn(1, "user", run_of(["a", "b", "c"], [1.0] * 3, Origin.TYPED))))
    assert not transcript.strip.isVisible()
    transcript.set_session(drawing())
    assert transcript.strip.isVisible()
    transcript.set_mode(Mode.READ)
    assert not transcript.strip.isVisible()


def test_the_strip_follows_streams_and_new_numbers(show: Show) -> None:
    transcript = show(drawing())
    before = transcript.strip.token_at(transcript.strip.width() - 1)
    transcript.append_tokens(4, run_of([f" w{i}" for i in range(500)], [2.0] * 500, Origin.SAMPLED, 900))
    assert before == (4, 7)
    after = transcript.strip.token_at(transcript.strip.width() - 1)
    assert after is not None
    assert after[0] == 4
    assert after[1] > 500
    scored = run_of(["x", "y", "z"], [None, None, None], Origin.SAMPLED)
    transcript.set_session(session(turn(9, "assistant", scored)))
    unknown = transcript.strip.grab().toImage()
    again = run_of(["x", "y", "z"], [0.1, 9.0, 0.1], Origin.SAMPLED)
    transcript.update_turn(turn(9, "assistant", again))
    assert transcript.strip.token_at(transcript.strip.width() / 2) == (9, 1)
    assert transcript.strip.grab().toImage() != unknown


def test_no_strip_is_shown_without_entropies(show: Show) -> None:
    run = written("a few words", Origin.SAMPLED)
    for entropy, shown in ((run.entropy, True), (np.full(len(run), np.nan, np.float32), False)):
        transcript = show(session(turn(1, "user", written("Hi")), turn(2, "assistant", replace(run, entropy=entropy))))
        assert transcript.strip.isVisible() is shown
