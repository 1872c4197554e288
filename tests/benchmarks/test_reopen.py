"""W4: the counts of a saved session are exact, whatever the load of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.parts.reopen import DISK, REOPEN, SAVE, reopen
from benchmarks.run import make_cases
from benchmarks.sizes import Sizes


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_the_counts_of_a_saved_session_meet_their_bars(backend: str, tmp_path: Path) -> None:
    (case, *_) = make_cases("llama", (backend,), tmp_path, None)
    said: list[str] = []
    found = reopen(case, Sizes(rounds=1, reopen_tokens=300, reopen_embedded=False), said.append)
    counted = {verdict.row: verdict for verdict in found.verdicts if not verdict.timed}
    assert counted.keys() == {REOPEN, SAVE, DISK}
    assert all(verdict.met for verdict in counted.values()), counted
    assert counted[DISK].figure >= 1.0
    assert len(said) == 5
