"""W6: the scores of a text nobody has seen."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import numpy as np

from app.bench.clock import Told, cpu, speed, take_turns
from app.bench.findings import Case, Findings, Verdict, timing
from app.bench.our_streams import OurStreams
from app.bench.parts.decode import open_streams
from app.bench.sizes import Sizes

ROW = "W6 score"
CPU_BAR = 1.2
OURS, BARE = "elsewise", "bare forward, log-softmax, top-k"


def score(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """All positions of one text, against one forward over it."""
    ids: list[int] = np.random.default_rng(6).integers(case.vocabulary, size=sizes.score_tokens).tolist()
    tell(f"{ROW}: loading")
    with closing(OurStreams(case.folder, case.backend)) as ours, closing(open_streams(case)) as peer:
        before = ours.tokens_computed
        ours.score(ids)
        pushed = ours.tokens_computed - before
        contenders = {OURS: partial(ours.score, ids), BARE: partial(peer.score, ids)}
        laps = take_turns(contenders, sizes.rounds, lambda who: tell(f"{ROW}, {who}"), warm_up=True)
    verdicts = (
        Verdict(ROW, case.backend, case.model, "tokens computed / tokens", pushed / len(ids), 1.0, at_least=False, timed=False),
        Verdict(
            ROW, case.backend, case.model, f"cpu / {BARE}", 1 / speed(laps[OURS], laps[BARE], cpu), CPU_BAR, at_least=False
        ),
    )
    return Findings(timings=tuple(timing(ROW, case, who, each) for who, each in laps.items()), verdicts=verdicts)
