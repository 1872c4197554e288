"""Counts the functions of `app` and `ui` on the way of a message, from the key that sends it to the paint of its first token.

`python -m tests.tools.count_message [--list]`, main thread only. A function is on the way if it is on the stack when a
task is started, the store or the model is called, the event with the token is sent, and the token is laid out and painted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
OURS = (f"{ROOT}/app/", f"{ROOT}/ui/")
FACADES = (f"{ROOT}/runtime/", f"{ROOT}/storage/")
STEPS = {"add_node", "append_chunk", "render_chat_async", "score_run", "generate_runs"}  # of the store and the model
ASIDE = {"compose", "_compose", "act", "_flush_now_and_then", "ask"}  # the cost of a draft, the list of sessions, this program
PAINTS = {"draw"}  # `QTextLayout.draw`: the glyphs of a line


class Way:
    """The functions on the stack at each step."""

    def __init__(self) -> None:
        self.on_way: set[CodeType] = set()
        self.run: set[CodeType] = set()
        self.steps: list[str] = []
        self.recording = self.arrived = self.painted = False

    def profile(self, frame: FrameType, event: str, arg: Any) -> None:
        """The hook for `sys.setprofile`."""
        if not self.recording:
            return
        code = frame.f_code
        ours = code.co_filename.startswith(OURS)
        if event == "call":
            if ours:
                self.run.add(code)
            if not self.arrived and (code.co_name in STEPS and code.co_filename.startswith(FACADES)):
                self._take(frame, code.co_name)
            elif not self.arrived and code.co_name == "create_task" and "asyncio" in code.co_filename:
                self._take(frame, "task")
            elif ours and code.co_qualname == "EventQueue.push" and type(frame.f_locals["event"]).__name__ == "TokensArrived":
                self._take(frame, "event")
            elif ours and code.co_name == "append" and code.co_filename.endswith("core/shown.py"):
                self.arrived = True
                self._take(frame, "token in the view")
        elif event == "c_call" and self.arrived and ours:
            name = getattr(arg, "__name__", "")
            inside = "/transcript/" in code.co_filename
            if inside and name in PAINTS and code.co_name == "_paint_glyphs":
                self._take(frame, f"paint ({name})")
                self.painted = True
                self.recording = False
            elif inside and name in ("update", "start"):
                self._take(frame, name)

    def _take(self, frame: FrameType | None, step: str) -> None:
        stack = []
        while frame is not None:
            if frame.f_code.co_filename.startswith(OURS):
                stack.append(frame.f_code)
            frame = frame.f_back
        if any(code.co_name in ASIDE for code in stack):
            return
        self.on_way.update(stack)
        if step not in self.steps:
            self.steps.append(step)


def main() -> None:
    """Prints the two counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    os.environ["QT_QPA_PLATFORM"] = "offscreen"
    import qasync
    from PySide6.QtCore import Qt
    from PySide6.QtTest import QTest
    from PySide6.QtWidgets import QApplication

    from app.paths import DataFolder
    from app.window import run_window
    from storage import SessionStore
    from ui import Scheme, apply_theme

    calls = Way()
    application = QApplication([])
    application.setQuitOnLastWindowClosed(False)
    apply_theme(application, Scheme.LIGHT)

    async def play(folder: Path) -> None:
        data = DataFolder(folder)
        data.make()
        tasks: list[asyncio.Task[None]] = []

        async def act(window: Any, workbench: Any) -> None:
            try:
                controller = window.controller
                controller.new_session()
                await until(lambda: controller.shown is not None and not controller.shown.view.turns)
                for text in ("warm up", "hello"):
                    counts = text == "hello"
                    window.parts.composer.field.setPlainText(text)
                    await until(lambda: str(workbench.status.engine) in ("ready", "busy"))
                    await asyncio.sleep(0.5)
                    calls.recording = counts
                    sys.setprofile(calls.profile)
                    QTest.keyClick(window.parts.composer.field, Qt.Key.Key_Return)
                    await until(lambda counts=counts: calls.painted if counts else controller.running)
                    await until(lambda: not controller.running)
                    sys.setprofile(None)
            finally:
                sys.setprofile(None)
                window.close()

        def on_shown(window: Any, workbench: Any) -> None:
            tasks.append(asyncio.create_task(act(window, workbench)))

        await run_window(data, SessionStore.open(data.sessions), "x", "fake", on_shown=on_shown)
        await tasks[0]

    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=lambda: qasync.QEventLoop(application)) as runner,
    ):
        runner.run(play(Path(folder)))
    for what, codes in (("on the way", calls.on_way), ("run until then, side paths included", calls.run)):
        names = sorted((str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname) for code in codes)
        files = Counter(file for file, _ in names)
        sys.stdout.write(f"{what}: {len(names)} functions in {len(files)} files\n")
        if given.list and codes is calls.on_way:
            for file in files:
                sys.stdout.write(f"  {file}: {', '.join(name for each, name in names if each == file)}\n")
    sys.stdout.write(f"steps: {', '.join(calls.steps)}\n")


async def until(condition: Any) -> None:
    """Lets the loop run until it holds."""
    for _ in range(4000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


if __name__ == "__main__":
    main()
