"""Files that the open window opens for a second start of the app, as from a file manager."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from app.paths import DataFolder
from app.window import open_window
from app.workbench import AppWorkbench
from storage import DataFolderLock, read_focus
from tests.end_to_end.conftest import Scene
from tests.end_to_end.driving import until
from tests.runtime.loading.gguf_files import small_llama
from ui import MainWindow

OpenApp = Callable[[str, str, Scene], None]


@pytest.mark.slow
def test_the_open_window_imports_sessions_and_models(
    open_app: OpenApp, data: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "models"))
    lock = DataFolderLock(data.root, "window")
    assert lock.acquire()
    messages, gguf = tmp_path / "river.json", tmp_path / "small.gguf"
    messages.write_text(json.dumps([{"role": "user", "content": "Name a river."}]), "utf-8")
    small_llama().write(gguf)

    def texts(window: MainWindow) -> list[str]:
        shown = window.controller.shown
        return [] if shown is None else [turn.run.text for turn in shown.view.turns]

    async def scene(window: MainWindow, workbench: AppWorkbench) -> None:
        # when the app is started once more, with a session
        assert open_window(data, "x", "fake", files=[messages]) == 0
        # then the open window imports and shows it, once
        await until(lambda: any("Name a river." in text for text in texts(window)))
        assert [row.title for row in await workbench.services.store.sessions()].count("Name a river.") == 1
        # when with a model, then that is imported too (its weights are float32: no form has to be chosen)
        assert open_window(data, "x", "fake", files=[gguf]) == 0
        await until(lambda: (tmp_path / "models" / "small" / "elsewise.json").exists())
        assert window.settings.isVisible()

    open_app("x", "fake", scene)
    lock.release()


def test_files_requested_during_the_start_of_the_window_are_opened(data: DataFolder, open_app: OpenApp, tmp_path: Path) -> None:
    messages = tmp_path / "river.json"
    messages.write_text(json.dumps([{"role": "user", "content": "Name a river."}]), "utf-8")
    data.make()
    coming = time.time_ns() + 10**12  # later than the start
    data.focus.write_bytes(msgspec.json.encode({"stamp": coming, "files": [str(messages)]}))

    async def scene(window: MainWindow, _: AppWorkbench) -> None:
        await until(lambda: window.controller.shown is not None and window.controller.shown.view.title == "Name a river.")

    open_app("x", "fake", scene)


def test_invalid_requests_open_nothing(data: DataFolder) -> None:
    for content in (b"", b"17", b'{"stamp": 1, "files": 5}', b"\xff"):
        data.focus.write_bytes(content)
        assert read_focus(data.root) is None
