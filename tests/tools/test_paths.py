"""The ways of a query, of a token and of a message stay short: limits for what `count_path` and `count_message` print.

They are five functions and a file above what is printed for tiny-llama today, for other machines.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.pages import ROOT

PATIENCE_SECONDS = 280


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "most"),
    [
        ("count_path --backend hf", {"batched query of four rows": (115, 23), "one generated token": (162, 31)}),
        ("count_path --backend mlx", {"batched query of four rows": (128, 24), "one generated token": (176, 32)}),
        ("count_message", {"on the way": (60, 32)}),
    ],
)
def test_a_request_runs_through_few_functions_and_files(tool: str, most: dict[str, tuple[int, int]]) -> None:
    name, *options = tool.split()
    command = [sys.executable, "-m", f"tests.tools.{name}", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"^(.+): (\d+) functions in (\d+) files$", done.stdout, re.MULTILINE)
    found = {what: (int(functions), int(files)) for what, functions, files in lines}
    for what, (functions, files) in most.items():
        assert found[what][0] <= functions, f"{what}: `python -m tests.tools.{tool} --list` names the functions"
        assert found[what][1] <= files
