"""From the start of the process to the window with the sample session in it, beside what Python and Qt alone need."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clock import Told
from benchmarks.findings import Case, Findings, Verdict
from benchmarks.sizes import Sizes

ROW = "start"
WALL_BAR, CPU_BAR = 1.0, 0.85  # seconds
PATIENCE_SECONDS = 120.0  # for one process
FLOOR = "from PySide6 import QtWidgets"
_STANDS = re.compile(r"the window stands .* after ([\d.]+) s")  # what `app.window` says with --verbose


@dataclass(frozen=True, slots=True)
class Start:
    """Medians of several starts on a folder that has the sample. cpu: user and system time of all threads up to the window."""

    starts: int
    cpu_seconds: float
    wall_seconds: float
    floor_cpu_seconds: float  # a whole process that does nothing but FLOOR
    floor_wall_seconds: float


def start(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """The app as a person starts it, without a screen and without an engine."""
    tell(ROW)
    found = measure_start(sizes.starts)
    return Findings(verdicts=verdicts(found, case) if found is not None else ())


def verdicts(found: Start, case: Case) -> tuple[Verdict, ...]:
    """The figures beside their bars and their floor."""
    rows = (
        ("s", found.wall_seconds, found.floor_wall_seconds, WALL_BAR),
        ("cpu-seconds", found.cpu_seconds, found.floor_cpu_seconds, CPU_BAR),
    )
    return tuple(
        Verdict(
            row=ROW,
            backend=case.backend,
            model=case.model,
            what=f"{unit} to the window with the sample session (Python and Qt alone: {floor:.2f})",
            figure=figure,
            bar=bar,
            at_least=False,
        )
        for unit, figure, floor, bar in rows
    )


def measure_start(starts: int) -> Start | None:
    """Starts the app without a screen, several times; None, with a line on stderr, where its window cannot be opened.

    The one before the first that counts makes the sample session and the byte code, and warms the disk's cache.
    """
    ours: list[tuple[float, float]] = []
    floors: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="elsewise-start-") as made:
        try:
            for _ in range(1 + starts):
                ours.append(_window(Path(made)))
                floors.append(_floor(Path(made)))
        except OSError as error:
            print(f"the time to the window was not measured: {error}", file=sys.stderr)
            return None
    cpu, wall, floor_cpu, floor_wall = (
        statistics.median(seconds) for pairs in (ours[1:], floors[1:]) for seconds in zip(*pairs, strict=True)
    )
    return Start(starts, cpu, wall, floor_cpu, floor_wall)


def _window(made: Path) -> tuple[float, float]:
    """Seconds of cpu and wall time from the birth of the process to the painted window."""
    command = [sys.executable, "-m", "app", "--verbose", "--data-dir", str(made / "data"), "--demo"]
    said: list[str] = []
    environment = _environment(made)
    began = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None  # asked for
        limit = threading.Timer(PATIENCE_SECONDS, process.kill)
        limit.start()
        try:
            for line in process.stderr:
                if found := _STANDS.search(line):
                    wall = time.perf_counter() - began
                    process.send_signal(signal.SIGTERM)
                    process.stderr.read()
                    return float(found[1]), wall
                said.append(line)
        finally:
            limit.cancel()
            process.terminate()
    raise OSError(said[-1].strip() if said else f"the window did not stand after {PATIENCE_SECONDS:.0f} s")


def _floor(made: Path) -> tuple[float, float]:
    environment = _environment(made)
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", FLOOR], env=environment)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise OSError("PySide6 cannot be loaded")
    return used.ru_utime + used.ru_stime, time.perf_counter() - began


def _environment(made: Path) -> dict[str, str]:
    """With byte code of the source as it is now, like after `make setup`, whatever this process may write."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "QT_QPA_PLATFORM": "offscreen", "PYTHONPYCACHEPREFIX": str(made / "compiled")}
