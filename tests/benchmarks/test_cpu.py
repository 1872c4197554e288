"""The results of the part about processors, on a tiny model: every contender, and the time for reading the weights alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.findings import Case, Findings
from benchmarks.parts.decode import FORMS, PACKED_BAR, READ, embedded_model
from tests.benchmarks.small import SMALL


def test_the_part_measures_only_hf(cases: list[Case]) -> None:
    assert embedded_model(next(case for case in cases if case.backend == "mlx"), SMALL, lambda _: None) == Findings()


@pytest.mark.slow
def test_every_form_has_its_bar_and_its_limit(cases: list[Case]) -> None:
    said: list[str] = []
    found = embedded_model(cases[0], replace(SMALL, reopen_embedded=False, cpu_tokens=4, cpu_rounds=1), said.append)
    times = {timing.who: timing.wall_ms for timing in found.timings}
    assert all(seconds > 0 for seconds in times.values())
    bars = {verdict.what: verdict for verdict in found.verdicts}
    for form in FORMS:
        [verdict] = [verdict for what, verdict in bars.items() if what.startswith(f"{form} weights")]
        assert (verdict.bar, verdict.at_least) == (PACKED_BAR, True)
        assert verdict.limit is not None
        assert verdict.limit.figure > 0
    # the gap to the time for reading the weights: fewer bytes take less time at the speed of memory
    readings = {reading.who: reading for reading in found.readings}
    assert list(readings) == ["elsewise", *(f"{form} weights" for form in FORMS)]
    plain = readings["elsewise"]
    assert plain.limit_ms == pytest.approx(times[READ])
    for who, reading in readings.items():
        assert (reading.wall_ms, reading.speed) == (times[who], plain.speed)
        assert reading.gap == pytest.approx(reading.wall_ms * plain.speed / reading.nbytes / 1000)
        assert who == "elsewise" or reading.limit_ms < plain.limit_ms
    assert readings["int4 weights"].limit_ms < readings["float16 weights"].limit_ms
    [first] = [verdict for what, verdict in bars.items() if "first token" in what]
    assert first.figure > 0
    assert first.limit is not None
    assert {verdict.row for verdict in found.verdicts} == {"cpu"}
