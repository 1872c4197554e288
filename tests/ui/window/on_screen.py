"""Journeys on a real screen with a window manager: `test_on_screen.py` runs them there, where pointer and keys come from X."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QMimeData, QPoint, QUrl
from PySide6.QtGui import QClipboard, QGuiApplication
from PySide6.QtWidgets import QApplication, QWidget

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.transcript.conftest import centre
from tests.ui.window.test_conversation import finish
from ui import MainWindow

Play = Callable[[Scene], None]
SOURCE = """
import sys
from PySide6.QtCore import QMimeData, Qt, QUrl
from PySide6.QtGui import QDrag
from PySide6.QtWidgets import QApplication, QLabel

class Source(QLabel):
    def mousePressEvent(self, event):
        data, drag = QMimeData(), QDrag(self)
        data.setUrls([QUrl.fromLocalFile(sys.argv[1])])
        drag.setMimeData(data)
        drag.exec(Qt.DropAction.CopyAction)

app = QApplication([])
source = Source("drag me")
source.setWindowFlags(Qt.WindowType.FramelessWindowHint)
source.setGeometry(1450, 40, 100, 60)
source.show()
app.processEvents()
print("shown", flush=True)
app.exec()
"""


def begin(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


async def xdotool(*words: object) -> None:
    """Moves the pointer, presses buttons and keys, while the window keeps running."""
    tool = begin("xdotool", *map(str, words))
    await until(lambda: tool.poll() is not None)
    tool.communicate()
    assert tool.returncode == 0
    await frames()


async def click(widget: QWidget, at: QPoint | None = None, button: int = 1) -> None:
    place = widget.mapToGlobal(widget.rect().center() if at is None else at)
    await xdotool("mousemove", place.x(), place.y(), "click", button)


async def in_front(window: MainWindow) -> None:
    assert QGuiApplication.platformName() == "xcb"
    window.move(0, 0)
    window.activateWindow()
    boxes = window.parts.transcript.tokens.page.boxes
    await until(lambda: window.isActiveWindow() and bool(boxes) and all(box.body.done for box in boxes))
    await frames(10)  # the window manager moves it to its final position


def test_a_popover_and_the_card_open_by_a_click_and_give_the_keyboard_back(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        await in_front(window)
        parts, view = window.parts, window.parts.transcript
        await click(parts.composer.field)
        await until(parts.composer.field.hasFocus)
        await click(parts.top.model)
        await until(lambda: QApplication.activePopupWidget() is not None)
        await xdotool("key", "Escape")
        await until(lambda: QApplication.activePopupWidget() is None)
        await until(parts.composer.field.hasFocus)
        await click(parts.composer.setup_button)
        await until(lambda: window.popover.isVisible())
        await xdotool("key", "Escape")
        await until(lambda: not window.popover.isVisible())
        await until(parts.composer.field.hasFocus)
        await xdotool("type", "A draft")
        assert parts.composer.draft == "A draft"
        # a token, its card, and a key press in the card
        node = bench.views[TRIP].turns[1].node_id
        await click(view.tokens.viewport(), centre(view, node, 3))
        await until(parts.pinned.isVisible)
        await xdotool("key", "Escape")
        await until(parts.pinned.isHidden)
        await click(view.tokens.viewport(), centre(view, node, 3))
        await until(parts.pinned.isVisible)
        await xdotool("key", "2")
        await until(lambda: len(bench.asked("branch")) == 1 and not window.controller.running)

    in_window(scene)


def test_a_text_that_is_dragged_from_another_program_becomes_a_chip(
    in_window: Play, bench: FakeWorkbench, tmp_path: Path
) -> None:
    finish(bench)
    notes = tmp_path / "notes.md"
    notes.write_text("a note")

    async def scene(window: MainWindow) -> None:
        await in_front(window)
        source = begin(sys.executable, "-c", SOURCE, str(notes))
        try:
            assert source.stdout is not None
            assert source.stdout.readline() == "shown\n"
            to = window.parts.transcript.mapToGlobal(window.parts.transcript.rect().center())
            await xdotool("mousemove", 1500, 70, "sleep", 0.3, "mousedown", 1, "sleep", 0.3)
            for share in (0.9, 0.5, 0.1, 0.0):  # a drag is recognised by its moves
                await xdotool("mousemove", round(to.x() + share * (1500 - to.x())), round(to.y() + share * (70 - to.y())))
            await xdotool("mouseup", 1)
            await until(lambda: bench.asked("read_file") == [(str(notes),)])
            await until(lambda: [chip.file.name for chip in window.parts.composer.chips.chips] != [])
            assert window.parts.composer.draft == ""
            # the middle button does not paste a file that is selected elsewhere as text
            selected = QMimeData()
            selected.setUrls([QUrl.fromLocalFile(str(notes))])
            selected.setText(selected.urls()[0].toString())
            QGuiApplication.clipboard().setMimeData(selected, QClipboard.Mode.Selection)
            search, asked = window.parts.sidebar.sessions.search, 1
            for field in (search, window.parts.composer.field):
                await click(field, button=2)
                asked += 1
                await until(lambda: len(bench.asked("read_file")) == asked)  # noqa: B023  # it is called here
            assert (search.text(), window.parts.composer.draft) == ("", "")
        finally:
            source.kill()
            source.communicate()

    in_window(scene)
