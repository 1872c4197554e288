from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.parts.window import Start, measure_start, start_verdicts
from benchmarks.run import NOWHERE


@pytest.mark.slow
def test_the_start_of_the_window_takes_longer_than_python_and_qt_alone() -> None:
    # when the app is started twice without a screen
    start = measure_start(starts=2)
    # then there are both figures, and the floor is lower
    assert start is not None
    assert start.starts == 2
    assert 0 < start.floor_cpu_seconds < start.cpu_seconds
    assert start.floor_wall_seconds > 0
    assert start.wall_seconds > 0


def test_a_window_that_cannot_be_opened_is_reported_without_a_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # given: a Python without our libraries
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho 'no module named app' >&2\nexit 1\n")
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    # then there is no figure, but the reason
    assert measure_start(starts=1) is None
    assert "no module named app" in capsys.readouterr().err


def test_the_figures_have_bars_and_a_floor() -> None:
    found = Start(5, cpu_seconds=0.61, wall_seconds=1.2, floor_cpu_seconds=0.12, floor_wall_seconds=0.13)
    wall, cpu = start_verdicts(found, NOWHERE)
    assert (wall.figure, wall.bar, wall.met) == (1.2, 1.0, False)
    assert (cpu.figure, cpu.met) == (0.61, True)
    assert "0.13" in wall.what
    assert "0.12" in cpu.what
