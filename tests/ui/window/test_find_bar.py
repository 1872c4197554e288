"""The find bar: opened by its key, stepped through by Return, closed by Esc."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace
from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractScrollArea

from runtime import Origin, TokenRun
from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from ui import Hit, MainWindow
from ui.transcript import Mode

Play = Callable[[Scene], None]
Key = Qt.Key
BOAT = 4
TEXT = "A needle in a haystack, a needle and one more Needle."


def seen(pane: QAbstractScrollArea, top: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """The pixels of the first line of a turn that begins at `top`, ``(height, width, 4) uint8``."""
    image = (
        pane.viewport().grab(QRect(0, top, pane.viewport().width(), 28)).toImage().convertToFormat(QImage.Format.Format_RGB32)
    )
    return np.frombuffer(image.constBits(), np.uint8).reshape(image.height(), image.bytesPerLine() // 4, 4).copy()


@pytest.mark.slow
@pytest.mark.parametrize("mode", [Mode.TOKENS, Mode.READ])
def test_all_places_are_marked_in_either_mode_and_in_text_without_numbers(
    in_window: Play, bench: FakeWorkbench, mode: Mode
) -> None:
    """Given a session that no model has scored."""
    turns = [bench.turn("user", [TEXT]), bench.turn("assistant", [TEXT])]
    plain = [replace(turn, run=TokenRun.unscored([0], [TEXT.encode()], [TEXT], Origin.TYPED)) for turn in turns]
    bench.add(bench.summaries[TRIP], plain, branches=())

    async def scene(window: MainWindow) -> None:
        bar, view = window.parts.finder, window.parts.transcript
        window.presenter.set_mode(mode)
        pane = view.tokens if mode is Mode.TOKENS else view.read
        await until(lambda: bool(pane.page.boxes) and all(box.body.done for box in pane.page.boxes))
        window.acts.find.trigger()
        await frames()
        QTest.keyClicks(bar.field, "needl?")
        await frames()
        assert bar.count.text() == "not found"
        tops = [box.top - pane.verticalScrollBar().value() for box in pane.page.boxes]
        before = [seen(pane, top) for top in tops]
        QTest.keyClick(bar.field, Key.Key_Backspace)
        QTest.keyClicks(bar.field, "e")
        await frames()
        # the first of six is selected, and three places are marked in each of two lines
        assert bar.count.text() == "1 of 6"
        assert pane.selected_text == "needle"
        for top, plain in zip(tops, before, strict=True):
            columns = np.flatnonzero((seen(pane, top) != plain).any(axis=(0, 2)))
            assert 1 + int((np.diff(columns) > 12).sum()) == 3
        QTest.keyClick(bar.field, Key.Key_Backspace)
        QTest.keyClicks(bar.field, "?")
        await frames()
        assert all((seen(pane, top) == plain).all() for top, plain in zip(tops, before, strict=True))

    in_window(scene)


def test_a_search_shows_the_words_that_it_found_and_opens_the_session_at_them(in_window: Play, bench: FakeWorkbench) -> None:
    lines = [bench.turn("user", ["Go", " on"]), bench.turn("assistant", ["word "] * 1500), bench.turn("user", [TEXT])]
    bench.add(bench.summaries[BOAT], [*lines, bench.turn("assistant", ["word "] * 1500)], branches=())
    hit = Hit(lines[2].node_id, "in a haystack, a ", "needle", " and one more Needle.")
    bench.summaries[BOAT] = replace(bench.summaries[BOAT], hit=hit)

    async def scene(window: MainWindow) -> None:
        panel, view, bar = window.parts.sidebar.sessions, window.parts.transcript, window.parts.finder
        await until(lambda: panel.rows.rowCount() > 0)
        place = panel.rows.index_of(BOAT)
        found = panel.rows.index(place.row() + 1)
        assert found.data() == "in a haystack, a needle and one more Needle."
        assert str(found.data(int(Qt.ItemDataRole.AccessibleTextRole))).startswith("found: in a haystack")
        assert not panel.view.grab().isNull()
        # a click on the words opens the session there, with every place marked
        QTest.mouseClick(panel.view.viewport(), Qt.MouseButton.LeftButton, pos=panel.view.visualRect(found).center())
        await until(lambda: window.controller.is_shown(BOAT) and bar.isVisible())
        assert bar.field.text() == "needle"
        assert bar.count.text() == "1 of 3"
        await until(lambda: view.tokens.selected_text == "needle")
        await until(lambda: all(box.body.done for box in view.tokens.page.boxes))
        box = view.tokens.page.boxes[2]
        assert 0 <= box.top - view.tokens.verticalScrollBar().value() < view.tokens.viewport().height()

    in_window(scene)


def test_a_button_scrolls_to_the_end(in_window: Play, bench: FakeWorkbench) -> None:
    bench.add(
        bench.summaries[TRIP], [bench.turn("user", ["word "] * 400), bench.turn("assistant", ["word "] * 1500)], branches=()
    )

    async def scene(window: MainWindow) -> None:
        view = window.parts.transcript
        await until(lambda: bool(view.tokens.page.boxes) and all(box.body.done for box in view.tokens.page.boxes))
        assert view.tokens.is_at_end
        assert not view.latest.isVisible()
        view.tokens.setFocus()
        QTest.keyClick(view.tokens, Key.Key_Home)
        await until(view.latest.isVisible)
        QTest.mouseClick(view.latest, Qt.MouseButton.LeftButton)
        assert view.tokens.is_at_end
        await until(lambda: not view.latest.isVisible())
        # the same in Read
        window.presenter.set_mode(Mode.READ)
        await until(lambda: all(box.body.done for box in view.read.page.boxes))
        QTest.keyClick(view.read, Key.Key_Home)
        await until(view.latest.isVisible)
        QTest.mouseClick(view.latest, Qt.MouseButton.LeftButton)
        await until(lambda: view.read.is_at_end and not view.latest.isVisible())

    in_window(scene)


@pytest.mark.slow
def test_words_are_found_by_keys_alone(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        bar, tokens = window.parts.finder, window.parts.transcript.tokens
        await until(lambda: bool(tokens.page.boxes) and all(box.body.done for box in tokens.page.boxes))
        # when it is opened and something is typed
        window.acts.find.trigger()
        assert bar.isVisible()
        assert bar.field.hasFocus()
        QTest.keyClicks(bar.field, "E")
        total = int(bar.count.text().split(" of ")[1])
        assert total > 2
        assert tokens.selected_text in ("e", "E")
        first = bar.count.text()
        # then Return steps forward, Shift+Return back
        QTest.keyClick(bar.field, Key.Key_Return)
        assert bar.count.text() != first
        QTest.keyClick(bar.field, Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
        assert bar.count.text() == first
        # when nothing matches
        QTest.keyClicks(bar.field, "qqzq")
        assert bar.count.text() == "not found"
        assert not bar.next.isEnabled()
        # when it is closed, nothing is marked and the conversation has the keyboard focus
        QTest.keyClick(bar.field, Key.Key_Escape)
        assert bar.isHidden()
        assert tokens.selected_text == ""
        assert tokens.hasFocus()
        # the key for the next match opens it again, with the same words
        window.acts.find_next.trigger()
        assert bar.isVisible()
        assert bar.field.text() == "Eqqzq"

    in_window(scene)
