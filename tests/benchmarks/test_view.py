"""The part that measures the window's widgets: every frame, in a process that needs no screen."""

from __future__ import annotations

import pytest

from benchmarks.parts.window import measure_view, view_verdicts
from benchmarks.run import NOWHERE
from benchmarks.sizes import QUICK

COUNTED = ("scroll", "move", "switch", "slider_head", "slider_row", "list_scroll", "tree_show")


@pytest.mark.slow
def test_every_frame_is_measured() -> None:
    # when a short stream and a short list are driven
    found = measure_view(400, 30, 120)
    # then there is a frame for each run of five tokens, and each of the other things was done
    assert len(found["append_paragraphs"]) == len(found["append_one"]) == 80
    assert {name: len(frames) for name, frames in found.items() if name in COUNTED} == {
        "scroll": 300,
        "move": 2000,
        "switch": 12,
        "slider_head": 100,
        "slider_row": 100,
        "list_scroll": 300,
        "tree_show": 9,
    }
    assert all(frame > 0 for name, frames in found.items() if not name.startswith("rss") for frame in frames)
    rows = view_verdicts(NOWHERE, found, QUICK)
    assert [row.bar for row in rows] == [1.0, 8.0, 1.0, 8.0, 30.0, 0.1, 16.0, 50.0, 10.0, 10.0, 16.0, 100.0]


@pytest.mark.slow
def test_a_widget_that_cannot_be_shown_is_reported_without_a_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert measure_view(-1, 0, 0) == {}
    assert "was not measured" in capsys.readouterr().err
