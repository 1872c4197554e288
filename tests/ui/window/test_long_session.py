"""A long session is shown from its end; earlier turns are loaded on scrolling up, and the visible text does not jump."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.ui.conftest import Scene, until
from tests.ui.fakes import TRIP, FakeWorkbench
from ui import MainWindow

Play = Callable[[Scene], None]


def test_earlier_turns_are_loaded_once_on_scrolling_up(in_window: Play, bench: FakeWorkbench) -> None:
    many = [bench.turn("user" if n % 2 == 0 else "assistant", [f"turn {n} "] * 30) for n in range(120)]
    bench.views[TRIP] = replace(bench.views[TRIP], turns=tuple(many[60:]), earlier=60)
    bench.before[TRIP] = tuple(many[:60])

    async def scene(window: MainWindow) -> None:
        transcript = window.parts.transcript
        await until(lambda: len(transcript.tokens.page.boxes) == 60)
        await until(lambda: transcript.tokens.is_at_end and transcript.tokens.verticalScrollBar().maximum() > 3000)
        assert bench.asked("show_earlier") == []  # the end is far from the beginning
        bar = transcript.tokens.verticalScrollBar()
        bar.setValue(300)
        bar.setValue(290)  # requested once, however often the wheel turns
        await until(lambda: len(transcript.tokens.page.boxes) == 120)
        assert bench.asked("show_earlier") == [(TRIP,)]
        held = transcript.tokens.anchor()
        first = transcript.tokens.page.boxes[held.turn].turn.view.node_id
        assert first in {turn.node_id for turn in many[60:66]}  # the visible text is still in sight
        bar.setValue(0)
        await until(lambda: transcript.tokens.anchor().turn == 0)
        assert bench.asked("show_earlier") == [(TRIP,)]

    in_window(scene)


@pytest.mark.parametrize(("words", "shown"), [("needle", "3 of 3"), ("zebra", "1 of 1")])
def test_words_in_turns_that_are_not_loaded_yet_are_found_and_stepped_to(
    in_window: Play, bench: FakeWorkbench, words: str, shown: str
) -> None:
    texts = ["a zebra", "Needle and needle", "no", "no", "no", "no", "a needle", "no"]
    turns = [bench.turn("user" if n % 2 == 0 else "assistant", [text]) for n, text in enumerate(texts)]
    bench.views[TRIP] = replace(bench.views[TRIP], turns=tuple(turns[4:]), earlier=4)
    bench.before[TRIP] = tuple(turns[:4])

    async def scene(window: MainWindow) -> None:
        bar, tokens = window.parts.finder, window.parts.transcript.tokens
        await until(lambda: len(tokens.page.boxes) == 4)
        window.acts.find.trigger()
        QTest.keyClicks(bar.field, words)
        await until(lambda: bar.count.text() == shown)
        if words == "needle":  # the last match is in sight; the next one is the first of the session
            assert tokens.selected_text == "needle"
            assert len(tokens.page.boxes) == 4
            QTest.keyClick(bar.field, Qt.Key.Key_Return)
        await until(lambda: len(tokens.page.boxes) == 8 and tokens.selected_text.lower() == words)
        assert bar.count.text() == f"1 of {shown[-1]}"
        if words == "needle":
            QTest.keyClick(bar.field, Qt.Key.Key_Return)
            assert (bar.count.text(), tokens.selected_text) == ("2 of 3", "needle")
        assert bench.asked("earlier_texts") == [(TRIP,)]

    in_window(scene)
