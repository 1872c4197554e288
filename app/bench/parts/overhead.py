"""Per-token overhead: what a step takes beyond the model's forward and the making of its record."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from statistics import median

import numpy as np

from app.bench.clock import Lap, Told, take_turns
from app.bench.findings import Case, Findings, Timing, Verdict, timing
from app.bench.our_streams import OurStreams
from app.bench.parts.decode import open_streams
from app.bench.sizes import Sizes

ROW = "overhead"
BAR_MS = 0.3
FLAT_MS = 0.1  # by which the longest context may exceed the shortest: "flat"
OURS, LOOP = "elsewise", "bare loop, records"


def overhead(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """One stream at several lengths of context, against a loop that does nothing but forward and record.

    The loop's KV grows in place and its records are made by torch or numpy alone, so that the difference is what
    Elsewise adds: scheduling, drawing, the way to the caller, and whatever makes its records dearer.
    """
    rng = np.random.default_rng(8)
    timings: list[Timing] = []
    added: list[float] = []
    n = sizes.overhead_tokens
    tell("overhead: loading")
    with closing(OurStreams(case.folder, case.backend)) as ours, closing(open_streams(case)) as peer:
        for context in sizes.contexts:
            prompt: list[int] = rng.integers(case.vocabulary, size=context).tolist()
            contenders = {
                OURS: partial(ours.decode, [prompt], n, warm=True),
                LOOP: partial(peer.at_depth(prompt), n),
            }
            part = f"{ROW} at {context:,}"
            laps = take_turns(contenders, sizes.rounds, partial(_tell, tell, part), warm_up=True)
            timings += [timing(part, case, who, each) for who, each in laps.items()]
            added.append(median(_step_ms(a) - _step_ms(b) for a, b in zip(laps[OURS], laps[LOOP], strict=True)))
    what = f"ms a token at context {sizes.contexts[-1]:,}"
    flat = f"ms more than at context {sizes.contexts[0]:,}"
    verdicts = (
        Verdict(ROW, case.backend, case.model, what, added[-1], BAR_MS, at_least=False),
        Verdict(ROW, case.backend, case.model, flat, added[-1] - added[0], FLAT_MS, at_least=False),
    )
    return Findings(timings=tuple(timings), verdicts=verdicts)


def _tell(tell: Told, part: str, who: str) -> None:
    tell(f"{part}, {who}")


def _step_ms(lap: Lap) -> float:
    return lap.wall_seconds / lap.tokens * 1000
