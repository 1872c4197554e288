"""W1, W3 and W5 on a recurrent model, whose chains cannot form a tree: as rows of one forward against one by one.

And branches of one long transcript, whose attention layers look into one K/V, against a copy of it for each row.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clock import Lap, Told, cpu, speed, take_turns
from benchmarks.findings import Case, Findings, Verdict, timing
from benchmarks.measure import measure
from benchmarks.our_streams import OurStreams
from benchmarks.ours import Ours
from benchmarks.parts.decode import STREAMS
from benchmarks.sizes import Sizes
from benchmarks.tiny_recurrent import make_recurrent

EIGHT, PARTICLES, BRANCHES = "W5 eight streams, recurrent", "W1 particles, recurrent", "W3 eight branches, recurrent"
MODEL = "tiny-lfm2"
TOGETHER, ALONE = "rows of one forward", "one by one"
SHARED, COPIED = "one prefix", "a copy for each row"
BARS = {EIGHT: 2.5, PARTICLES: 1.5, BRANCHES: 1.3}  # times the speed of the other way, by cpu-seconds

Run = Callable[[], Lap]


def rows(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Both ways in turns, on a model that is made for it; streams start from prompts of different length."""
    with tempfile.TemporaryDirectory(prefix="elsewise-bench-") as made:
        folder = Path(made) / MODEL
        tell(f"{EIGHT}: loading")
        own = Case(case.backend, MODEL, folder, make_recurrent(folder))
        rng = np.random.default_rng(5)
        with closing(OurStreams(folder, case.backend)) as ours:
            lengths = range(sizes.decode_prompt, sizes.decode_prompt + STREAMS)
            prompts: list[list[int]] = [rng.integers(own.vocabulary, size=n).tolist() for n in lengths]
            run = partial(ours.decode, prompts, sizes.decode_tokens)
            found = _both(own, EIGHT, _ways(ours, "buckets", run, (TOGETHER, ALONE)), sizes, tell)
            stem = rng.integers(own.vocabulary, size=sizes.stem).tolist()
            run = partial(ours.decode, [[*stem, token] for token in range(STREAMS)], sizes.decode_tokens, warm=True)
            found += _both(own, BRANCHES, _ways(ours, "shares", run, (SHARED, COPIED)), sizes, tell)
        with closing(Ours(folder, case.backend)) as subject:
            run = partial(_particles, subject, own, sizes)
            found += _both(own, PARTICLES, _ways(subject, "buckets", run, (TOGETHER, ALONE)), sizes, tell)
    return found


def _ways(owner: Any, switch: str, run: Run, names: tuple[str, str]) -> dict[str, Run]:
    """A lap with a switch of the backend on, and off: what the self-test falls back to, which has no option of its own."""
    backend = owner._model._engine.backend  # noqa: SLF001  # nothing public switches it: there is no use in it but this one

    def lap(*, on: bool) -> Lap:
        setattr(backend, switch, on)
        try:
            return run()
        finally:
            setattr(backend, switch, True)

    return {names[0]: partial(lap, on=True), names[1]: partial(lap, on=False)}


def _both(own: Case, part: str, ways: dict[str, Run], sizes: Sizes, tell: Told) -> Findings:
    """The ways in turns, and how much faster the first one is."""
    laps = take_turns(ways, sizes.rounds, lambda who: tell(f"{part}, {who}"), warm_up=True)
    first, second = ways
    figure = speed(laps[first], laps[second], cpu)
    return Findings(
        timings=tuple(timing(part, own, who, each) for who, each in laps.items()),
        verdicts=(Verdict(part, own.backend, own.model, f"{first}: cpu speed / {second}", figure, BARS[part], at_least=True),),
    )


def _particles(subject: Ours, case: Case, sizes: Sizes) -> Lap:
    result = measure(sizes.workloads(case.vocabulary)[0], subject, backend=case.backend, model=case.model)
    return Lap(result.tokens, result.cpu_seconds, result.wall_seconds, result.outcome)
