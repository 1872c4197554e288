"""The report of a run: tables for the terminal and JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.clock import Calibration
from benchmarks.findings import BarVerdict, Findings, Gaps, Reading, Timing, Took
from benchmarks.measure import WorkloadResult
from benchmarks.sizes import Sizes
from runtime import __version__

FORMAT = 2  # of the JSON
LEGEND = (
    "ratio: tokens computed over the fewest that exact answers need; same: drew the same tokens as Elsewise. Times are medians "
    "over so many laps, in which all take turns (x: times Elsewise's own); a bar's ratio is the median of the laps' ratios. "
    "cpu is the whole process's, but for what a workload itself computes between two requests."
)
BUSY = "The machine was busy: a timed bar that was missed says little; measure again on an idle one."
STOPPED = "Stopped before the end: the parts that had ended are told."
WIDTH = 120  # columns, if the output is no terminal


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Everything that one run measured."""

    quick: bool
    sizes: Sizes
    parts: tuple[str, ...]  # names of the chosen parts
    calibrations: tuple[Calibration, ...]  # one before each model, in order; if quick, only before the first
    findings: Findings
    took: tuple[Took, ...] = ()
    whole: bool = True  # False: the run was interrupted

    def print(self, console: Console) -> None:
        """Prints tables by backend and model, the calibrations, the time of each part, and every figure with its bar."""
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
        console.print(verdict_table("bars", found.verdicts))
        console.print(LEGEND, highlight=False)
        if not all(each.normal for each in self.calibrations):
            console.print(BUSY, highlight=False)
        if not self.whole:
            console.print(STOPPED, highlight=False)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n", "utf-8")

    def as_json(self) -> dict[str, Any]:
        """The report as plain data; the derived figures (ratio, limit, gap, met) are included."""
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
        }


def wide_console() -> Console:
    """A console on standard output, `WIDTH` columns wide if that is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


Each = TypeVar("Each")
MET, NOT_MET = "[green]met[/green]", "[red]not met[/red]"


def count_table(title: str, results: Sequence[WorkloadResult]) -> Table:
    """Tokens computed and needed, for one model."""
    table = _table(title, ("workload", "who"), ("tokens", "ideal", "ratio", "cpu s", "wall s", "x cpu", "laps"), ("same",))
    for i, row, first, last in _grouped(results, lambda r: r.workload):
        figures = (f"{row.tokens:,}", f"{row.ideal:,}", f"{row.ratio:.3f}", f"{row.cpu_seconds:.2f}", f"{row.wall_seconds:.2f}")
        ends = (f"{row.cpu_seconds / first.cpu_seconds:.2f}", str(row.laps), _same(i, row.outcome, first.outcome))
        table.add_row(row.workload if i == 0 else "", row.subject, *figures, *ends, end_section=last)
    return table


def timing_table(title: str, timings: Sequence[Timing]) -> Table:
    """Time per token of each contender, for one model."""
    table = _table(title, ("part", "who"), ("ms/token", "cpu ms/token", "tokens/s", "x wall", "x cpu", "laps"), ("same",))
    for i, row, first, last in _grouped(timings, lambda t: t.part):
        figures = (f"{row.wall_ms:.3f}", f"{row.cpu_ms:.3f}", f"{1000 / row.wall_ms:,.0f}")
        times = (f"{row.wall_ms / first.wall_ms:.2f}", f"{row.cpu_ms / first.cpu_ms:.2f}")
        ends = (str(row.laps), _same(i, row.outcome, first.outcome))
        table.add_row(row.part if i == 0 else "", row.who, *figures, *times, *ends, end_section=last)
    return table


def reading_table(title: str, readings: Sequence[Reading]) -> Table:
    """Time per token compared with the time to read the weights once."""
    table = _table(title, ("model", "who"), ("MB a token", "GB/s", "ms at that", "ms/token", "gap"), ())
    for i, row, _, last in _grouped(readings, lambda r: f"{r.backend}, {r.model}"):
        label = f"{row.backend}, {row.model}" if i == 0 else ""
        figures = (f"{row.nbytes / 1e6:,.1f}", f"{row.speed / 1e9:.1f}", f"{row.limit_ms:.3f}", f"{row.wall_ms:.3f}")
        table.add_row(label, row.who, *figures, f"{row.gap:.2f} x", end_section=last)
    return table


def gap_table(title: str, gaps: Sequence[Gaps]) -> Table:
    """Gaps of the event loops."""
    table = _table(title, ("model", "beside"), ("p50", "p99", "longest", "ticks"), ("work done meanwhile",))
    for i, row, _, last in _grouped(gaps, lambda g: f"{g.backend}, {g.model}"):
        label = f"{row.backend}, {row.model}" if i == 0 else ""
        figures = (f"{row.p50:.2f}", f"{row.p99:.2f}", f"{row.max:.2f}", f"{row.ticks:,}")
        table.add_row(label, row.who, *figures, row.work, end_section=last)
    return table


def calibration_table(title: str, calibrations: Sequence[Calibration]) -> Table:
    """Times of the fixed kernel and gaps of the idle event loop before each model."""
    table = _table(title, ("before",), ("kernel cpu s", "kernel wall s", "idle gap p99 ms", "longest ms"), ("",))
    for each in calibrations:
        seconds, gaps = (each.cpu_seconds, each.wall_seconds), (each.idle_p99, each.idle_max)
        figures = (*(f"{value:.3f}" for value in seconds), *(f"{value:.2f}" for value in gaps))
        table.add_row(each.when, *figures, "" if each.normal else "busy")
    return table


def took_table(title: str, took: Sequence[Took]) -> Table:
    """Seconds of each part, summed over its models, and the total."""
    table = _table(title, ("part",), ("models", "seconds"), ())
    for name in dict.fromkeys(each.part for each in took):
        seconds = [each.seconds for each in took if each.part == name]
        table.add_row(name, str(len(seconds)), f"{sum(seconds):.1f}")
    table.add_section()
    table.add_row("all", "", f"{sum(each.seconds for each in took):.1f}")
    return table


def verdict_table(title: str, verdicts: Sequence[BarVerdict]) -> Table:
    """Every figure with its bar and whether it is met; below a missed bar, its limit."""
    table = _table(title, ("row", "on", "figure of"), ("figure", "bar"), ("",))
    for i, row, _, last in _grouped(sorted(verdicts, key=lambda v: v.row), lambda v: v.row):
        on = f"{row.backend}, {row.model}" if row.model else ""
        sign = ">=" if row.at_least else "<="
        verdict = MET if row.met else NOT_MET
        label = row.row if i == 0 else ""
        table.add_row(label, on, row.what, f"{row.figure:.3f}", f"{sign} {row.bar:g}", verdict, end_section=last)
        if row.limit is not None and not row.met:
            table.add_row("", "", f"limit: {row.limit.what}", f"{row.limit.figure:.3f}", "", "", end_section=last)
    return table


def _table(title: str, left: Sequence[str], right: Sequence[str], end: Sequence[str]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1))
    for i, name in enumerate(left):
        table.add_column(name, no_wrap=i == 0)  # only the others wrap in a narrow terminal
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    for name in end:
        table.add_column(name, no_wrap=True)
    return table


def _grouped(rows: Sequence[Each], key: Callable[[Each], str]) -> Iterator[tuple[int, Each, Each, bool]]:
    """Yields each row with its index in its group, the first row of the group, and whether it is the last one."""
    for _, group in groupby(rows, key=key):
        members = list(group)
        for i, row in enumerate(members):
            yield i, row, members[0], i == len(members) - 1


def _same(i: int, outcome: str, ours: str) -> str:
    if i == 0 or not outcome:
        return ""
    return "yes" if outcome == ours else "no"
