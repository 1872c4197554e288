"""One writer per data folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from storage import DataFolderLock, StoreReadOnlyError, request_focus

HOLD = """
import sys, time
from pathlib import Path
from storage import DataFolderLock
lock = DataFolderLock(Path(sys.argv[1]), "ask --session")
print(lock.acquire(), flush=True)
time.sleep(600)
"""


def test_the_lock_has_one_holder_until_it_is_released(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    first, second = DataFolderLock(folder), DataFolderLock(folder, "ask --session")
    assert first.held_by is None
    assert first.acquire()
    assert not second.acquire()
    assert (first.held, second.held) == (True, False)
    assert second.held_by == f"window, pid {os.getpid()}"
    second.release()  # has no effect: the lock is held by the first one
    assert second.held_by is not None
    first.release()
    assert first.held_by is None
    assert second.acquire()
    assert first.held_by == f"ask --session, pid {os.getpid()}"
    second.release()


def test_a_killed_holder_releases_the_lock(tmp_path: Path) -> None:
    lock = DataFolderLock(tmp_path)
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "True\n"
            assert not lock.acquire()
            assert lock.held_by == f"ask --session, pid {holder.pid}"
        finally:
            holder.send_signal(signal.SIGKILL)
    assert lock.held_by is None
    assert lock.acquire()
    lock.release()


def test_an_unreadable_note_names_no_holder(tmp_path: Path) -> None:
    (tmp_path / "lock.json").write_bytes(b"\xff{")
    assert DataFolderLock(tmp_path).held_by is None


def test_a_focus_request_touches_the_focus_file(tmp_path: Path) -> None:
    lock = DataFolderLock(tmp_path)
    assert lock.acquire()
    focus = tmp_path / "focus"
    before = (focus.stat().st_mtime_ns, focus.read_bytes())
    request_focus(tmp_path)
    assert (focus.stat().st_mtime_ns, focus.read_bytes()) != before
    lock.release()


def test_a_folder_that_is_not_writable_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (Path("/proc/elsewise"), tmp_path / "file"):
        with pytest.raises(StoreReadOnlyError, match="cannot be written"):
            DataFolderLock(folder).acquire()
        with pytest.raises(StoreReadOnlyError, match="cannot be written"):
            request_focus(folder)
