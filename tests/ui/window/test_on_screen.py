"""Drags, popups and the keyboard's focus under a window manager: on a virtual screen, where the offscreen platform differs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

NEEDED = {"Xvfb": "xvfb", "openbox": "openbox", "xdotool": "xdotool"}
JOURNEYS = "tests/ui/window/on_screen.py", "tests/ui/window/test_accessibility.py::test_a_whole_journey_by_keys_alone"


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[str]:
    """The name of a separate display with a window manager."""
    missing = [package for tool, package in NEEDED.items() if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"a virtual screen needs: sudo apt-get install {' '.join(missing)}")
    read, write = os.pipe()
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(write), "-screen", "0", "1600x1000x24", "-nolisten", "tcp"],
        pass_fds=[write], stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(write)
    with os.fdopen(read) as told:
        display = f":{told.readline().strip()}"
    manager = subprocess.Popen(
        ["openbox"], env={**os.environ, "DISPLAY": display, "HOME": str(tmp_path)}, stderr=subprocess.DEVNULL
    )
    yield display
    for each in (manager, server):
        each.terminate()
        each.wait()


@pytest.mark.slow
def test_journeys_on_a_screen(screen: str) -> None:
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *JOURNEYS],
        env={**os.environ, "DISPLAY": screen, "ELSEWISE_TEST_PLATFORM": "xcb"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stdout[-8000:]
    assert "3 passed" in child.stdout
