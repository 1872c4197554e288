"""Per-token overhead: what a step takes beyond the model's forward and the making of its record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median

import numpy as np

from app.bench.clock import Lap, Told, take_turns
from app.bench.findings import Case, Findings, Limit, Verdict, timing
from app.bench.forwards import FORWARDS, LIMIT
from app.bench.our_streams import our_streams
from app.bench.parts.decode import peer_streams
from app.bench.sizes import Sizes

ROW = "overhead"
BAR_MS = 0.3
TURNS = 3  # times as many as elsewhere: a lap is short
FLAT_MS = 0.1  # by which the longest context may exceed the shortest: "flat"
OURS, LOOP = "elsewise", "bare loop, records"


def overhead(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """One stream at several lengths of context, against a loop that does nothing but forward and record.

    The loop's KV grows in place and its records are made by torch or numpy alone, so that the difference is what
    Elsewise adds: scheduling, drawing, the way to the caller, and whatever makes its records dearer.
    """
    rng = np.random.default_rng(8)
    n = sizes.overhead_tokens
    tell("overhead: loading")
    ours, peer = our_streams(case), peer_streams(case)
    ours.settle([rng.integers(case.vocabulary, size=sizes.contexts[0]).tolist()])
    contenders: dict[tuple[int, str], Callable[[], Lap]] = {}
    for context in sizes.contexts:  # all lengths take turns: the difference between two is that of one moment
        prompt: list[int] = rng.integers(case.vocabulary, size=context).tolist()
        decode = partial(ours.decode, [prompt], n, warm=True)
        contenders[context, OURS] = decode
        contenders[context, LOOP] = partial(peer.at_depth(prompt), n)
        contenders[context, FORWARDS] = partial(ours.forwards, decode)
    named = {f"{_part(context)}, {who}": run for (context, who), run in contenders.items()}
    found = take_turns(named, TURNS * sizes.rounds, tell, warm_up=True)
    laps = dict(zip(contenders, found.values(), strict=True))
    timings = [timing(_part(context), case, who, each) for (context, who), each in laps.items()]
    shortest, longest = sizes.contexts[0], sizes.contexts[-1]
    added, least = ([_beyond_loop(laps, who, context) for context in (shortest, longest)] for who in (OURS, FORWARDS))
    grown, growth = ([b - a for a, b in zip(*each, strict=True)] for each in (added, least))
    verdicts = (
        _verdict(case, f"ms a token at context {longest:,}", median(added[1]), BAR_MS, median(least[1])),
        _verdict(case, f"ms more than at context {shortest:,}", median(grown), FLAT_MS, median(growth)),
    )
    return Findings(timings=tuple(timings), verdicts=verdicts)


def _verdict(case: Case, what: str, figure: float, bar: float, least: float) -> Verdict:
    limit = Limit(least, f"{LIMIT}, against the loop with its records")
    return Verdict(ROW, case.backend, case.model, what, figure, bar, at_least=False, limit=limit)


def _part(context: int) -> str:
    return f"{ROW} at {context:,}"


def _beyond_loop(laps: Mapping[tuple[int, str], Sequence[Lap]], who: str, context: int) -> list[float]:
    """Milliseconds of a step beyond those of the loop, turn by turn."""
    pairs = zip(laps[context, who], laps[context, LOOP], strict=True)
    return [_step_ms(ours) - _step_ms(loop) for ours, loop in pairs]


def _step_ms(lap: Lap) -> float:
    return lap.wall_seconds / lap.tokens * 1000
