"""The window under test in crashes: chats with mouse and keys, and prints the turns that it shows as saved.

Each line on stdout is one JSON object: ["shown", session, turns], and for the session that the window starts with "opened" in
place of "shown". A turn is [node, role, its bytes as Latin-1, ended]. The window chats until it is killed, or, if messages
were counted, closes after them. Arguments: the data folder, the number of messages (0: no end), "new" for a session of its own
or "old".
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import qasync
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from app.paths import DataFolder
from app.window import run_window
from app.workbench import AppWorkbench
from storage import SessionStore
from tests.app.workbench.scene import own_tokens
from tests.end_to_end.driving import at_rest, click, generated, last, until, whole
from tests.end_to_end.driving import say as type_message
from tests.reliability.talker import say
from ui import MainWindow, Scheme, TurnStatus, TurnView, apply_theme

TOKENS = 48  # of an answer
UNPRINTABLE = [
    i for i in range(256 + 3) if not 32 < i < 127
]  # bytes and the model's specials: each token is a letter to click on
STOPPED_AT = 6  # tokens of every third one
UNDER_WAY = (TurnStatus.WAITING, TurnStatus.STREAMING)


def turns(window: MainWindow) -> Sequence[TurnView]:
    """The turns that the window shows."""
    assert window.controller.shown is not None
    return window.controller.shown.view.turns


def own_bytes(turn: TurnView) -> bytes:
    """The bytes of a turn, without the template's own."""
    return b"".join(turn.run.token_bytes[i] for i in own_tokens(turn))


def tell(window: MainWindow, what: str = "shown") -> None:
    """Prints the turns that the window shows."""
    assert window.controller.shown is not None
    told = [
        (turn.node_id, turn.role, own_bytes(turn).decode("latin-1"), turn.status not in UNDER_WAY) for turn in turns(window)
    ]
    say(what, window.controller.shown.session_id, told)


async def send(window: MainWindow, number: int) -> None:
    """Types a message, and waits for the answer; every third one is stopped in its middle."""
    before = {turn.node_id for turn in turns(window)}
    type_message(window, f"message {number} of this and that")
    await until(lambda: bool(turns(window)) and last(window).role == "assistant" and last(window).node_id not in before)
    tell(window)
    await until(lambda: last(window).status not in UNDER_WAY or len(generated(last(window))) >= STOPPED_AT)
    tell(window)
    if number % 3 == 2:
        QTest.keyClick(window, Qt.Key.Key_Period, Qt.KeyboardModifier.ControlModifier)
    await ended(window)


async def ended(window: MainWindow) -> None:
    """Waits until the answer has ended."""
    await until(lambda: last(window).status not in UNDER_WAY)
    await at_rest(window)
    tell(window)


async def branch(window: MainWindow) -> None:
    """Chooses another token inside the last answer, with a click and a number."""
    turn = last(window)
    index = whole(turn, generated(turn)[0])
    await click(window, turn.node_id, index)
    record = turn.run.record(index)
    place = next(k for k, token in enumerate(record.top_ids) if token != record.token_id)
    await until(lambda: len(window.parts.inspector.token.alternatives.buttons) > place)
    QTest.keyClick(window.parts.transcript.tokens, Qt.Key(Qt.Key.Key_1 + place))
    await until(lambda: last(window).node_id != turn.node_id)
    tell(window)
    await ended(window)


async def talk(window: MainWindow, workbench: AppWorkbench, messages: int, new: bool) -> None:
    await until(lambda: window.controller.shown is not None)
    tell(window, "opened")
    assert window.controller.shown is not None
    if new:
        before = window.controller.shown.session_id
        window.acts.new_session.trigger()
        await until(lambda: window.controller.shown is not None and window.controller.shown.session_id != before)
    for name, value in (("max_tokens", TOKENS), ("banned_tokens", UNPRINTABLE)):
        await workbench.setup.set_option(window.controller.shown.session_id, name, value)
    for number in range(messages) if messages else count():
        await send(window, number)
        if number % 3 != 2:
            await branch(window)
    window.close()


async def play(data: DataFolder, messages: int, new: bool) -> None:
    tasks: list[asyncio.Task[None]] = []

    def on_shown(window: MainWindow, workbench: AppWorkbench) -> None:
        tasks.append(asyncio.create_task(talk(window, workbench, messages, new)))
        tasks[0].add_done_callback(lambda _: window.close())

    await run_window(data, SessionStore.open(data.sessions), "x", "fake", on_shown=on_shown)
    await tasks[0]


if __name__ == "__main__":
    application = QApplication(["elsewise"])
    application.setQuitOnLastWindowClosed(False)
    apply_theme(application, Scheme.LIGHT)
    folder = DataFolder(Path(sys.argv[1]))
    folder.make()
    with asyncio.Runner(loop_factory=lambda: qasync.QEventLoop(application)) as runner:
        runner.run(play(folder, int(sys.argv[2]), sys.argv[3] == "new"))
