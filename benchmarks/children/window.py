"""Opens the whole window without a screen, in its own process, and prints the gaps of its event loop as one JSON line.

`python -m benchmarks.children.window MODEL BACKEND TURNS PROMPT SECONDS LAPS`: real store, real engine, real window. A 5 ms
timer ticks while the window is idle, while a session of TURNS turns opens, while that session is exported as JSON, while a
prompt of PROMPT tokens prefills, and while answers stream. Two waits are measured as well: when the keys of a token's card
branch an answer (by an alternative or typed words), from the last key until the first new token is painted; and from a click
on a token until its card is painted.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

os.environ["QT_QPA_PLATFORM"] = "offscreen"  # before PySide6 is imported

import numpy as np
import tokenizers
from PySide6.QtCore import QEvent, QObject, Qt, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget
from qasync import QEventLoop

from app.paths import DataFolder
from app.window import run_window
from app.workbench import AppWorkbench
from app.workbench.transfer.exports import FORMATS
from benchmarks.parts.shelf import WORDS, save_long
from runtime import Origin
from storage import SessionStore
from ui import EngineState, MainWindow, Scheme, TurnStatus, TurnView, apply_theme

TICK_MS = 5
AFTERWARDS_SECONDS = 0.3  # measured after a session is shown, for the work that follows
PATIENCE_SECONDS = 240.0
POLL_SECONDS = 0.002
KEY_SECONDS = 0.08  # between two keys in fast typing
SENTENCE = "What happened next?"
LEFT_AT = 16  # index of the token at which the answer branches, counted with the header's
SEED = 7  # its answer is longer than that


class Ticks(QObject):
    """Milliseconds between the ticks of a 5 ms timer, by scene."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[float]] = {}
        self._now: list[float] | None = None
        self._before = 0.0
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._tick)

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Records the ticks under `name` until the block ends, with the unfinished gap at its end."""
        self._now = self.found.setdefault(name, [])
        self._before = time.perf_counter()
        self._timer.start(TICK_MS)
        try:
            yield
        finally:
            self._timer.stop()
            self._tick()
            self._now = None

    def _tick(self) -> None:
        now = time.perf_counter()
        if self._now is not None:
            self._now.append((now - self._before) * 1000)
        self._before = now


class Painted(QObject):
    """Counts the paint events of a widget while `counts` is true."""

    def __init__(self, widget: QWidget, counts: Callable[[], bool] = lambda: True) -> None:
        super().__init__(widget)
        self.times = 0
        self._counts = counts
        widget.installEventFilter(self)

    def since(self, times: int) -> bool:
        """Whether the widget was painted since its count was `times`."""
        return self.times > times

    def eventFilter(self, _watched: QObject, event: QEvent) -> bool:  # noqa: N802  # Qt's name
        self.times += event.type() == QEvent.Type.Paint and self._counts()
        return False


class Scenes:
    """Scenes of a person's work in the window, one after the other."""

    def __init__(self, window: MainWindow, workbench: AppWorkbench, folder: Path, room: Path) -> None:
        self._window = window
        self._workbench = workbench
        self._folder = folder
        self._room = room
        self.ticks = Ticks()
        self.waits: dict[str, list[float]] = {"alternative": [], "typed": [], "card": []}  # milliseconds to the paint

    async def play(self, prompt: int, seconds: float, laps: int) -> None:
        """Plays all scenes.

        Args:
            prompt: Tokens of the prefilled prompt.
            seconds: Duration of the scenes idle and stream.
            laps: Laps each of opening, prefilling and branching.
        """
        controller = self._window.controller
        rows = {row.is_sample: row.session_id for row in await self._workbench.sessions.list()}
        sample, long = rows[True], rows[False]
        await until(lambda: controller.engine is EngineState.READY)
        with self.ticks.during("idle"):
            await asyncio.sleep(seconds)
        for _ in range(laps):
            controller.open(sample)
            await until(lambda: controller.is_shown(sample))
            await asyncio.sleep(AFTERWARDS_SECONDS)
            with self.ticks.during("open"):
                controller.open(long)
                await until(lambda: controller.is_shown(long))
                await asyncio.sleep(AFTERWARDS_SECONDS)
        with self.ticks.during("export"):
            await self._export(long)
        for lap in range(laps):
            await self._prefill(lap, prompt)
        for _ in range(laps):
            await self._branches()
        await self._cards()
        with self.ticks.during("stream"):
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                await self._answer(end)

    async def _export(self, session_id: int) -> None:
        path, bar = self._room / "long.json", self._window.parts.status.transfer
        self._window.transfers.export(session_id, FORMATS["json"].format, path)
        await until(lambda: path.exists() and bar.isHidden())

    async def _prefill(self, lap: int, tokens: int) -> None:
        """Sends a message that is not cached, and waits for the first token of its answer."""
        await self._new_session()
        text = said(self._folder, tokens, lap)
        with self.ticks.during("prefill"):
            self._window.controller.answers.send(text)
            await until(lambda: generated(self._last()) > 0)
        await self._stop()

    async def _branches(self) -> None:
        """Branches an answer at one token by the keys of its card: by each alternative and as many typed words, in turns."""
        await self._new_session()
        shown = self._window.controller.shown
        assert shown is not None  # the new session
        await self._workbench.setup.set_option(shown.session_id, "seed", SEED)
        self._window.controller.answers.send(SENTENCE)
        await until(lambda: generated(self._last()) > LEFT_AT)
        await self._stop()
        left = self._last()
        assert left is not None  # there is an answer
        record = left.run.record(LEFT_AT)
        numbers = [key for key, token in zip("123456789", record.top_ids, strict=False) if token != record.token_id]
        for number, word in zip(numbers, WORDS, strict=False):
            await self._first_token("alternative", left, number)
            await self._first_token("typed", left, f"{word}\r")

    async def _first_token(self, name: str, left: TurnView, keys: str) -> None:
        """Measures from the last of `keys`, pressed in a token's card, to the first new token; then selects `left` again."""
        parts, tokens = self._window.parts, self._window.parts.transcript.tokens
        painted = Painted(tokens.viewport(), lambda: self._is_other(left))
        while not parts.pinned.isVisible():  # a late layout closes the card
            box = tokens.token_box(left.node_id, LEFT_AT)
            assert box is not None  # the token is not in the header
            QTest.mouseClick(tokens.viewport(), Qt.MouseButton.LeftButton, pos=box.center())
            await asyncio.sleep(KEY_SECONDS)
        for key in keys:
            await asyncio.sleep(KEY_SECONDS)
            start = time.perf_counter()
            QTest.keyClicks(parts.pinned.field, key)
        await until(lambda: painted.times)
        self.waits[name].append((time.perf_counter() - start) * 1000)
        painted.deleteLater()
        await self._stop()
        self._window.controller.tree.select(left.node_id)
        await until(lambda: (last := self._last()) is not None and last.node_id == left.node_id)
        await asyncio.sleep(AFTERWARDS_SECONDS)

    async def _cards(self) -> None:
        """Clicks the tokens of the answer, one after the other; each click closes the card of the one before."""
        parts, last = self._window.parts, self._last()
        assert last is not None  # there is an answer
        tokens, painted = parts.transcript.tokens, Painted(parts.pinned)
        for index in range(len(last.run)):
            await asyncio.sleep(AFTERWARDS_SECONDS)  # lets the work of the click before end
            box = tokens.token_box(last.node_id, index)
            if box is None:  # a token of the header
                continue
            before, start = painted.times, time.perf_counter()
            QTest.mouseClick(tokens.viewport(), Qt.MouseButton.LeftButton, pos=box.center())
            await until(partial(painted.since, before))
            self.waits["card"].append((time.perf_counter() - start) * 1000)

    def _is_other(self, left: TurnView) -> bool:
        """Whether the shown answer is another one than `left` and has a sampled token after the branch."""
        last = self._last()
        other = last is not None and last.node_id != left.node_id
        return other and last is not None and len(last.run) > LEFT_AT + 1 and bool(last.run.origin[-1] == Origin.SAMPLED)

    async def _answer(self, end: float) -> None:
        """Streams one answer in a new session, to its end or until the time `end`."""
        await self._new_session()
        self._window.controller.answers.send(SENTENCE)
        await until(lambda: generated(self._last()) > 0)
        await until(lambda: time.perf_counter() > end or not self._streams())
        await self._stop()

    async def _new_session(self) -> None:
        controller = self._window.controller
        before = controller.shown
        controller.new_session()
        await until(lambda: controller.shown is not None and controller.shown is not before)

    async def _stop(self) -> None:
        self._window.controller.answers.stop()
        await until(lambda: not self._streams())

    def _streams(self) -> bool:
        last = self._last()
        return last is not None and last.status is TurnStatus.STREAMING

    def _last(self) -> TurnView | None:
        shown = self._window.controller.shown
        return shown.view.turns[-1] if shown is not None and shown.view.turns else None


def main() -> None:
    """Measures, and prints the findings."""
    folder, backend = Path(sys.argv[1]), sys.argv[2]
    turns, prompt, seconds, laps = int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]), int(sys.argv[6])
    application = QApplication(["elsewise"])
    application.setQuitOnLastWindowClosed(False)
    apply_theme(application, Scheme.LIGHT)
    with tempfile.TemporaryDirectory(prefix="elsewise-window-") as room:
        data = DataFolder(Path(room) / "data")
        data.make()
        asyncio.run(save_long(data.sessions, turns))
        with asyncio.Runner(loop_factory=lambda: QEventLoop(application)) as runner:
            found = runner.run(played(data, folder, backend, prompt=prompt, seconds=seconds, laps=laps))
    print(json.dumps(found))


async def played(
    data: DataFolder, folder: Path, backend: str, *, prompt: int, seconds: float, laps: int
) -> dict[str, list[float]]:
    """Runs the app, plays the scenes in its window and closes it; returns the ticks and waits by name.

    Raises:
        TimeoutError: The window did not do what a scene asked for.
    """
    acting: list[asyncio.Task[dict[str, list[float]]]] = []

    async def act(window: MainWindow, workbench: AppWorkbench) -> dict[str, list[float]]:
        scenes = Scenes(window, workbench, folder, data.root)
        try:
            await scenes.play(prompt, seconds, laps)
        finally:
            window.close()
        return scenes.ticks.found | scenes.waits

    def on_shown(window: MainWindow, workbench: AppWorkbench) -> None:
        acting.append(asyncio.create_task(act(window, workbench)))

    await run_window(data, SessionStore.open(data.sessions), str(folder), backend, on_shown=on_shown)
    return await acting[0]


def said(folder: Path, tokens: int, lap: int) -> str:
    """A text of about `tokens` tokens that differs from the first token on in each lap."""
    drawn = np.random.default_rng(lap).choice(WORDS, size=tokens)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(f"{lap} {' '.join(drawn)}", add_special_tokens=False).ids
    return str(tokenizer.decode(ids[:tokens]))


def generated(turn: TurnView | None) -> int:
    """Number of tokens if the turn is an answer, else 0."""
    return len(turn.run) if turn is not None and turn.role == "assistant" else 0


async def until(condition: Callable[[], object]) -> None:
    """Lets the app run until the condition is true.

    Raises:
        TimeoutError: The condition was still false after `PATIENCE_SECONDS`.
    """
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError("what was asked of the window did not come")
        await asyncio.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main()
