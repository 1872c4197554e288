"""W8: how long the caller's event loop is away while a model is used in every way at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from app.bench.clock import Told
from app.bench.findings import Case, Findings, Gaps, Verdict
from app.bench.gaps import gaps_of, ticks
from app.bench.ours import one_thread
from app.bench.sizes import Sizes
from app.bench.workloads.everything import Everything
from runtime import LanguageModel, load, spawn

ROW = "W8 event loop"
IDLE, SPAWNED, INSIDE = "nothing runs", "engine process", "in process"
SPAWNED_P99_MS, SPAWNED_MAX_MS, INSIDE_P99_MS = 16.0, 50.0, 40.0
WARM_UP_SECONDS = 0.2


def latency(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Idle, beside a spawned engine, beside a model on a thread of this process."""
    return asyncio.run(_latency(case, sizes.latency_seconds, tell))


async def _latency(case: Case, seconds: float, tell: Told) -> Findings:
    tell(f"{ROW}: {IDLE}")
    found = [_gaps(case, IDLE, await ticks(seconds), "")]
    tell(f"{ROW}: {SPAWNED}, loading")
    async with await spawn(case.folder, case.backend, **one_thread(case.backend)) as engine:
        tell(f"{ROW}: {SPAWNED}")
        found.append(_gaps(case, SPAWNED, *await _beside(engine, seconds)))
    tell(f"{ROW}: {INSIDE}, loading")
    model = await asyncio.to_thread(load, case.folder, case.backend, **one_thread(case.backend))
    async with model:
        tell(f"{ROW}: {INSIDE}")
        found.append(_gaps(case, INSIDE, *await _beside(model, seconds)))
    _, spawned, inside = found
    verdicts = (
        Verdict(ROW, case.backend, case.model, f"{SPAWNED}: p99 ms", spawned.p99, SPAWNED_P99_MS, at_least=False),
        Verdict(ROW, case.backend, case.model, f"{SPAWNED}: longest ms", spawned.max, SPAWNED_MAX_MS, at_least=False),
        Verdict(ROW, case.backend, case.model, f"{INSIDE}: p99 ms", inside.p99, INSIDE_P99_MS, at_least=False),
    )
    return Findings(gaps=tuple(found), verdicts=verdicts)


async def _beside(model: LanguageModel, seconds: float) -> tuple[list[float], str]:
    """The ticks while everything runs, and how often each kind of work came round; imports and first chunks go before."""
    await Everything(model).run(WARM_UP_SECONDS)
    everything = Everything(model)
    work = asyncio.create_task(everything.run(seconds))
    found = await ticks(seconds)
    await work
    return found, ", ".join(f"{name} {count}" for name, count in everything.finished.items())


def _gaps(case: Case, who: str, found: Sequence[float], work: str) -> Gaps:
    middle, p99, longest = gaps_of(found)
    return Gaps(ROW, case.backend, case.model, who, middle, p99, longest, len(found), work)
