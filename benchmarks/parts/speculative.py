"""Speculative decoding by prompt lookup, on a text that repeats itself, against plain decoding of the same text."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from statistics import median

from benchmarks.clock import Lap, Stopwatch, Told, speed, take_turns, wall
from benchmarks.findings import Case, Findings, Limit, Verdict, timing
from benchmarks.ours import one_thread
from benchmarks.sizes import Sizes
from runtime import GenerationOptions, LanguageModel, SamplingOptions, SpeculativeOptions, load

ROW = "speculative"
BAR = 1.3
MODEL = "smollm2"  # a made model repeats nothing, whatever it reads
PLAIN, LOOKUP = "elsewise", "elsewise, prompt lookup"
LINE = "alpha beta gamma delta epsilon zeta eta theta\n"
TIMES = 6  # that the line stands in the prompt
GUESSES = SpeculativeOptions().num_tokens
LIMIT = f"{GUESSES + 1} tokens in one forward against one by one: every guess right, and none looked for"


def speculative(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Greedy tokens after a line said over and over, of the real model whatever the case's is."""
    tell(f"{ROW}: loading")
    named = replace(case, model=MODEL)
    with closing(load(MODEL, case.backend, **one_thread(case.backend))) as model:
        prompt = model.tokenize(LINE * TIMES)
        contenders = {
            PLAIN: partial(_decode, model, prompt, sizes.speculative_tokens, None),
            LOOKUP: partial(_decode, model, prompt, sizes.speculative_tokens, SpeculativeOptions()),
        }
        laps = take_turns(contenders, min(sizes.rounds, 3), lambda who: tell(f"{ROW}, {who}"), warm_up=False)
        limit = Limit(_all_right(model, prompt, min(sizes.rounds, 3)), LIMIT)
        rate = model.metrics().acceptance_rate or 0.0
    faster = f"speed / plain ({rate:.0%} accepted)"
    verdicts = (
        Verdict(ROW, case.backend, MODEL, faster, speed(laps[LOOKUP], laps[PLAIN], wall), BAR, at_least=True, limit=limit),
        Verdict(ROW, case.backend, MODEL, "laps that say the same", _same(laps), 1.0, at_least=True, timed=False),
    )
    return Findings(timings=tuple(timing(ROW, named, who, each) for who, each in laps.items()), verdicts=verdicts)


def _same(laps: dict[str, list[Lap]]) -> float:
    """The share of laps in which both drew the same tokens."""
    same = [a.outcome == b.outcome for a, b in zip(laps[PLAIN], laps[LOOKUP], strict=True)]
    return sum(same) / len(same)


def _all_right(model: LanguageModel, prompt: list[int], rounds: int) -> float:
    """How many times as fast answers would come if no guess were wrong: by forwards of one token and of several."""
    model.cache_kv(prompt)
    ratios = []
    for turn in range(rounds):
        seconds = []
        for place, count in enumerate((1, GUESSES + 1)):
            new = [100 + 2 * turn + place] * count  # not asked for before
            started = time.perf_counter()
            model.next_token_logprobs_sync([*prompt, *new])
            seconds.append((time.perf_counter() - started) / count)
        ratios.append(seconds[0] / seconds[1])
    return median(ratios)


def _decode(model: LanguageModel, prompt: list[int], n: int, speculation: SpeculativeOptions | None) -> Lap:
    """`n` greedy tokens, nothing of them known from before; the prompt is in the cache."""
    model.clear_cache()
    model.cache_kv(prompt)
    greedy = SamplingOptions(temperature=0.0)
    options = GenerationOptions(max_tokens=n, sampling=greedy, ignore_eos=True, seed=0, resolve=False, speculative=speculation)
    watch = Stopwatch()
    watch.start()
    tokens = [record.token_id for record in model.generate_sync(prompt, options)]
    return watch.lap(len(tokens), [tokens])
