"""The part that measures the whole window's event loop: every scene is played, and a late loop is detected."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from benchmarks.children.window import Ticks
from benchmarks.findings import Case
from benchmarks.parts.window import measure_window, window_verdicts
from benchmarks.run import NOWHERE
from benchmarks.sizes import QUICK
from benchmarks.tiny import make_tiny

SCENES = {"idle", "open", "export", "prefill", "stream"}
WAITS = {"alternative": [50.0, 52.0, 54.0], "typed": [60.0, 65.0, 90.0], "card": [9.0, 12.0, 40.0]}


@pytest.mark.slow
def test_every_scene_is_played_in_the_real_window(tmp_path: Path) -> None:
    # when a short session is opened and exported, and a tiny model used
    folder = tmp_path / "tiny"
    case = Case("hf", "tiny-llama", folder, make_tiny("llama", folder))
    found = measure_window(case, replace(QUICK, window_turns=40, window_prompt=200, window_seconds=0.3))
    # then the gaps add up to the time of each scene, of which three last 0.3 s or longer (a coarse timer may be 5 % early)
    assert set(found) == SCENES | WAITS.keys()
    together = {name: sum(gaps) for name, gaps in found.items()}
    assert min(together.values()) > 0
    assert min(together[name] for name in ("idle", "open", "stream")) >= 280


def test_a_blocked_loop_is_detected(qtbot: QtBot) -> None:
    # given a timer that ticks
    ticks = Ticks()
    with ticks.during("here"):
        qtbot.wait(30)
    with ticks.during("away"):
        qtbot.wait(15)
        time.sleep(0.06)
    # then a block at the end of a scene is a gap of that scene, and of no other
    assert len(ticks.found["here"]) > 1
    assert max(ticks.found["away"]) >= 60


def test_the_gaps_have_bars_and_the_limit_of_an_idle_window() -> None:
    # given ticks of which a few are late
    found = dict.fromkeys(SCENES, [5.0] * 98 + [20.0, 60.0]) | {"idle": [5.0] * 98 + [6.0, 7.0]}
    *rows, typed, card = window_verdicts(NOWHERE, found | WAITS, QUICK)
    # then p99 and the longest of every scene have a verdict and the idle window's as their limit
    assert len(rows) == 2 * (len(SCENES) - 1)
    assert {row.bar for row in rows} == {16.0, 50.0}
    assert not any(row.met for row in rows)
    assert {row.limit.figure for row in rows if row.limit is not None and row.bar == 50.0} == {7.0}
    # and typed words have figures of their own, like an alternative
    assert (typed.figure, typed.met) == (1.25, False)
    assert (card.figure, card.met) == (12.0, True)


def test_a_window_that_cannot_be_opened_is_reported_without_a_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho 'no module named app' >&2\nexit 1\n")
    bare.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(bare))
    assert measure_window(NOWHERE, QUICK) == {}
    assert "no module named app" in capsys.readouterr().err
