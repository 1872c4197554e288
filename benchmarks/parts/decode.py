"""W5 (decoding), the embedded model on a CPU, recurrent rows, overhead per token, W6 (scores), branches and beams."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.clock import Lap, Stopwatch, Told, cpu, speed, take_turns, timed, wall
from benchmarks.findings import EMBEDDED, BarVerdict, Case, Findings, Limit, Reading, timing, timings
from benchmarks.forwards import FORWARDS, REST
from benchmarks.forwards import LIMIT as FORWARDS_LIMIT
from benchmarks.measure import measure
from benchmarks.ours import OurBranches, Ours, OurStreams, one_thread, our_streams
from benchmarks.sizes import Sizes
from benchmarks.tiny import make_recurrent
from runtime import GenerationOptions, LanguageModel, SamplingOptions, SpeculativeOptions, list_models, load

ONE, EIGHT = "W5 one stream", "W5 eight streams"
STREAMS = 8
OURS, OURS_BARE = "elsewise", "elsewise, top_k=0"
GENERATE, GENERATE_RECORDS = "transformers.generate", "transformers.generate, records"
STREAM, STREAM_RECORDS = "mlx_lm.stream_generate", "mlx_lm.stream_generate, records"
LOOP, LOOP_RECORDS = "bare loop", "bare loop, records"
LIMIT = "the bare loop: one forward and the same records per token, told to no one"

Run = Callable[[], Lap]
Laps = Mapping[str, list[Lap]]


def decode(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """W5: decoding speed of each contender with one stream and with eight."""
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
    laps_one = take_turns(one, sizes.rounds, tell, row=ONE)
    laps_eight = take_turns(eight, sizes.rounds, tell, row=EIGHT)
    verdicts = (*one_stream(case, laps_one), *_eight(case, laps_one, laps_eight))
    return Findings(timings=timings(ONE, case, laps_one) + timings(EIGHT, case, laps_eight), verdicts=verdicts)


def peer_streams(case: Case) -> Any:
    """The streams of the backend's library, loaded on first use for each case; the library is imported here."""
    if case.backend == "hf":
        from benchmarks.peers.torch_peers import TorchStreams

        return case.loaded.get(TorchStreams, lambda: TorchStreams(case.folder))
    from benchmarks.peers.mlx_peers import MlxStreams

    return case.loaded.get(MlxStreams, lambda: MlxStreams(case.folder))


def one_stream(case: Case, laps: Laps, row: str = ONE) -> list[BarVerdict]:
    """The verdicts of one stream; a bar is the least speed of a contender relative to a peer."""
    if case.backend == "mlx":
        bars = [(OURS, STREAM, 0.95), (OURS_BARE, STREAM, 1.0)]
    elif case.tiny:
        bars = [(OURS, GENERATE_RECORDS, 1.15)] if GENERATE_RECORDS in laps else []
    else:
        bars = [(OURS, LOOP, 0.97), (OURS, GENERATE, 1.0)]
    return [
        case.verdict(
            row, _what(who, peer), speed(laps[who], laps[peer], wall), bar, at_least=True, limit=_limit(case, laps, who, peer)
        )
        for who, peer, bar in bars
    ]


def _limit(case: Case, laps: Laps, who: str, peer: str) -> Limit:
    """The limit of one stream's speed relative to the peer.

    hf: Elsewise's forwards alone, which may be faster than the library's in the bare loop. mlx: the bare loop, since Elsewise's
    forwards overlap with its records.
    """
    if case.backend == "hf":
        return Limit(speed(laps[FORWARDS], laps[peer], wall), FORWARDS_LIMIT)
    return Limit(speed(laps[LOOP_RECORDS if who == OURS else LOOP], laps[peer], wall), LIMIT)


def _eight(case: Case, one: Laps, eight: Laps) -> list[BarVerdict]:
    if case.tiny:
        peer, what, bar = eight[LOOP_RECORDS], _what(OURS, "bare 8-row loop, records"), 0.9
    elif case.backend == "hf":
        peer, what, bar = one[OURS], _what(OURS, "one stream"), 3.0
    else:
        return []
    limit = Limit(speed(eight[FORWARDS], peer, wall), FORWARDS_LIMIT)
    return [case.verdict(EIGHT, what, speed(eight[OURS], peer, wall), bar, at_least=True, limit=limit)]


def _what(who: str, peer: str) -> str:
    own = "" if who == OURS else who.removeprefix(OURS + ", ") + ": "
    return f"{own}speed / {peer}"


CPU_ROW = "cpu"
FORMS = ("float16", "int8", "int4")
PACKED_BAR, FIRST_BAR = 1.8, 3.0  # times transformers.generate; seconds
READ = "reading the float32 weights once, and nothing else"
AT_MEMORY_SPEED = "its weights' bytes at the speed of memory, as the float32 ones were read in the same run"
FIRST = "from the shelf to the first token"
READS = 3  # reads of all weights per lap


def embedded_model(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Decoding on one thread in each form of weights, only on hf: of the embedded model or, in a quick run, of the case's."""
    if case.backend != "hf":
        return Findings()
    case = embedded(case) if sizes.reopen_embedded else replace(case, loaded=type(case.loaded)())
    with closing(case.loaded):
        return _measured(case, sizes, tell)


def embedded(case: Case) -> Case:
    """The case of the embedded model."""
    entry = next((entry for entry in list_models() if entry.name == EMBEDDED), None)
    folder = Path(EMBEDDED) if entry is None else entry.path  # the error of loading names it
    return replace(case, model=EMBEDDED, folder=folder, loaded=type(case.loaded)())


def _measured(case: Case, sizes: Sizes, tell: Told) -> Findings:
    tell(f"{CPU_ROW}: loading")
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
    laps = take_turns(contenders, sizes.cpu_rounds, tell, row=CPU_ROW)
    tell(f"{CPU_ROW}: {FIRST}")
    first, busy = min(_first_token(case, prompt) for _ in range(2))
    named = {f"{who} weights" if who in FORMS else who: each for who, each in laps.items()}
    readings = tuple(_reading(case, laps, form, weights) for form in (OURS, *FORMS))
    verdicts = [*one_stream(case, laps, CPU_ROW), *(_packed_verdict(case, laps, form, weights) for form in FORMS)]
    what, limit = f"s {FIRST}, libraries in place", Limit(busy, "its cpu-seconds, whatever the machine does beside")
    seconds = case.verdict(CPU_ROW, what, first, FIRST_BAR, limit=limit)
    return Findings(timings=timings(CPU_ROW, case, named), readings=readings, verdicts=(*verdicts, seconds))


def _packed(case: Case, form: str) -> OurStreams:
    options = {} if form == OURS else {"weights": form}
    return case.loaded.get(form, lambda: OurStreams(case.folder, case.backend, **options))


def _packed_verdict(case: Case, laps: Mapping[str, list[Lap]], form: str, weights: Mapping[str, int]) -> BarVerdict:
    limit = speed(laps[READ], laps[GENERATE], wall) * weights[OURS] / weights[form]
    figure = speed(laps[form], laps[GENERATE], wall)
    what = f"{form} weights: speed / {GENERATE}"
    said = Limit(limit, AT_MEMORY_SPEED)
    return case.verdict(CPU_ROW, what, figure, PACKED_BAR, at_least=True, limit=said)


def _reading(case: Case, laps: Mapping[str, list[Lap]], form: str, weights: Mapping[str, int]) -> Reading:
    whole = timing(CPU_ROW, case, READ, laps[READ]).wall_ms
    who = form if form == OURS else f"{form} weights"
    own = timing(CPU_ROW, case, who, laps[form]).wall_ms
    return Reading(CPU_ROW, case.backend, case.model, who, weights[form], weights[OURS] / whole * 1000, own)


def _reader(nbytes: int) -> Callable[[], Lap]:
    """Returns laps that read `nbytes` bytes (the float32 weights) sequentially on one thread, several times."""
    import torch

    numbers = torch.ones(max(nbytes // 4, 1))
    return partial(timed, lambda _: numbers.sum(), READS)


def _first_token(case: Case, prompt: list[int]) -> tuple[float, float]:
    """Wall and CPU seconds from loading the model to its first token, with the libraries imported."""
    began, cpu_began = time.perf_counter(), time.process_time()
    with closing(OurStreams(case.folder, case.backend)) as streams:
        streams.decode([prompt], 1)
        return time.perf_counter() - began, time.process_time() - cpu_began


RECURRENT_EIGHT = "W5 eight streams, recurrent"
RECURRENT_PARTICLES = "W1 particles, recurrent"
RECURRENT_BRANCHES = "W3 eight branches, recurrent"
MODEL = "tiny-lfm2"
TOGETHER, ALONE = "rows of one forward", "one by one"
SHARED, COPIED = "one prefix", "a copy for each row"
# least speed of the first way relative to the second, by CPU seconds
BARS = {RECURRENT_EIGHT: 2.5, RECURRENT_PARTICLES: 1.5, RECURRENT_BRANCHES: 1.3}


def rows(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Rows of a tiny recurrent model, both ways in turns: one forward or one by one, a shared prefix or a copy for each row."""
    with tempfile.TemporaryDirectory(prefix="elsewise-bench-") as made:
        folder = Path(made) / MODEL
        tell(f"{RECURRENT_EIGHT}: loading")
        own = Case(case.backend, MODEL, folder, make_recurrent(folder))
        rng = np.random.default_rng(5)
        with closing(OurStreams(folder, case.backend)) as ours:
            lengths = range(sizes.decode_prompt, sizes.decode_prompt + STREAMS)
            prompts: list[list[int]] = [rng.integers(own.vocabulary, size=n).tolist() for n in lengths]
            run = partial(ours.decode, prompts, sizes.decode_tokens)
            found = _both(own, RECURRENT_EIGHT, _ways(ours, "buckets", run, (TOGETHER, ALONE)), sizes, tell)
            stem = rng.integers(own.vocabulary, size=sizes.stem).tolist()
            run = partial(ours.decode, [[*stem, token] for token in range(STREAMS)], sizes.decode_tokens, warm=True)
            found += _both(own, RECURRENT_BRANCHES, _ways(ours, "shares", run, (SHARED, COPIED)), sizes, tell)
        with closing(Ours(folder, case.backend)) as subject:
            run = partial(_particles, subject, own, sizes)
            found += _both(own, RECURRENT_PARTICLES, _ways(subject, "buckets", run, (TOGETHER, ALONE)), sizes, tell)
    return found


def _ways(owner: Any, switch: str, run: Run, names: tuple[str, str]) -> dict[str, Run]:
    """Laps with a switch of the backend on and off; only the self-test switches it off otherwise, there is no option."""
    backend = owner.model.transport.engine.backend

    def lap(*, on: bool) -> Lap:
        setattr(backend, switch, on)
        try:
            return run()
        finally:
            setattr(backend, switch, True)

    return {names[0]: partial(lap, on=True), names[1]: partial(lap, on=False)}


def _both(own: Case, part: str, ways: dict[str, Run], sizes: Sizes, tell: Told) -> Findings:
    """Runs both ways in turns; the figure is the relative speed of the first one."""
    laps = take_turns(ways, sizes.rounds, tell, row=part)
    first, second = ways
    figure = speed(laps[first], laps[second], cpu)
    return Findings(
        timings=timings(part, own, laps),
        verdicts=(own.verdict(part, f"{first}: cpu speed / {second}", figure, BARS[part], at_least=True),),
    )


def _particles(subject: Ours, case: Case, sizes: Sizes) -> Lap:
    result = measure(sizes.workloads(case.vocabulary)[0], subject, backend=case.backend, model=case.model)
    return Lap(result.tokens, result.cpu_seconds, result.wall_seconds, result.outcome)


OVERHEAD_ROW = "overhead"
BAR_MS = 0.3
TURNS = 3  # factor of the number of rounds: laps are short
FLAT_MS = 0.1  # ms per token by which the longest context may exceed the shortest
RECORDS = "records alone"


def overhead(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Overhead of one stream at several context lengths: the time of a step beyond its forward and its record.

    Forwards are timed by waiting for each, records by making them with torch or numpy alone. The rest is Elsewise's overhead:
    scheduling, drawing, delivery to the caller, and any extra cost of its records. On mlx most of that overlaps with the next
    forward. Growth with the context is measured by laps without overlap, which subtract each forward's time from its own step.
    """
    rng = np.random.default_rng(8)
    n = sizes.overhead_tokens
    tell("overhead: loading")
    ours, peer = our_streams(case), peer_streams(case)
    shortest, longest = sizes.contexts[0], sizes.contexts[-1]
    prompts: dict[int, list[int]] = {each: rng.integers(case.vocabulary, size=each).tolist() for each in sizes.contexts}
    contenders: dict[tuple[str, str], Callable[[], Lap]] = {}
    for context, prompt in prompts.items():  # all lengths take turns, so that changes of the machine affect them alike
        decode = partial(ours.decode, [prompt], n, warm=True)
        contenders[_part(context), OURS] = decode
        contenders[_part(context), FORWARDS] = partial(ours.forwards, decode)
        contenders[_part(context), REST] = partial(ours.rest, decode)
    contenders[OVERHEAD_ROW, RECORDS] = partial(peer.records(prompts[shortest]), n)
    named = {f"{part}, {who}": run for (part, who), run in contenders.items()}
    found = take_turns(named, TURNS * sizes.rounds, tell)
    laps = dict(zip(contenders, found.values(), strict=True))

    def ms(part: str, who: str) -> list[float]:
        return [lap.wall_seconds / lap.tokens * 1000 for lap in laps[part, who]]

    near, far = _part(shortest), _part(longest)
    steps = zip(ms(far, OURS), ms(far, FORWARDS), ms(OVERHEAD_ROW, RECORDS), strict=True)
    added = median(step - forward - record for step, forward, record in steps)
    grown = median(b - a for a, b in zip(ms(near, REST), ms(far, REST), strict=True))
    return Findings(
        timings=tuple(timing(part, case, who, each) for (part, who), each in laps.items()),
        verdicts=(
            case.verdict(OVERHEAD_ROW, f"ms a token at context {longest:,}, less its forward and record", added, BAR_MS),
            case.verdict(OVERHEAD_ROW, f"ms more than at context {shortest:,}, nothing hidden", grown, FLAT_MS),
        ),
    )


def _part(context: int) -> str:
    return f"{OVERHEAD_ROW} at {context:,}"


SCORE_ROW = "W6 score"
CPU_BAR = 1.2
BARE = "bare forward, log-softmax, top-k"


def score(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """W6: scores all positions of one text, compared with one bare forward over it."""
    ids: list[int] = np.random.default_rng(6).integers(case.vocabulary, size=sizes.score_tokens).tolist()
    tell(f"{SCORE_ROW}: loading")
    ours, peer = our_streams(case), peer_streams(case)
    before = ours.tokens_computed
    score_it = partial(ours.score, ids)
    score_it()
    pushed = ours.tokens_computed - before
    contenders = {OURS: score_it, BARE: partial(peer.score, ids), FORWARDS: partial(ours.forwards, score_it)}
    laps = take_turns(contenders, sizes.rounds, tell, row=SCORE_ROW)
    share, least = (1 / speed(laps[who], laps[BARE], cpu) for who in (OURS, FORWARDS))
    limit = Limit(least, FORWARDS_LIMIT)
    verdicts = (
        case.verdict(SCORE_ROW, "tokens computed / tokens", pushed / len(ids), 1.0, timed=False),
        case.verdict(SCORE_ROW, f"cpu / {BARE}", share, CPU_BAR, limit=limit),
    )
    return Findings(timings=timings(SCORE_ROW, case, laps), verdicts=verdicts)


MANY_TOKENS, MANY_BRANCHES, MANY_BEAMS = "many tokens", "many branches", "many beams"
N, WIDTH = 8, 4
PEER = "transformers.generate"


def many(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Tokens computed over tokens needed for eight branches; on hf also CPU seconds of branches and beams over transformers'.

    Needed are the prefix and every token of a branch but the last, after which nothing is asked for: prefix + 8 x (new - 1), or
    fewer if branches begin alike.
    """
    rng = np.random.default_rng(9)
    prompt: list[int] = rng.integers(case.vocabulary, size=sizes.many_prompt).tolist()
    n = sizes.many_tokens
    tell("many: loading")
    with closing(OurBranches(case.folder, case.backend)) as ours:
        ours.branches(prompt, N, n)
        figure, what = ours.computed / ours.needed, f"computed / needed (prefix {len(prompt)} + 8 x {n - 1}, shared ones once)"
        counted = case.verdict(MANY_TOKENS, what, figure, 1.0, timed=False)
        if case.backend != "hf":  # mlx_lm has neither branches nor beams
            return Findings(verdicts=(counted,))
        from benchmarks.peers.torch_peers import TorchBranches

        with closing(TorchBranches(case.folder)) as peer:
            parts: dict[str, dict[str, Run]] = {
                MANY_BRANCHES: {OURS: partial(ours.branches, prompt, N, n), PEER: partial(peer.branches, prompt, N, n)},
                MANY_BEAMS: {OURS: partial(ours.beams, prompt, WIDTH, n), PEER: partial(peer.beams, prompt, WIDTH, n)},
            }
            found = Findings(verdicts=(counted,))
            for part, runs in parts.items():
                runs[FORWARDS] = partial(ours.forwards, runs[OURS])
                laps = take_turns(runs, sizes.rounds, tell, row=part)
                share, least = (speed(laps[PEER], laps[who], cpu) for who in (OURS, FORWARDS))  # ours over the peer's
                verdict = case.verdict(part, f"cpu / {PEER}", share, 1.0, limit=Limit(least, FORWARDS_LIMIT))
                found += Findings(timings=timings(part, case, laps), verdicts=(verdict,))
    return found


SPECULATIVE_ROW = "speculative"
SPECULATIVE_BAR = 1.3
PLAIN, LOOKUP = "elsewise", "elsewise, prompt lookup"
LINE = "alpha beta gamma delta epsilon zeta eta theta\n"
TIMES = 6  # repetitions of the line in the prompt
GUESSES = SpeculativeOptions().num_tokens
SPECULATIVE_LIMIT = f"{GUESSES + 1} tokens in one forward against one by one: every guess right, and none looked for"


def speculative(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Greedy decoding after a repeated line, always on the embedded model: a tiny model would not repeat it."""
    tell(f"{SPECULATIVE_ROW}: loading")
    named = replace(case, model=EMBEDDED)
    with closing(load(EMBEDDED, case.backend, **one_thread(case.backend))) as model:
        prompt = model.tokenize(LINE * TIMES)
        contenders = {
            PLAIN: partial(_decode, model, prompt, sizes.speculative_tokens, None),
            LOOKUP: partial(_decode, model, prompt, sizes.speculative_tokens, SpeculativeOptions()),
        }
        laps = take_turns(contenders, min(sizes.rounds, 3), tell, row=SPECULATIVE_ROW, warm_up=False)
        limit = Limit(_all_right(model, prompt, min(sizes.rounds, 3)), SPECULATIVE_LIMIT)
        rate = model.metrics().acceptance_rate or 0.0
    faster = f"speed / plain ({rate:.0%} accepted)"
    verdicts = (
        named.verdict(
            SPECULATIVE_ROW, faster, speed(laps[LOOKUP], laps[PLAIN], wall), SPECULATIVE_BAR, at_least=True, limit=limit
        ),
        named.verdict(SPECULATIVE_ROW, "laps that say the same", _same(laps), 1.0, at_least=True, timed=False),
    )
    return Findings(timings=timings(SPECULATIVE_ROW, named, laps), verdicts=verdicts)


def _same(laps: dict[str, list[Lap]]) -> float:
    """Share of laps in which both contenders drew the same tokens."""
    same = [a.outcome == b.outcome for a, b in zip(laps[PLAIN], laps[LOOKUP], strict=True)]
    return sum(same) / len(same)


def _all_right(model: LanguageModel, prompt: list[int], rounds: int) -> float:
    """Speed-up if every guess were right: seconds per token of one-token forwards over those of forwards with all guesses."""
    model.cache_kv(prompt)
    ratios = []
    for turn in range(rounds):
        seconds = []
        for place, count in enumerate((1, GUESSES + 1)):
            new = [100 + 2 * turn + place] * count  # not in the cache
            started = time.perf_counter()
            model.next_token_logprobs_sync([*prompt, *new])
            seconds.append((time.perf_counter() - started) / count)
        ratios.append(seconds[0] / seconds[1])
    return median(ratios)


def _decode(model: LanguageModel, prompt: list[int], n: int, speculation: SpeculativeOptions | None) -> Lap:
    """Decodes `n` greedy tokens with only the prompt in the cache."""
    model.clear_cache()
    model.cache_kv(prompt)
    greedy = SamplingOptions(temperature=0.0)
    options = GenerationOptions(max_tokens=n, sampling=greedy, ignore_eos=True, seed=0, resolve=False, speculative=speculation)
    watch = Stopwatch().start()
    tokens = [record.token_id for record in model.generate_sync(prompt, options)]
    return watch.lap(len(tokens), [tokens])
