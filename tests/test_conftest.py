"""The rules of conftest.py, checked on a few tests in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WAITS = """
import time
import pytest

{mark}
def test_waits():
    time.sleep(1)
"""
LEAVES = """
import threading
import weakref

GONE = []

class Ring:
    def __init__(self):
        self.itself = self

def leave_rings():
    weakref.finalize(Ring(), lambda: GONE.append(threading.current_thread()))
    for _ in range(25_000):
        Ring()

def test_leaves_rings():
    other = threading.Thread(target=leave_rings)
    other.start()
    other.join()
    assert GONE == []

def test_finds_them_gone():
    assert GONE == [threading.main_thread()]
"""


LITTERS = """
import pytest
from pathlib import Path

@pytest.fixture(scope="module")
def written():
    Path("hello").write_text("")

def test_leaves_a_file(written):
    pass

def test_leaves_none(tmp_path):
    (tmp_path / "file").write_text("")
"""

SAMPLED = """
import pytest

@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", range(8))
def test_case(case):
    pass
"""


def run(folder: Path, tests: str, *options: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs a file of tests under the `conftest.py` of this folder."""
    folder.joinpath("test_it.py").write_text(tests)
    folder.joinpath("pytest.ini").write_text("[pytest]\n")
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.conftest",
            "-p",
            "no:cacheprovider",
            *options,
            f"--rootdir={folder}",
            folder,
        ],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("mark", "passes"), [("@pytest.mark.timeout(60)", True), ("", False)])
def test_the_process_ends_at_the_limit_unless_the_test_has_one_of_its_own(tmp_path: Path, mark: str, passes: bool) -> None:
    limits = ["-o", "faulthandler_timeout=0.5", "-o", "faulthandler_exit_on_timeout=true"]
    ended = run(tmp_path, WAITS.format(mark=mark), *limits)
    assert ("1 passed" in ended.stdout) is passes, ended.stdout + ended.stderr
    assert ("Timeout (" in ended.stderr) is not passes, ended.stderr


@pytest.mark.slow
def test_reference_cycles_left_by_a_test_are_collected_in_the_main_thread(tmp_path: Path) -> None:
    ended = run(tmp_path, LEAVES)
    assert "2 passed" in ended.stdout, ended.stdout + ended.stderr


@pytest.mark.slow
def test_a_file_left_in_the_current_folder_fails_its_test(tmp_path: Path) -> None:
    (tmp_path / "cwd").mkdir()
    ended = run(tmp_path, LITTERS, cwd=tmp_path / "cwd")
    assert "2 passed, 1 error" in ended.stdout, ended.stdout + ended.stderr
    assert "while this test ran: hello" in ended.stdout
    assert "test_leaves_a_file" in ended.stdout
    assert "test_leaves_none" not in ended.stdout


@pytest.mark.slow
def test_the_given_number_of_cases_of_a_sampled_test_is_fast_and_the_rest_slow(tmp_path: Path) -> None:
    fast = run(tmp_path, SAMPLED, "-m", "not slow")
    assert "2 passed, 6 deselected" in fast.stdout, fast.stdout + fast.stderr
    slow = run(tmp_path, SAMPLED, "-m", "slow")
    assert "6 passed, 2 deselected" in slow.stdout, slow.stdout + slow.stderr
