"""Many at once: eight continuations of one prompt, and beam search."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial

import numpy as np

from benchmarks.clock import Lap, Told, cpu, speed, take_turns
from benchmarks.findings import Case, Findings, Limit, Verdict, timing
from benchmarks.forwards import FORWARDS, LIMIT
from benchmarks.our_branches import OurBranches
from benchmarks.sizes import Sizes

TOKENS, BRANCHES, BEAMS = "many tokens", "many branches", "many beams"
N, WIDTH = 8, 4
OURS, PEER = "elsewise", "transformers.generate"

Run = Callable[[], Lap]


def many(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Tokens computed for eight branches, against each token needed once; on hf the cpu-seconds beside transformers as well.

    Needed are the prefix and every token of a branch but its last, which nobody asks what follows: prefix + 8 x (new - 1), or
    fewer where branches begin alike.
    """
    rng = np.random.default_rng(9)
    prompt: list[int] = rng.integers(case.vocabulary, size=sizes.many_prompt).tolist()
    n = sizes.many_tokens
    tell("many: loading")
    with closing(OurBranches(case.folder, case.backend)) as ours:
        ours.branches(prompt, N, n)
        figure, what = ours.computed / ours.needed, f"computed / needed (prefix {len(prompt)} + 8 x {n - 1}, shared ones once)"
        counted = Verdict(TOKENS, case.backend, case.model, what, figure, 1.0, at_least=False, timed=False)
        if case.backend != "hf":  # mlx_lm has neither
            return Findings(verdicts=(counted,))
        from benchmarks.peers.torch_branches import TorchBranches

        with closing(TorchBranches(case.folder)) as peer:
            parts: dict[str, dict[str, Run]] = {
                BRANCHES: {OURS: partial(ours.branches, prompt, N, n), PEER: partial(peer.branches, prompt, N, n)},
                BEAMS: {OURS: partial(ours.beams, prompt, WIDTH, n), PEER: partial(peer.beams, prompt, WIDTH, n)},
            }
            found = Findings(verdicts=(counted,))
            for part, runs in parts.items():
                runs[FORWARDS] = partial(ours.forwards, runs[OURS])
                laps = take_turns(runs, sizes.rounds, partial(_tell, tell, part), warm_up=True)
                share, least = (speed(laps[PEER], laps[who], cpu) for who in (OURS, FORWARDS))  # ours by theirs
                verdict = Verdict(
                    part, case.backend, case.model, f"cpu / {PEER}", share, 1.0, at_least=False, limit=Limit(least, LIMIT)
                )
                found += Findings(
                    timings=tuple(timing(part, case, who, own) for who, own in laps.items()),
                    verdicts=(verdict,),
                )
    return found


def _tell(tell: Told, part: str, who: str) -> None:
    tell(f"{part}, {who}")
