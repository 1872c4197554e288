"""W1 and W5 on a recurrent model, whose chains cannot form a tree: as rows of one forward against one by one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from app.bench.clock import Lap, Told, cpu, speed, take_turns
from app.bench.findings import Case, Findings, Verdict, timing
from app.bench.measure import measure
from app.bench.our_streams import OurStreams
from app.bench.ours import Ours
from app.bench.parts.decode import STREAMS
from app.bench.sizes import Sizes
from app.bench.tiny_recurrent import make_recurrent

EIGHT, PARTICLES = "W5 eight streams, recurrent", "W1 particles, recurrent"
MODEL = "tiny-lfm2"
TOGETHER, ALONE = "rows of one forward", "one by one"
BARS = {EIGHT: 2.5, PARTICLES: 1.5}  # times the speed of chains one by one, by cpu-seconds

Run = Callable[[], Lap]


def rows(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Both ways in turns, on a model that is made for it; streams start from prompts of different length."""
    with tempfile.TemporaryDirectory(prefix="elsewise-bench-") as made:
        folder = Path(made) / MODEL
        tell(f"{EIGHT}: loading")
        own = Case(case.backend, MODEL, folder, make_recurrent(folder))
        with closing(OurStreams(folder, case.backend)) as ours:
            rng = np.random.default_rng(5)
            lengths = range(sizes.decode_prompt, sizes.decode_prompt + STREAMS)
            prompts: list[list[int]] = [rng.integers(own.vocabulary, size=n).tolist() for n in lengths]
            eight = _both(ours, partial(ours.decode, prompts, sizes.decode_tokens), sizes, lambda who: tell(f"{EIGHT}, {who}"))
        with closing(Ours(folder, case.backend)) as subject:
            lap = partial(_particles, subject, own, sizes)
            steered = _both(subject, lap, sizes, lambda who: tell(f"{PARTICLES}, {who}"))
    found = Findings()
    for part, laps in ((EIGHT, eight), (PARTICLES, steered)):
        figure = speed(laps[TOGETHER], laps[ALONE], cpu)
        found += Findings(
            timings=tuple(timing(part, own, who, each) for who, each in laps.items()),
            verdicts=(
                Verdict(part, own.backend, own.model, f"{TOGETHER}: cpu speed / {ALONE}", figure, BARS[part], at_least=True),
            ),
        )
    return found


def _both(owner: Any, run: Run, sizes: Sizes, tell: Told) -> dict[str, list[Lap]]:
    """Laps of both ways; the slow one is what the self-test falls back to, and has no option of its own."""
    backend = owner._model._engine.backend  # noqa: SLF001  # nothing public switches it: there is no use in it but this one

    def lap(*, together: bool) -> Lap:
        backend.buckets = together
        return run()

    ways = {TOGETHER: partial(lap, together=True), ALONE: partial(lap, together=False)}
    return take_turns(ways, sizes.rounds, tell, warm_up=True)


def _particles(subject: Ours, case: Case, sizes: Sizes) -> Lap:
    result = measure(sizes.workloads(case.vocabulary)[0], subject, backend=case.backend, model=case.model)
    return Lap(result.tokens, result.cpu_seconds, result.wall_seconds, result.outcome)
