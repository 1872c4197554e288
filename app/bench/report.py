"""What a run found: tables for people, JSON for programs."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from app.bench.calibration import Calibration
from app.bench.measure import Result
from app.bench.sizes import Sizes
from runtime import __version__

BAR = 1.05  # tokens over ideal that Elsewise promises to stay within
FORMAT = 1  # of the JSON
LEGEND = "ratio: tokens computed over the fewest that exact answers need; same: drew the same tokens as Elsewise"
WIDTH = 110  # where the output is no terminal


@dataclass(frozen=True, slots=True)
class Report:
    """One run."""

    quick: bool
    sizes: Sizes
    calibration: Calibration
    results: tuple[Result, ...]

    def print(self, console: Console) -> None:
        """A table per backend and model, and what the seconds are to be held against."""
        for (backend, model), rows in groupby(self.results, key=lambda r: (r.backend, r.model)):
            console.print(_table(f"{backend}, {model}", list(rows)))
        console.print(LEGEND, highlight=False)
        idle = self.calibration
        seconds = f"{idle.cpu_seconds:.2f} cpu-seconds, {idle.wall_seconds:.2f} s of wall time"
        console.print(f"calibration: a fixed numpy kernel took {seconds}", highlight=False)

    def save(self, path: Path) -> None:
        """Writes the same figures as JSON."""
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n", "utf-8")

    def as_json(self) -> dict[str, Any]:
        """Plain data: format, version, machine, sizes, calibration, results with their ratios."""
        return {
            "format": FORMAT,
            "elsewise": __version__,
            "machine": {"system": platform.platform(), "processor": platform.machine(), "python": platform.python_version()},
            "quick": self.quick,
            "sizes": asdict(self.sizes),
            "calibration": asdict(self.calibration),
            "results": [{**asdict(result), "ratio": result.ratio} for result in self.results],
        }


def wide_console() -> Console:
    """Standard output; as wide as the tables where it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def _table(title: str, results: Sequence[Result]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1))
    table.add_column("workload", no_wrap=True)
    table.add_column("who")  # gives way in a narrow terminal
    for name in ("tokens", "ideal", "ratio", "cpu s", "wall s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("same", no_wrap=True)
    for workload, group in groupby(sorted(results, key=lambda r: r.workload), key=lambda r: r.workload):
        rows = list(group)
        for i, row in enumerate(rows):
            table.add_row(
                workload if i == 0 else "",
                row.subject,
                f"{row.tokens:,}",
                f"{row.ideal:,}",
                _ratio(row, ours=i == 0),
                f"{row.cpu_seconds:.2f}",
                f"{row.wall_seconds:.2f}",
                "" if i == 0 else "yes" if row.outcome == rows[0].outcome else "no",
                end_section=i == len(rows) - 1,
            )
    return table


def _ratio(result: Result, *, ours: bool) -> str:
    """Two decimals are what the promise is given in; past it, ours is red."""
    text = f"{result.ratio:.3f}"
    return f"[red]{text}[/red]" if ours and result.ratio > BAR else text
