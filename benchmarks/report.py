"""What a run found: tables for people, JSON for programs."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.calibration import Calibration
from benchmarks.catalogue import LATER
from benchmarks.findings import Findings, Took
from benchmarks.sizes import Sizes
from benchmarks.tables import calibration_table, count_table, gap_table, reading_table, timing_table, took_table, verdict_table
from runtime import __version__

FORMAT = 2  # of the JSON
LEGEND = (
    "ratio: tokens computed over the fewest that exact answers need; same: drew the same tokens as Elsewise. Times are medians "
    "over so many laps, in which all take turns (x: times Elsewise's own); a bar's ratio is the median of the laps' ratios. "
    "cpu is the whole process's, but for what a workload itself computes between two requests."
)
BUSY = "The machine was busy: a timed bar that was missed says little; measure again on an idle one."
STOPPED = "Stopped before the end: the parts that had ended are told."
WIDTH = 120  # where the output is no terminal


@dataclass(frozen=True, slots=True)
class Report:
    """One run."""

    quick: bool
    sizes: Sizes
    parts: tuple[str, ...]  # names of those that ran
    calibrations: tuple[Calibration, ...]  # before each model, in order; before the first alone if quick
    findings: Findings
    took: tuple[Took, ...] = ()
    whole: bool = True  # nobody stopped it

    def print(self, console: Console) -> None:
        """Tables by backend and model, what the seconds are to be held against, and every figure beside its bar."""
        found = self.findings
        for (backend, model), results in groupby(found.results, key=lambda r: (r.backend, r.model)):
            console.print(count_table(f"{backend}, {model}: tokens", list(results)))
        for (backend, model), timings in groupby(found.timings, key=lambda t: (t.backend, t.model)):
            console.print(timing_table(f"{backend}, {model}: times", list(timings)))
        if found.readings:
            console.print(reading_table("decoding beside the speed of memory", found.readings))
        if found.gaps:
            console.print(gap_table("event loop: ms between two ticks of a 1 ms timer", found.gaps))
        console.print(calibration_table("the machine meanwhile", self.calibrations))
        console.print(took_table("how long it took", self.took))
        console.print(verdict_table("bars", found.verdicts, LATER))
        console.print(LEGEND, highlight=False)
        if not all(each.normal for each in self.calibrations):
            console.print(BUSY, highlight=False)
        if not self.whole:
            console.print(STOPPED, highlight=False)

    def save(self, path: Path) -> None:
        """Writes the same figures as JSON."""
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n", "utf-8")

    def as_json(self) -> dict[str, Any]:
        """Plain data: format, version, machine, sizes, calibrations, results with ratios, timings, gaps, bars, seconds."""
        found = self.findings
        return {
            "format": FORMAT,
            "elsewise": __version__,
            "machine": {"system": platform.platform(), "processor": platform.machine(), "python": platform.python_version()},
            "quick": self.quick,
            "whole": self.whole,
            "parts": list(self.parts),
            "sizes": asdict(self.sizes),
            "calibrations": [{**asdict(each), "normal": each.normal} for each in self.calibrations],
            "results": [{**asdict(result), "ratio": result.ratio} for result in found.results],
            "timings": [asdict(each) for each in found.timings],
            "readings": [{**asdict(each), "limit_ms": each.limit_ms, "gap": each.gap} for each in found.readings],
            "gaps": [asdict(each) for each in found.gaps],
            "bars": [{**asdict(each), "met": each.met} for each in found.verdicts],
            "took": [asdict(each) for each in self.took],
            "later": LATER,
        }


def wide_console() -> Console:
    """Standard output; as wide as the tables where it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)
