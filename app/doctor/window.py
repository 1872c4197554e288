"""The window on this machine: the seconds until it is shown, and the gaps of its event loop while an answer streams."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from app.doctor.finding import Finding, held

START_BAR: Final = 3.0  # seconds, from the import of Qt
GAP_BAR: Final = 50.0  # ms; three frames at 60 Hz
TICK: Final = 5  # ms between two timer events
STREAM: Final = 5.0  # seconds of an answer that are measured
PATIENCE, LOOK = 60.0, 0.01  # seconds: of the longest wait, and between two checks
ADVICE: Final = "report it with this table"


def window(_: str) -> Iterator[Finding]:
    """Runs the window on the mock backend, offscreen if the machine has no screen."""
    screen = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if not screen:
        os.environ["QT_QPA_PLATFORM"] = "offscreen"
    begin = time.perf_counter()
    from PySide6.QtCore import Qt, QTimer
    from PySide6.QtWidgets import QApplication
    from qasync import QEventLoop

    from app.paths import DataFolder
    from app.window import run_window
    from app.workbench import AppWorkbench
    from storage import SessionStore
    from ui import EngineState, MainWindow, Scheme, apply_theme

    found: dict[str, float] = {}

    async def act(shown: MainWindow) -> None:
        controller = shown.controller
        ticks: list[float] = []
        timer = QTimer(shown)
        timer.setTimerType(Qt.TimerType.PreciseTimer)
        timer.timeout.connect(lambda: ticks.append(time.perf_counter()))
        try:
            await _until(lambda: controller.engine is EngineState.READY)
            before = controller.shown
            controller.new_session()
            await _until(lambda: controller.shown is not None and controller.shown is not before)
            timer.start(TICK)
            controller.answers.send("Tell a long story.")
            await asyncio.sleep(STREAM)
            timer.stop()
            gaps = sorted((after - earlier) * 1e3 for earlier, after in pairwise(ticks))
            found["longest"], found["usual"] = gaps[-1], gaps[int(len(gaps) * 0.99)]
        finally:
            timer.stop()
            shown.close()

    acting: list[asyncio.Task[None]] = []

    def on_shown(shown: MainWindow, _: AppWorkbench) -> None:
        found["start"] = time.perf_counter() - begin
        acting.append(asyncio.create_task(act(shown)))

    application = QApplication(["elsewise"])
    application.setQuitOnLastWindowClosed(False)
    apply_theme(application, Scheme.LIGHT)
    with tempfile.TemporaryDirectory(prefix="elsewise-doctor-") as room:
        data = DataFolder(Path(room) / "data")
        data.make()
        with asyncio.Runner(loop_factory=lambda: QEventLoop(application)) as runner:
            runner.run(run_window(data, SessionStore.open(data.sessions), "mock", "mock", on_shown=on_shown))
            runner.run(asyncio.wait_for(acting[0], PATIENCE))
    where = "" if screen else " (no screen)"
    yield held(
        "start of the window", found["start"], START_BAR, f"{found['start']:.2f} s{where}", f"<= {START_BAR:g} s", ADVICE
    )
    shown_gap = f"{found['usual']:.0f} ms for 99 of 100, the longest {found['longest']:.0f} ms{where}"
    yield held("gaps while an answer streams", found["usual"], GAP_BAR, shown_gap, f"<= {GAP_BAR:g} ms", ADVICE)


async def _until(condition: Callable[[], object]) -> None:
    """Lets the window run until the condition holds.

    Raises:
        TimeoutError: It does not hold within `PATIENCE`.
    """
    for _ in range(int(PATIENCE / LOOK)):
        if condition():
            return
        await asyncio.sleep(LOOK)
    raise TimeoutError(f"the window did not get there within {PATIENCE:.0f} s")
