"""Starting the window under obstacles: another window, an unusable folder, a full disk."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication, QMessageBox

from app.paths import DataFolder
from app.window import COMPLETE, open_window
from app.windows import KeptWindows
from app.workbench import AppWorkbench
from storage import DataFolderLock, SessionStore, StoreFullError
from tests.end_to_end.conftest import Scene
from tests.end_to_end.driving import until
from ui import MainWindow, RecoveryPage

SLACK_SECONDS = 60.0


def test_a_second_start_brings_the_first_window_to_the_front(data: DataFolder) -> None:
    # given: a window holds the folder
    lock = DataFolderLock(data.root, "window")
    assert lock.acquire()
    before = data.focus.stat().st_mtime_ns
    # when another is opened on it
    time.sleep(0.02)  # file systems round times
    code = open_window(data, "smollm2", "auto")
    # then it ends with status 0, and has touched the file that the first one watches
    assert code == 0
    assert data.focus.stat().st_mtime_ns > before
    lock.release()


def test_a_data_folder_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    code = open_window(DataFolder(in_the_way / "data"), "smollm2", "auto")
    assert code == 1
    message = capsys.readouterr().err
    assert str(in_the_way) in message
    assert "--data-dir" in message


def test_a_read_only_data_folder_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    # /proc refuses new files, to root too
    code = open_window(DataFolder(Path("/proc/elsewise")), "smollm2", "auto")
    assert code == 1
    assert "/proc/elsewise" in capsys.readouterr().err


def test_a_file_that_is_not_a_database_is_not_changed_and_shown_in_a_window(
    qapp: QApplication, data: DataFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    data.sessions.write_bytes(b"this is no database" * 100)
    before = data.sessions.read_bytes()
    seen: list[str] = []

    def close_the_page() -> None:
        pages = [widget for widget in qapp.topLevelWidgets() if isinstance(widget, RecoveryPage) and widget.isVisible()]
        for page in pages:
            seen.append(page.problem.text())
            page.close()

    timer = QTimer(interval=20)
    timer.timeout.connect(close_the_page)
    timer.start()
    # when the window is opened: a page shows the problem, and closing it ends the app
    assert open_window(data, "smollm2", "auto") == 1
    timer.stop()
    assert [str(data.sessions) in words for words in seen] == [True]
    said = capsys.readouterr().err
    assert str(data.sessions) in said
    assert f"elsewise --data-dir {data.root} sessions recover" in said
    assert data.sessions.read_bytes() == before


def test_an_installed_app_shows_why_its_sessions_cannot_be_opened_and_the_ways_out(
    qapp: QApplication, data: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: sessions of a later version, and an app without a terminal
    SessionStore.open(data.sessions).close_sync()
    with closing(sqlite3.connect(data.sessions)) as later, later:
        later.execute(
            "INSERT INTO _sqlite_migrations(migration_set, name, applied_at) VALUES ('elsewise.sessions', 'm999_future', '')"
        )
    before = data.sessions.read_bytes()
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    seen: list[str] = []

    def try_again_and_close() -> None:
        for page in [each for each in qapp.topLevelWidgets() if isinstance(each, RecoveryPage) and each.isVisible()]:
            seen.append(page.problem.text())
            assert page.fresh_button.isVisible()
            assert not page.recover_button.isVisible()  # nothing is damaged
            page.open_button.click() if len(seen) == 1 else page.close()

    timer = QTimer(interval=20)
    timer.timeout.connect(try_again_and_close)
    timer.start()
    # when, then: the page is shown again while nothing has changed
    assert open_window(data, "smollm2", "auto") == 1
    timer.stop()
    assert ["update the app or choose another data folder" in words for words in seen] == [True, True]
    assert data.sessions.read_bytes() == before


@pytest.mark.slow
def test_an_app_that_macos_runs_from_a_temporary_copy_names_the_right_folder(
    open_app: Callable[[str, str, Scene], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.window.is_temporary_copy", lambda: True)

    async def scene(window: MainWindow, _: AppWorkbench) -> None:
        await until(lambda: "drag it into Applications" in window.parts.composer.notice.words)

    open_app("x", "fake", scene)


@pytest.mark.slow
def test_a_window_whose_app_was_moved_shows_a_notice_when_a_part_is_missing(
    open_app: Callable[[str, str, Scene], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[object] = []
    monkeypatch.setattr(sys, "excepthook", lambda *what: heard.append(what[1]))

    async def scene(window: MainWindow, _: AppWorkbench) -> None:
        missing = ImportError("a part of the app")
        sys.excepthook(ImportError, missing, None)
        assert not window.parts.composer.notice.words
        with monkeypatch.context() as moved:
            moved.setattr(sys, "frozen", True, raising=False)
            moved.setattr(sys, "executable", str(tmp_path / "elsewise"))
            sys.excepthook(ImportError, missing, None)
        assert "Quit it, and open it from where it is now" in window.parts.composer.notice.words
        assert heard == [missing, missing]  # both errors are logged

    open_app("x", "fake", scene)


@pytest.mark.slow
def test_the_windows_process_needs_no_model_library() -> None:
    code = (
        "import sys, app.window\n"
        "heavy = {'torch', 'mlx', 'mlx_lm', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_sigterm_closes_the_window_and_ends_the_process(tmp_path: Path) -> None:
    # given: the window of a real process, on the sample
    environment = {**os.environ, "QT_QPA_PLATFORM": "offscreen"}
    command = [sys.executable, "-m", "app", "--data-dir", str(tmp_path / "data"), "--verbose", "--demo"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any(COMPLETE in line for line in process.stderr)
    # when it gets the signal
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=SLACK_SECONDS)
    # then it ends as if its button had been pressed
    assert process.returncode == 0, errors
    # and its files are readable by their owner alone
    data = tmp_path / "data"
    for path in (data, *data.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.slow
def test_a_full_disk_is_reported_and_leaves_no_incomplete_file(tmp_path: Path) -> None:
    # given: no file may grow beyond 4 KiB, as on a disk that is nearly full
    def nearly_full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    environment = {**os.environ, "QT_QPA_PLATFORM": "offscreen"}
    command = [sys.executable, "-B", "-m", "app", "--data-dir", str(tmp_path / "data"), "--demo"]
    # when the window is opened
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SLACK_SECONDS, check=False, preexec_fn=nearly_full
    )
    # then it names the folder, without a traceback, and ends
    assert done.returncode == 1
    assert str(tmp_path / "data") in done.stderr
    assert "Traceback" not in done.stderr
    # and with room again, the same folder works
    SessionStore.open(tmp_path / "data" / "sessions.db").close_sync()


def test_the_place_of_an_unsaved_answer_is_shown_after_the_last_window_is_closed(
    qapp: QApplication, open_app: Callable[[str, str, Scene], None], paced: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise StoreFullError("the disk is full")

    told: list[str] = []
    reading: list[asyncio.Task[None]] = []

    def boxes() -> list[QMessageBox]:
        return [each for each in qapp.topLevelWidgets() if isinstance(each, QMessageBox) and each.isVisible()]

    async def read() -> None:
        await until(boxes)
        [box] = boxes()
        told.extend([box.text(), box.detailedText()])
        box.close()

    async def scene(_: MainWindow, workbench: AppWorkbench) -> None:
        workbench.services.unsaved.extend(["all of its text is in <b>here</b>", "its text is below\n\nOslo\n\nis north"])
        monkeypatch.setattr(KeptWindows, "write", full)  # no room for the state of the windows either
        reading.append(asyncio.create_task(read()))

    open_app("x", paced, scene)
    assert told == ["all of its text is in <b>here</b>\n\nits text is below", "Oslo\n\nis north"]
