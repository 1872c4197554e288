"""The whole window: how long its event loop is away while sessions open, prompts prefill, models stream, files are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.child import found_by
from benchmarks.clock import Told
from benchmarks.findings import Case, Findings, Limit, Verdict
from benchmarks.gaps import gaps_of
from benchmarks.sizes import Sizes

ROW = "window"
P99_MS, MAX_MS = 16.0, 50.0
IDLE = "idle"
LIMIT = "the same of a window that has nothing to do"


def window(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Runs `benchmarks.window`, and holds the gaps of its 5 ms timer against the bars."""
    tell(ROW)
    found = measure(case, sizes)
    return Findings(verdicts=verdicts(case, found, sizes)) if found else Findings()


def measure(case: Case, sizes: Sizes) -> dict[str, list[float]]:
    """Milliseconds between ticks by what happened meanwhile; empty, with a line on stderr, where no window opens."""
    asked = (case.folder, case.backend, sizes.window_turns, sizes.window_prompt, sizes.window_seconds, sizes.window_laps)
    return found_by("benchmarks.window", *asked, what="the event loop of the whole window was")


def verdicts(case: Case, found: Mapping[str, Sequence[float]], sizes: Sizes) -> tuple[Verdict, ...]:
    """The 99th percentile and the longest of each scene beside their bars, and beside those of the idle window."""
    scenes = (
        ("stream", "a model streams"),
        ("prefill", f"a prompt of {sizes.window_prompt:,} tokens prefills"),
        ("open", f"a session of {sizes.window_turns:,} turns opens"),
        ("export", f"a session of {sizes.window_turns:,} turns is exported"),
    )
    _, idle_p99, idle_most = gaps_of(found[IDLE])
    rows: list[Verdict] = []
    for name, words in scenes:
        _, p99, most = gaps_of(found[name])
        for which, figure, bar, least in (("p99", p99, P99_MS, idle_p99), ("longest", most, MAX_MS, idle_most)):
            what = f"ms: {words}, {which} gap of a 5 ms timer"
            rows.append(Verdict(ROW, case.backend, case.model, what, figure, bar, at_least=False, limit=Limit(least, LIMIT)))
    return tuple(rows)
