"""W5: tokens one after the other, of one stream and of eight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.clock import Lap, Told, speed, take_turns, wall
from benchmarks.findings import Case, Findings, Limit, Verdict, timing
from benchmarks.forwards import FORWARDS
from benchmarks.forwards import LIMIT as FORWARDS_LIMIT
from benchmarks.our_streams import our_streams
from benchmarks.sizes import Sizes

ONE, EIGHT = "W5 one stream", "W5 eight streams"
STREAMS = 8
OURS, OURS_BARE = "elsewise", "elsewise, top_k=0"
GENERATE, GENERATE_RECORDS = "transformers.generate", "transformers.generate, records"
STREAM, STREAM_RECORDS = "mlx_lm.stream_generate", "mlx_lm.stream_generate, records"
LOOP, LOOP_RECORDS = "bare loop", "bare loop, records"
LIMIT = "the bare loop: one forward and the same records per token, told to nobody"

Run = Callable[[], Lap]
Laps = Mapping[str, list[Lap]]


def decode(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Everybody's tokens per second."""
    rng = np.random.default_rng(5)
    prompts: list[list[int]] = rng.integers(case.vocabulary, size=(STREAMS, sizes.decode_prompt)).tolist()
    n = sizes.decode_tokens
    tell("W5: loading")
    ours, peer = our_streams(case), peer_streams(case)
    one: dict[str, Run] = {
        OURS: partial(ours.decode, prompts[:1], n),
        OURS_BARE: partial(ours.decode, prompts[:1], n, top_k=0),
    }
    eight: dict[str, Run] = {OURS: partial(ours.decode, prompts, n)}
    if case.backend == "hf":
        one[GENERATE] = partial(peer.generate, prompts[0], n, records=False)
        one[GENERATE_RECORDS] = partial(peer.generate, prompts[0], n, records=True)
        one[FORWARDS] = partial(ours.forwards, one[OURS])
    else:
        one[STREAM] = partial(peer.stream_generate, prompts[0], n, records=False)
        one[STREAM_RECORDS] = partial(peer.stream_generate, prompts[0], n, records=True)
    one[LOOP] = partial(peer.loop, prompts[:1], n, records=False)
    one[LOOP_RECORDS] = partial(peer.loop, prompts[:1], n, records=True)
    eight[LOOP_RECORDS] = partial(peer.loop, prompts, n, records=True)
    eight[FORWARDS] = partial(ours.forwards, eight[OURS])
    laps_one = take_turns(one, sizes.rounds, lambda who: tell(f"{ONE}, {who}"), warm_up=True)
    laps_eight = take_turns(eight, sizes.rounds, lambda who: tell(f"{EIGHT}, {who}"), warm_up=True)
    timings = [timing(ONE, case, who, laps) for who, laps in laps_one.items()]
    timings += [timing(EIGHT, case, who, laps) for who, laps in laps_eight.items()]
    return Findings(timings=tuple(timings), verdicts=(*one_stream(case, laps_one), *_eight(case, laps_one, laps_eight)))


def peer_streams(case: Case) -> Any:
    """What a backend's library does by itself, the one of a case; the library is imported here."""
    if case.backend == "hf":
        from benchmarks.peers.torch_streams import TorchStreams

        return case.loaded.get(TorchStreams, lambda: TorchStreams(case.folder))
    from benchmarks.peers.mlx_streams import MlxStreams

    return case.loaded.get(MlxStreams, lambda: MlxStreams(case.folder))


def one_stream(case: Case, laps: Laps, row: str = ONE) -> list[Verdict]:
    """The bars of one stream: who, against whom, how many times as fast."""
    if case.backend == "mlx":
        bars = [(OURS, STREAM, 0.95), (OURS_BARE, STREAM, 1.0)]
    elif case.tiny:
        bars = [(OURS, GENERATE_RECORDS, 1.15)] if GENERATE_RECORDS in laps else []
    else:
        bars = [(OURS, LOOP, 0.97), (OURS, GENERATE, 1.0)]
    return [
        Verdict(
            row,
            case.backend,
            case.model,
            _what(who, peer),
            speed(laps[who], laps[peer], wall),
            bar,
            at_least=True,
            limit=_limit(case, laps, who, peer),
        )
        for who, peer, bar in bars
    ]


def _limit(case: Case, laps: Laps, who: str, peer: str) -> Limit:
    """hf: our forwards may be quicker than the library's, which the bare loop calls; mlx: they overlap with the records."""
    if case.backend == "hf":
        return Limit(speed(laps[FORWARDS], laps[peer], wall), FORWARDS_LIMIT)
    return Limit(speed(laps[LOOP_RECORDS if who == OURS else LOOP], laps[peer], wall), LIMIT)


def _eight(case: Case, one: Laps, eight: Laps) -> list[Verdict]:
    if case.tiny:
        peer, what, bar = eight[LOOP_RECORDS], _what(OURS, "bare 8-row loop, records"), 0.9
    elif case.backend == "hf":
        peer, what, bar = one[OURS], _what(OURS, "one stream"), 3.0
    else:
        return []
    limit = Limit(speed(eight[FORWARDS], peer, wall), FORWARDS_LIMIT)
    return [Verdict(EIGHT, case.backend, case.model, what, speed(eight[OURS], peer, wall), bar, at_least=True, limit=limit)]


def _what(who: str, peer: str) -> str:
    own = "" if who == OURS else who.removeprefix(OURS + ", ") + ": "
    return f"{own}speed / {peer}"
