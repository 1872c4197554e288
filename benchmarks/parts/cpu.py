"""Decoding on a processor: float32 beside the library's own, weights in fewer bits, and what reading the weights takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clock import Lap, Stopwatch, Told, speed, take_turns, wall
from benchmarks.findings import EMBEDDED, Case, Findings, Limit, Reading, Verdict, timing
from benchmarks.forwards import FORWARDS
from benchmarks.our_streams import OurStreams
from benchmarks.parts.decode import GENERATE, LOOP, LOOP_RECORDS, OURS, one_stream, peer_streams
from benchmarks.sizes import Sizes
from runtime import list_models

ROW = "cpu"
FORMS = ("float16", "int8", "int4")
PACKED_BAR, FIRST_BAR = 1.8, 3.0  # times transformers.generate; seconds
READ = "reading the float32 weights once, and nothing else"
AT_MEMORY_SPEED = "its weights' bytes at the speed of memory, as the float32 ones were read in the same run"
FIRST = "from the shelf to the first token"
READS = 3  # of all weights, a lap


def cpu(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """On the embedded model in a full run, on the case's in a quick one; one thread for everybody. hf alone."""
    if case.backend != "hf":
        return Findings()
    case = _embedded(case) if sizes.reopen_embedded else replace(case, loaded=type(case.loaded)())
    with closing(case.loaded):
        return _measured(case, sizes, tell)


def _embedded(case: Case) -> Case:
    entry = next((entry for entry in list_models() if entry.name == EMBEDDED), None)
    folder = Path(EMBEDDED) if entry is None else entry.path  # loading says what is missing
    return replace(case, model=EMBEDDED, folder=folder, loaded=type(case.loaded)())


def _measured(case: Case, sizes: Sizes, tell: Told) -> Findings:
    tell(f"{ROW}: loading")
    peer: Any = peer_streams(case)
    forms = {form: _packed(case, form) for form in (OURS, *FORMS)}
    weights = {form: streams.weight_bytes for form, streams in forms.items()}
    prompt: list[int] = np.random.default_rng(5).integers(min(case.vocabulary, 1000), size=sizes.decode_prompt).tolist()
    n = sizes.cpu_tokens
    contenders: dict[str, Callable[[], Lap]] = {form: partial(s.decode, [prompt], n) for form, s in forms.items()}
    contenders[FORWARDS] = partial(forms[OURS].forwards, contenders[OURS])
    contenders[GENERATE] = partial(peer.generate, prompt, n, records=False)
    contenders[LOOP] = partial(peer.loop, [prompt], n, records=False)
    contenders[LOOP_RECORDS] = partial(peer.loop, [prompt], n, records=True)
    contenders[READ] = _reader(weights[OURS])
    laps = take_turns(contenders, sizes.cpu_rounds, lambda who: tell(f"{ROW}, {who}"), warm_up=True)
    tell(f"{ROW}: {FIRST}")
    first, busy = min(_first_token(case, prompt) for _ in range(2))
    timings = [timing(ROW, case, f"{who} weights" if who in FORMS else who, each) for who, each in laps.items()]
    readings = tuple(_reading(case, laps, form, weights) for form in (OURS, *FORMS))
    verdicts = [*one_stream(case, laps, ROW), *(_packed_verdict(case, laps, form, weights) for form in FORMS)]
    what, limit = f"s {FIRST}, libraries in place", Limit(busy, "its cpu-seconds, whatever the machine does beside")
    seconds = Verdict(ROW, case.backend, case.model, what, first, FIRST_BAR, at_least=False, limit=limit)
    return Findings(timings=tuple(timings), readings=readings, verdicts=(*verdicts, seconds))


def _packed(case: Case, form: str) -> OurStreams:
    options = {} if form == OURS else {"weights": form}
    return case.loaded.get(form, lambda: OurStreams(case.folder, case.backend, **options))


def _packed_verdict(case: Case, laps: Mapping[str, list[Lap]], form: str, weights: Mapping[str, int]) -> Verdict:
    limit = speed(laps[READ], laps[GENERATE], wall) * weights[OURS] / weights[form]
    figure = speed(laps[form], laps[GENERATE], wall)
    what = f"{form} weights: speed / {GENERATE}"
    said = Limit(limit, AT_MEMORY_SPEED)
    return Verdict(ROW, case.backend, case.model, what, figure, PACKED_BAR, at_least=True, limit=said)


def _reading(case: Case, laps: Mapping[str, list[Lap]], form: str, weights: Mapping[str, int]) -> Reading:
    whole = timing(ROW, case, READ, laps[READ]).wall_ms
    who = form if form == OURS else f"{form} weights"
    own = timing(ROW, case, who, laps[form]).wall_ms
    return Reading(ROW, case.backend, case.model, who, weights[form], weights[OURS] / whole * 1000, own)


def _reader(nbytes: int) -> Callable[[], Lap]:
    """Laps that read as many bytes as the float32 weights have, one after the other, on one thread."""
    import torch

    numbers = torch.ones(max(nbytes // 4, 1))

    def run() -> Lap:
        watch = Stopwatch()
        watch.start()
        for _ in range(READS):
            numbers.sum()
        return watch.lap(READS)

    return run


def _first_token(case: Case, prompt: list[int]) -> tuple[float, float]:
    """Seconds, and cpu-seconds, with the libraries in place."""
    began, cpu_began = time.perf_counter(), time.process_time()
    with closing(OurStreams(case.folder, case.backend)) as streams:
        streams.decode([prompt], 1)
        return time.perf_counter() - began, time.process_time() - cpu_began
