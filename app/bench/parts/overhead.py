"""Per-token overhead: what a step takes beyond the model's forward and the making of its record."""

from __future__ import annotations

from functools import partial
from statistics import median

import numpy as np

from app.bench.clock import Lap, Told, take_turns
from app.bench.findings import Case, Findings, Limit, Timing, Verdict, timing
from app.bench.forwards import FORWARDS, LIMIT
from app.bench.our_streams import our_streams
from app.bench.parts.decode import peer_streams
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
    added, least = list[float](), list[float]()  # ms at each length
    n = sizes.overhead_tokens
    tell("overhead: loading")
    ours, peer = our_streams(case), peer_streams(case)
    ours.settle([rng.integers(case.vocabulary, size=sizes.contexts[0]).tolist()])
    for context in sizes.contexts:
        prompt: list[int] = rng.integers(case.vocabulary, size=context).tolist()
        decode = partial(ours.decode, [prompt], n, warm=True)
        contenders = {OURS: decode, LOOP: partial(peer.at_depth(prompt), n), FORWARDS: partial(ours.forwards, decode)}
        part = f"{ROW} at {context:,}"
        laps = take_turns(contenders, sizes.rounds, partial(_tell, tell, part), warm_up=True)
        timings += [timing(part, case, who, each) for who, each in laps.items()]
        for who, above in ((OURS, added), (FORWARDS, least)):
            above.append(median(_step_ms(a) - _step_ms(b) for a, b in zip(laps[who], laps[LOOP], strict=True)))
    what = f"ms a token at context {sizes.contexts[-1]:,}"
    flat = f"ms more than at context {sizes.contexts[0]:,}"
    verdicts = (
        _verdict(case, what, added[-1], BAR_MS, least[-1]),
        _verdict(case, flat, added[-1] - added[0], FLAT_MS, least[-1] - least[0]),
    )
    return Findings(timings=tuple(timings), verdicts=verdicts)


def _verdict(case: Case, what: str, figure: float, bar: float, least: float) -> Verdict:
    limit = Limit(least, f"{LIMIT}, against the loop with its records")
    return Verdict(ROW, case.backend, case.model, what, figure, bar, at_least=False, limit=limit)


def _tell(tell: Told, part: str, who: str) -> None:
    tell(f"{part}, {who}")


def _step_ms(lap: Lap) -> float:
    return lap.wall_seconds / lap.tokens * 1000
