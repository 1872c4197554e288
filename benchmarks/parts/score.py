"""W6: the scores of a text nobody has seen."""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks.clock import Told, cpu, speed, take_turns
from benchmarks.findings import Case, Findings, Limit, Verdict, timing
from benchmarks.forwards import FORWARDS, LIMIT
from benchmarks.our_streams import our_streams
from benchmarks.parts.decode import peer_streams
from benchmarks.sizes import Sizes

ROW = "W6 score"
CPU_BAR = 1.2
OURS, BARE = "elsewise", "bare forward, log-softmax, top-k"


def score(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """All positions of one text, against one forward over it."""
    ids: list[int] = np.random.default_rng(6).integers(case.vocabulary, size=sizes.score_tokens).tolist()
    tell(f"{ROW}: loading")
    ours, peer = our_streams(case), peer_streams(case)
    before = ours.tokens_computed
    score_it = partial(ours.score, ids)
    score_it()
    pushed = ours.tokens_computed - before
    contenders = {OURS: score_it, BARE: partial(peer.score, ids), FORWARDS: partial(ours.forwards, score_it)}
    laps = take_turns(contenders, sizes.rounds, lambda who: tell(f"{ROW}, {who}"), warm_up=True)
    share, least = (1 / speed(laps[who], laps[BARE], cpu) for who in (OURS, FORWARDS))
    limit = Limit(least, LIMIT)
    verdicts = (
        Verdict(ROW, case.backend, case.model, "tokens computed / tokens", pushed / len(ids), 1.0, at_least=False, timed=False),
        Verdict(ROW, case.backend, case.model, f"cpu / {BARE}", share, CPU_BAR, at_least=False, limit=limit),
    )
    return Findings(timings=tuple(timing(ROW, case, who, each) for who, each in laps.items()), verdicts=verdicts)
