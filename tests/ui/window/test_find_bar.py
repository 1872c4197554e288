"""The find bar: opened by its key, stepped through by Return, closed by Esc."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.ui.conftest import Scene, until
from ui import MainWindow

Play = Callable[[Scene], None]
Key = Qt.Key


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
        # then Return goes on, Shift+Return comes back
        QTest.keyClick(bar.field, Key.Key_Return)
        assert bar.count.text() != first
        QTest.keyClick(bar.field, Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
        assert bar.count.text() == first
        # when nothing is like it
        QTest.keyClicks(bar.field, "qqzq")
        assert bar.count.text() == "not found"
        assert not bar.next.isEnabled()
        # when it is closed, nothing is marked and the conversation has the keyboard
        QTest.keyClick(bar.field, Key.Key_Escape)
        assert bar.isHidden()
        assert tokens.selected_text == ""
        assert tokens.hasFocus()
        # the key for the next place brings it back, with the same words
        window.acts.find_next.trigger()
        assert bar.isVisible()
        assert bar.field.text() == "Eqqzq"

    in_window(scene)
