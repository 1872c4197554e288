"""What the part about processors finds, on a tiny model: every contender, and what reading the weights alone takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.bench.findings import Case, Findings
from app.bench.parts.cpu import FORMS, PACKED_BAR, READ, cpu
from tests.app.bench.small import SMALL


def test_it_is_about_hf_alone(cases: list[Case]) -> None:
    assert cpu(next(case for case in cases if case.backend == "mlx"), SMALL, lambda _: None) == Findings()


@pytest.mark.slow
def test_every_form_has_its_bar_and_its_limit(cases: list[Case]) -> None:
    said: list[str] = []
    found = cpu(cases[0], replace(SMALL, reopen_embedded=False, cpu_tokens=4, cpu_rounds=1), said.append)
    times = {timing.who: timing.wall_ms for timing in found.timings}
    assert all(seconds > 0 for seconds in times.values())
    bars = {verdict.what: verdict for verdict in found.verdicts}
    for form in FORMS:
        [verdict] = [verdict for what, verdict in bars.items() if what.startswith(f"{form} weights")]
        assert (verdict.bar, verdict.at_least) == (PACKED_BAR, True)
        assert verdict.limit is not None
        assert verdict.limit.figure > 0
        # fewer bytes take less time at the speed of memory
        assert times[f"the same of {form} weights, by their bytes"] < times[READ]
    assert times["the same of int4 weights, by their bytes"] < times["the same of float16 weights, by their bytes"]
    [first] = [verdict for what, verdict in bars.items() if "first token" in what]
    assert first.figure > 0
    assert first.limit is not None
    assert {verdict.row for verdict in found.verdicts} == {"cpu"}
