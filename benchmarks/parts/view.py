"""The window's own speed without a screen: a long stream, the mouse, scrolling, colours, a long list of sessions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from benchmarks.child import found_by
from benchmarks.clock import Told
from benchmarks.findings import Case, Findings, Verdict
from benchmarks.sizes import Sizes

ROW = "view"


def view(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Runs `benchmarks.view`, and holds what it says against the bars."""
    tell(ROW)
    found = measure(sizes.view_tokens, sizes.view_sessions)
    return Findings(verdicts=verdicts(case, found, sizes)) if found else Findings()


def measure(tokens: int, sessions: int) -> dict[str, list[float]]:
    """Frames by name in milliseconds; empty, with a line on stderr, where the widgets cannot be shown."""
    raw = found_by("benchmarks.view", tokens, sessions, what="the window's speed was")
    return {name: frames if isinstance(frames, list) else [float(frames)] for name, frames in raw.items()}


def verdicts(case: Case, found: dict[str, list[float]], sizes: Sizes) -> tuple[Verdict, ...]:
    """The figures beside their bars."""
    long = f"{sizes.view_tokens:,} tokens"
    return tuple(
        Verdict(ROW, case.backend, case.model, what, figure, bar, at_least=False)
        for what, figure, bar in (
            (f"ms: append {long}, median frame", _share(found["append_paragraphs"], 50), 1.0),
            (f"ms: append {long}, p99 frame", _share(found["append_paragraphs"], 99), 8.0),
            (f"ms: append {long} in one paragraph, median frame", _share(found["append_one"], 50), 1.0),
            (f"ms: append {long} in one paragraph, p99 frame", _share(found["append_one"], 99), 8.0),
            (f"MB held for {long} with top-10 columns", max(found["rss_paragraphs"][0], found["rss_one"][0]) / 1e6, 30.0),
            ("ms: the mouse moves, mean", fmean(found["move"]), 0.1),
            (f"ms: scroll anywhere in {long}, p99", _share(found["scroll"], 99), 16.0),
            ("ms: other colours, longest", max(found["switch"]), 50.0),
            ("ms: a slider of Why over the stored head, median", _share(found["slider_head"], 50), 10.0),
            ("ms: a slider of Why over a row of 50,000, median", _share(found["slider_row"], 50), 10.0),
            (f"ms: scroll anywhere in {sizes.view_sessions:,} sessions, p99", _share(found["list_scroll"], 99), 16.0),
        )
    )


def _share(frames: Sequence[float], percent: float) -> float:
    return float(np.percentile(frames, percent))
