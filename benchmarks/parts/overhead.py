"""Per-token overhead: what a step takes beyond the model's forward and the making of its record."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np

from benchmarks.clock import Lap, Told, take_turns
from benchmarks.findings import Case, Findings, Verdict, timing
from benchmarks.forwards import FORWARDS, REST
from benchmarks.our_streams import our_streams
from benchmarks.parts.decode import peer_streams
from benchmarks.sizes import Sizes

ROW = "overhead"
BAR_MS = 0.3
TURNS = 3  # times as many as elsewhere: a lap is short
FLAT_MS = 0.1  # by which the longest context may exceed the shortest: "flat"
OURS, RECORDS = "elsewise", "records alone"


def overhead(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """One stream at several lengths of context: what a step takes beyond its forward and its record.

    A forward's time is that of one that is waited for, a record's what torch or numpy alone take for one. What is left is what
    Elsewise adds: scheduling, drawing, the way to the caller, and whatever makes its records dearer. On mlx most of that is
    done while the next forward runs. Whether it grows with the context is told by laps in which nothing hides behind a forward:
    each forward's time is taken off that of the very step it was in.
    """
    rng = np.random.default_rng(8)
    n = sizes.overhead_tokens
    tell("overhead: loading")
    ours, peer = our_streams(case), peer_streams(case)
    shortest, longest = sizes.contexts[0], sizes.contexts[-1]
    prompts: dict[int, list[int]] = {each: rng.integers(case.vocabulary, size=each).tolist() for each in sizes.contexts}
    contenders: dict[tuple[str, str], Callable[[], Lap]] = {}
    for context, prompt in prompts.items():  # all lengths take turns: the difference between two is that of one moment
        decode = partial(ours.decode, [prompt], n, warm=True)
        contenders[_part(context), OURS] = decode
        contenders[_part(context), FORWARDS] = partial(ours.forwards, decode)
        contenders[_part(context), REST] = partial(ours.rest, decode)
    contenders[ROW, RECORDS] = partial(peer.records(prompts[shortest]), n)
    named = {f"{part}, {who}": run for (part, who), run in contenders.items()}
    found = take_turns(named, TURNS * sizes.rounds, tell, warm_up=True)
    laps = dict(zip(contenders, found.values(), strict=True))
    timings = tuple(timing(part, case, who, each) for (part, who), each in laps.items())

    def ms(part: str, who: str) -> list[float]:
        return [lap.wall_seconds / lap.tokens * 1000 for lap in laps[part, who]]

    near, far = _part(shortest), _part(longest)
    steps = zip(ms(far, OURS), ms(far, FORWARDS), ms(ROW, RECORDS), strict=True)
    added = median(step - forward - record for step, forward, record in steps)
    grown = median(b - a for a, b in zip(ms(near, REST), ms(far, REST), strict=True))
    return Findings(
        timings=timings,
        verdicts=(
            _verdict(case, f"ms a token at context {longest:,}, less its forward and record", added, BAR_MS),
            _verdict(case, f"ms more than at context {shortest:,}, nothing hidden", grown, FLAT_MS),
        ),
    )


def _verdict(case: Case, what: str, figure: float, bar: float) -> Verdict:
    return Verdict(ROW, case.backend, case.model, what, figure, bar, at_least=False)


def _part(context: int) -> str:
    return f"{ROW} at {context:,}"
