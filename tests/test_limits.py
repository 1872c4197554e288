"""The time that tests may take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEST = """
import time
import pytest

{mark}
def test_waits():
    time.sleep(1)
"""


@pytest.mark.parametrize(("mark", "passes"), [("@pytest.mark.timeout(60)", True), ("", False)])
def test_the_process_ends_at_the_limit_unless_the_test_has_one_of_its_own(tmp_path: Path, mark: str, passes: bool) -> None:
    tmp_path.joinpath("test_it.py").write_text(TEST.format(mark=mark))
    tmp_path.joinpath("pytest.ini").write_text("[pytest]\nfaulthandler_timeout=0.5\nfaulthandler_exit_on_timeout=true")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ("1 passed" in run.stdout) is passes, run.stdout + run.stderr
    assert ("Timeout (" in run.stderr) is not passes, run.stderr
