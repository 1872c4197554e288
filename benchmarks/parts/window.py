"""The window: its start, the speed of its widgets, gaps of its event loop; gaps of any event loop that uses a model (W8)."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean, median

import numpy as np

from benchmarks.children.child import measure_in_child
from benchmarks.clock import Told, gaps_of, ticks
from benchmarks.findings import BarVerdict, Case, Findings, Gaps, Limit
from benchmarks.ours import one_thread
from benchmarks.sizes import Sizes
from benchmarks.workloads import Everything
from runtime import LanguageModel, load, spawn

START_ROW = "start"
WALL_BAR, CPU_BAR = 1.0, 0.85  # seconds
PATIENCE_SECONDS = 120.0  # for one process
FLOOR = "from PySide6 import QtWidgets"
_STANDS = re.compile(r"the window stands .* after ([\d.]+) s")  # logged by `app.window` with --verbose


@dataclass(frozen=True, slots=True)
class Start:
    """Medians of several starts on a data folder with the sample session."""

    starts: int
    cpu_seconds: float  # user and system time of all threads up to the window
    wall_seconds: float
    floor_cpu_seconds: float  # of a whole process that only runs FLOOR
    floor_wall_seconds: float


def start(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Starts the app without a screen and without an engine."""
    tell(START_ROW)
    found = measure_start(sizes.starts)
    return Findings(verdicts=start_verdicts(found, case) if found is not None else ())


def start_verdicts(found: Start, case: Case) -> tuple[BarVerdict, ...]:
    """The figures with their bars and floors."""
    rows = (
        ("s", found.wall_seconds, found.floor_wall_seconds, WALL_BAR),
        ("cpu-seconds", found.cpu_seconds, found.floor_cpu_seconds, CPU_BAR),
    )
    return tuple(
        case.verdict(START_ROW, f"{unit} to the window with the sample session (Python and Qt alone: {floor:.2f})", figure, bar)
        for unit, figure, floor, bar in rows
    )


def measure_start(starts: int) -> Start | None:
    """Starts the app several times without a screen; None, with a line on stderr, if its window cannot be opened.

    A first start is not counted: it makes the sample session and the byte code, and warms the disk cache.
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
        median(seconds) for pairs in (ours[1:], floors[1:]) for seconds in zip(*pairs, strict=True)
    )
    return Start(starts, cpu, wall, floor_cpu, floor_wall)


def _window(made: Path) -> tuple[float, float]:
    """CPU and wall seconds from the start of the process to the painted window."""
    command = [sys.executable, "-m", "app", "--verbose", "--data-dir", str(made / "data"), "--demo"]
    said: list[str] = []
    environment = _environment(made)
    began = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None  # a pipe
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
    """Environment variables of the app; it writes byte code to its own folder, even if this process must not write any."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "QT_QPA_PLATFORM": "offscreen", "PYTHONPYCACHEPREFIX": str(made / "compiled")}


VIEW_ROW = "view"


def view(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Runs `benchmarks.children.view` and compares its findings with the bars."""
    tell(VIEW_ROW)
    found = measure_view(sizes.view_tokens, sizes.view_sessions, sizes.view_turns)
    return Findings(verdicts=view_verdicts(case, found, sizes)) if found else Findings()


def measure_view(tokens: int, sessions: int, turns: int) -> dict[str, list[float]]:
    """Frames by name in milliseconds; empty, with a line on stderr, if the widgets cannot be shown."""
    raw = measure_in_child("benchmarks.children.view", tokens, sessions, turns, what="the window's speed was")
    return {name: frames if isinstance(frames, list) else [float(frames)] for name, frames in raw.items()}


def view_verdicts(case: Case, found: dict[str, list[float]], sizes: Sizes) -> tuple[BarVerdict, ...]:
    """The figures of the widgets with their bars."""
    long = f"{sizes.view_tokens:,} tokens"
    return tuple(
        case.verdict(VIEW_ROW, what, figure, bar)
        for what, figure, bar in (
            (f"ms: append {long}, median frame", _percentile(found["append_paragraphs"], 50), 1.0),
            (f"ms: append {long}, p99 frame", _percentile(found["append_paragraphs"], 99), 8.0),
            (f"ms: append {long} in one paragraph, median frame", _percentile(found["append_one"], 50), 1.0),
            (f"ms: append {long} in one paragraph, p99 frame", _percentile(found["append_one"], 99), 8.0),
            (f"MB held for {long} with top-10 columns", max(found["rss_paragraphs"][0], found["rss_one"][0]) / 1e6, 30.0),
            ("ms: the mouse moves, mean", fmean(found["move"]), 0.1),
            (f"ms: scroll anywhere in {long}, p99", _percentile(found["scroll"], 99), 16.0),
            ("ms: other colours, longest", max(found["switch"]), 50.0),
            ("ms: a slider of Why over the stored head, median", _percentile(found["slider_head"], 50), 10.0),
            ("ms: a slider of Why over a row of 50,000, median", _percentile(found["slider_row"], 50), 10.0),
            (f"ms: scroll anywhere in {sizes.view_sessions:,} sessions, p99", _percentile(found["list_scroll"], 99), 16.0),
            (f"ms: the whole tree of {sizes.view_turns:,} turns shows, median", _percentile(found["tree_show"], 50), 100.0),
        )
    )


def _percentile(frames: Sequence[float], percent: float) -> float:
    return float(np.percentile(frames, percent))


WINDOW_ROW = "window"
P99_MS, MAX_MS = 16.0, 50.0
TYPED_BAR = 1.1  # wait after typed words over that after choosing an alternative
CARD_MS = 30.0
IDLE = "idle"
LIMIT = "the same of a window that has nothing to do"


def window(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Runs `benchmarks.children.window` and compares the gaps of its 5 ms timer with the bars."""
    tell(WINDOW_ROW)
    found = measure_window(case, sizes)
    return Findings(verdicts=window_verdicts(case, found, sizes)) if found else Findings()


def measure_window(case: Case, sizes: Sizes) -> dict[str, list[float]]:
    """Milliseconds between ticks, by scene, and waits; empty, with a line on stderr, if no window opens."""
    asked = (case.folder, case.backend, sizes.window_turns, sizes.window_prompt, sizes.window_seconds, sizes.window_laps)
    return measure_in_child("benchmarks.children.window", *asked, what="the event loop of the whole window was")


def window_verdicts(case: Case, found: Mapping[str, Sequence[float]], sizes: Sizes) -> tuple[BarVerdict, ...]:
    """The 99th percentile and the longest gap of each scene with their bars; their limit is that of the idle window."""
    scenes = (
        ("stream", "a model streams"),
        ("prefill", f"a prompt of {sizes.window_prompt:,} tokens prefills"),
        ("open", f"a session of {sizes.window_turns:,} turns opens"),
        ("export", f"a session of {sizes.window_turns:,} turns is exported"),
    )
    _, idle_p99, idle_most = gaps_of(found[IDLE])
    rows: list[BarVerdict] = []
    for name, words in scenes:
        _, p99, most = gaps_of(found[name])
        for which, figure, bar, least in (("p99", p99, P99_MS, idle_p99), ("longest", most, MAX_MS, idle_most)):
            what = f"ms: {words}, {which} gap of a 5 ms timer"
            rows.append(case.verdict(WINDOW_ROW, what, figure, bar, limit=Limit(least, LIMIT)))
    typed, alternative = (median(found[name]) for name in ("typed", "alternative"))
    what = f"times an alternative's {alternative:.0f} ms: the first token after typed words"
    rows.append(case.verdict(WINDOW_ROW, what, typed / alternative, TYPED_BAR))
    card = median(found["card"])
    what = "ms: a click on a token pins its card, painted, median"
    rows.append(case.verdict(WINDOW_ROW, what, card, CARD_MS))
    return tuple(rows)


LATENCY_ROW = "W8 event loop"
NOTHING, SPAWNED, INSIDE = "nothing runs", "engine process", "in process"
SPAWNED_P99_MS, SPAWNED_MAX_MS, INSIDE_P99_MS = 16.0, 50.0, 40.0
WARM_UP_SECONDS = 0.2
LOOP_LIMIT = "the same of an event loop that has nothing to do"

Windows = Sequence[Sequence[float]]  # per window of time, the milliseconds between its ticks


def latency(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """W8: gaps of an event loop that is idle, that uses a spawned engine, and that uses a model on a thread of this process.

    Each is measured for several windows of time. The figures with bars are medians over the windows; the table of gaps
    combines all ticks.
    """
    return asyncio.run(_latency(case, [sizes.latency_seconds] * sizes.latency_windows, tell))


async def _latency(case: Case, windows: Sequence[float], tell: Told) -> Findings:
    tell(f"{LATENCY_ROW}: {NOTHING}")
    idle = [await ticks(seconds) for seconds in windows]
    tell(f"{LATENCY_ROW}: {SPAWNED}, loading")
    async with await spawn(case.folder, case.backend, **one_thread(case.backend)) as engine:
        tell(f"{LATENCY_ROW}: {SPAWNED}")
        spawned, spawned_work = await _beside(engine, windows)
    tell(f"{LATENCY_ROW}: {INSIDE}, loading")
    model = await asyncio.to_thread(load, case.folder, case.backend, **one_thread(case.backend))
    async with model:
        tell(f"{LATENCY_ROW}: {INSIDE}")
        inside, inside_work = await _beside(model, windows)
    found = ((NOTHING, idle, ""), (SPAWNED, spawned, spawned_work), (INSIDE, inside, inside_work))
    return Findings(
        gaps=tuple(_gaps(case, who, ticked, work) for who, ticked, work in found),
        verdicts=latency_verdicts(case, idle, spawned, inside),
    )


def latency_verdicts(case: Case, idle: Windows, spawned: Windows, inside: Windows) -> tuple[BarVerdict, ...]:
    """Medians over the windows with their bars; the limit is that of the idle event loop."""

    def verdict(who: str, name: str, place: int, ticked: Windows, bar: float) -> BarVerdict:
        figure, least = (median(gaps_of(window)[place] for window in windows) for windows in (ticked, idle))
        what = f"{who}: {name} ms, median of {len(ticked)} windows (the most: {max(gaps_of(w)[place] for w in ticked):.1f})"
        return case.verdict(LATENCY_ROW, what, figure, bar, limit=Limit(least, LOOP_LIMIT))

    return (
        verdict(SPAWNED, "p99", 1, spawned, SPAWNED_P99_MS),
        verdict(SPAWNED, "longest", 2, spawned, SPAWNED_MAX_MS),
        verdict(INSIDE, "p99", 1, inside, INSIDE_P99_MS),
    )


async def _beside(model: LanguageModel, windows: Sequence[float]) -> tuple[Windows, str]:
    """The ticks while all tasks run, and the completed tasks by kind; a short run before warms up."""
    await Everything(model).run(WARM_UP_SECONDS)
    everything = Everything(model)
    work = asyncio.create_task(everything.run(sum(windows)))
    found = [await ticks(seconds) for seconds in windows]
    await work
    return found, ", ".join(f"{name} {count}" for name, count in everything.finished.items())


def _gaps(case: Case, who: str, windows: Windows, work: str) -> Gaps:
    found = list(chain.from_iterable(windows))
    middle, p99, longest = gaps_of(found)
    return Gaps(LATENCY_ROW, case.backend, case.model, who, middle, p99, longest, len(found), work)
