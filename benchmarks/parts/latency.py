"""W8: how long the caller's event loop is away while a model is used in every way at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from statistics import median

from benchmarks.clock import Told, gaps_of, ticks
from benchmarks.findings import Case, Findings, Gaps, Limit, Verdict
from benchmarks.ours import one_thread
from benchmarks.sizes import Sizes
from benchmarks.workloads import Everything
from runtime import LanguageModel, load, spawn

ROW = "W8 event loop"
IDLE, SPAWNED, INSIDE = "nothing runs", "engine process", "in process"
SPAWNED_P99_MS, SPAWNED_MAX_MS, INSIDE_P99_MS = 16.0, 50.0, 40.0
WARM_UP_SECONDS = 0.2
LIMIT = "the same of an event loop that has nothing to do"

Windows = Sequence[Sequence[float]]  # of each, milliseconds between its ticks


def latency(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Idle, beside a spawned engine, beside a model on a thread of this process.

    Each is watched for several windows of time. A bar is held against the median of what the windows say by themselves; the
    table of gaps has all ticks together, and the longest of all.
    """
    return asyncio.run(_latency(case, [sizes.latency_seconds] * sizes.latency_windows, tell))


async def _latency(case: Case, windows: Sequence[float], tell: Told) -> Findings:
    tell(f"{ROW}: {IDLE}")
    idle = [await ticks(seconds) for seconds in windows]
    tell(f"{ROW}: {SPAWNED}, loading")
    async with await spawn(case.folder, case.backend, **one_thread(case.backend)) as engine:
        tell(f"{ROW}: {SPAWNED}")
        spawned, spawned_work = await _beside(engine, windows)
    tell(f"{ROW}: {INSIDE}, loading")
    model = await asyncio.to_thread(load, case.folder, case.backend, **one_thread(case.backend))
    async with model:
        tell(f"{ROW}: {INSIDE}")
        inside, inside_work = await _beside(model, windows)
    found = ((IDLE, idle, ""), (SPAWNED, spawned, spawned_work), (INSIDE, inside, inside_work))
    return Findings(
        gaps=tuple(_gaps(case, who, ticked, work) for who, ticked, work in found),
        verdicts=verdicts(case, idle, spawned, inside),
    )


def verdicts(case: Case, idle: Windows, spawned: Windows, inside: Windows) -> tuple[Verdict, ...]:
    """What the windows say beside the bars; the limit is what an event loop that has nothing to do says on this machine."""

    def verdict(who: str, name: str, place: int, ticked: Windows, bar: float) -> Verdict:
        figure, least = (median(gaps_of(window)[place] for window in windows) for windows in (ticked, idle))
        what = f"{who}: {name} ms, median of {len(ticked)} windows (the most: {max(gaps_of(w)[place] for w in ticked):.1f})"
        return case.verdict(ROW, what, figure, bar, limit=Limit(least, LIMIT))

    return (
        verdict(SPAWNED, "p99", 1, spawned, SPAWNED_P99_MS),
        verdict(SPAWNED, "longest", 2, spawned, SPAWNED_MAX_MS),
        verdict(INSIDE, "p99", 1, inside, INSIDE_P99_MS),
    )


async def _beside(model: LanguageModel, windows: Sequence[float]) -> tuple[Windows, str]:
    """The ticks while everything runs, and how often each kind of work came round; imports and first chunks go before."""
    await Everything(model).run(WARM_UP_SECONDS)
    everything = Everything(model)
    work = asyncio.create_task(everything.run(sum(windows)))
    found = [await ticks(seconds) for seconds in windows]
    await work
    return found, ", ".join(f"{name} {count}" for name, count in everything.finished.items())


def _gaps(case: Case, who: str, windows: Windows, work: str) -> Gaps:
    found = list(chain.from_iterable(windows))
    middle, p99, longest = gaps_of(found)
    return Gaps(ROW, case.backend, case.model, who, middle, p99, longest, len(found), work)
