"""The results of the part about files: the header of a whole file of 10 GB, and every byte read once."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks.parts.files import F32, FLAT_BAR, HEADER_BAR, ONCE_BAR, Q8_0, files, quantised, written_gguf
from benchmarks.run import NOWHERE
from benchmarks.sizes import FULL
from runtime import plan_import
from runtime.loading.integrity import sha256_of
from tests.benchmarks.small import SMALL


def test_the_generated_gguf_file_passes_the_import_check(tmp_path: Path) -> None:
    packed, plain = (written_gguf(tmp_path / f"{form[0]}.gguf", SMALL, form) for form in (Q8_0, F32))
    assert plan_import(packed).kept > 0
    assert (plan_import(plain).kept, plan_import(plain).float32) == (0, plan_import(packed).float32)
    assert packed.stat().st_size / 1e9 == pytest.approx(9.1, abs=0.1)  # 10 GB with all its words
    assert packed.stat().st_blocks * 512 < 10 << 20  # most of which takes no space on the disk


def test_every_bar_is_reported_and_the_exact_ones_are_met() -> None:
    found = {verdict.what: verdict for verdict in files(NOWHERE, SMALL, lambda _: None).verdicts}
    [header] = [verdict for what, verdict in found.items() if what.startswith("cpu s: header")]
    [flat] = [verdict for what, verdict in found.items() if what.startswith("memory")]
    assert (header.bar, header.timed, header.at_least) == (HEADER_BAR, True, False)
    assert header.figure > 0
    assert (flat.bar, flat.timed, flat.met) == (FLAT_BAR, False, True)
    if hasattr(psutil.Process, "io_counters"):
        [once] = [verdict for what, verdict in found.items() if what.startswith("bytes read by verifying")]
        assert (once.bar, once.timed, once.met) == (ONCE_BAR, False, True)
        assert once.figure >= 1


@pytest.mark.skipif(not hasattr(psutil.Process, "io_counters"), reason="this system does not count what a process reads")
def test_a_file_read_twice_misses_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(path: Path, tell: Callable[[int], None]) -> str:
        with path.open("rb") as file:
            while file.read(io.DEFAULT_BUFFER_SIZE):
                pass
        return sha256_of(path, tell)

    monkeypatch.setattr("runtime.shelf.model_shelf.sha256_of", twice)
    [verdict] = [each for each in files(NOWHERE, SMALL, lambda _: None).verdicts if each.what.startswith("bytes read")]
    assert not verdict.met
    assert verdict.figure >= 2


def test_the_full_size_is_10_gb(tmp_path: Path) -> None:
    assert 10 <= written_gguf(tmp_path / "full.gguf", FULL, Q8_0).stat().st_size / 1e9 < 10.5


@pytest.mark.slow
def test_a_quantised_file_meets_its_bars_for_disk_and_memory() -> None:
    found = {verdict.what: verdict for verdict in quantised(NOWHERE, SMALL, lambda _: None).verdicts}
    assert [what.split(" bytes ")[1] for what in found] == ["on the disk /", "in memory /"]
    assert all(verdict.figure > 1 and verdict.met for verdict in found.values())
