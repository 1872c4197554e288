"""Many at once: eight continuations of one prompt, and beam search."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial

import numpy as np

from app.bench.clock import Lap, Told, cpu, speed, take_turns
from app.bench.findings import Case, Findings, Verdict, timing
from app.bench.our_branches import OurBranches
from app.bench.sizes import Sizes

TOKENS, BRANCHES, BEAMS = "many tokens", "many branches", "many beams"
N, WIDTH = 8, 4
OURS, PEER = "elsewise", "transformers.generate"

Run = Callable[[], Lap]


def many(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Tokens computed for eight branches against prefix + 8 x new; on hf the cpu-seconds beside transformers as well."""
    rng = np.random.default_rng(9)
    prompt: list[int] = rng.integers(case.vocabulary, size=sizes.many_prompt).tolist()
    n = sizes.many_tokens
    tell("many: loading")
    with closing(OurBranches(case.folder, case.backend)) as ours:
        ours.branches(prompt, N, n)
        figure = ours.computed / (len(prompt) + N * n)
        counted = Verdict(
            TOKENS, case.backend, case.model, "computed / (prefix + 8 x new)", figure, 1.0, at_least=False, timed=False
        )
        if case.backend != "hf":  # mlx_lm has neither
            return Findings(verdicts=(counted,))
        from app.bench.peers.torch_branches import TorchBranches

        with closing(TorchBranches(case.folder)) as peer:
            parts: dict[str, dict[str, Run]] = {
                BRANCHES: {OURS: partial(ours.branches, prompt, N, n), PEER: partial(peer.branches, prompt, N, n)},
                BEAMS: {OURS: partial(ours.beams, prompt, WIDTH, n), PEER: partial(peer.beams, prompt, WIDTH, n)},
            }
            found = Findings(verdicts=(counted,))
            for part, runs in parts.items():
                laps = take_turns(runs, sizes.rounds, partial(_tell, tell, part), warm_up=True)
                ratio = speed(laps[PEER], laps[OURS], cpu)  # ours by theirs
                found += Findings(
                    timings=tuple(timing(part, case, who, own) for who, own in laps.items()),
                    verdicts=(Verdict(part, case.backend, case.model, f"cpu / {PEER}", ratio, 1.0, at_least=False),),
                )
    return found


def _tell(tell: Told, part: str, who: str) -> None:
    tell(f"{part}, {who}")
