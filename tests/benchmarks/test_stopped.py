"""An interrupted benchmark prints its results so far."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

WHAT = ["bench", "--quick", "--backend", "hf", "--model", "llama", "--only", "W3", "--only", "W5"]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_benchmark_prints_the_finished_parts(how: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "app", *WHAT, "--json", str(tmp_path / "figures.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listen) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if "W3," in line:  # its part has ended, the next one begins
                run.send_signal(how)
                break
        said, _ = run.communicate(timeout=120)
    assert run.returncode == 130
    assert "W3 branches" in said
    assert "Stopped before the end" in said
    assert "W5" not in said
    figures = json.loads((tmp_path / "figures.json").read_text("utf-8"))
    assert figures["whole"] is False
    assert {row["workload"][:2] for row in figures["results"]} == {"W3"}


def listen() -> None:
    """Restores the handling of Ctrl-C, however the tests were started."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
