"""Draws: the sampler and its records compared with three calls of torch; masks and steps of answers under a grammar.

The sampler turns the raw logits of a step into drawn tokens and their records. A missed bar is reported with its limit, the
least time of the same results in numpy, measured in the same run. The limit is the sum of two parts: the cost of the calls,
from the same steps with only the first 1,024 entries of each row; and the time that numpy's bare passes (`_passes`, without
draws and records) take for whole rows beyond that for 1,024 entries.

The log-probabilities, normaliser and entropy of a row are six passes, one of them exp; its likeliest entries are one more. A
cut beyond the first few entries compares every entry once; reported stages need the normaliser at each temperature, an exp of
every entry. Records hold the result of each pass, so that none can be left out. The calls are about eighty (twice as many with
stages) and cost the same for every vocabulary, so that small vocabularies, one row at a time, come nearest to the bar.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing, closing
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.clock import Lap, Stopwatch, Told, cpu, speed, take_turns, timed
from benchmarks.findings import BarVerdict, Case, Findings, Limit, Timing, timings
from benchmarks.ours import open_model
from benchmarks.sizes import Sizes
from runtime import GenerationOptions, Grammar, History, LanguageModel, SamplingOptions, draw_step, make_sampler

ROW = "sampler"
BAR = 1.5
ALTERNATIVES = 10
VOCABULARIES = (50_000, 256_000)
SAID, PHRASE = 512, 20  # tokens of the history, for penalties; tokens at its end that repeat its beginning
SETTINGS = {
    "chat": SamplingOptions(temperature=0.8, top_p=0.95, top_k=40),
    "open": SamplingOptions(temperature=1.0),
    "preset": SamplingOptions(temperature=0.8, top_p=0.95, min_p=0.05),  # the window's and the command line's
    "top-p": SamplingOptions(top_p=0.9),
    "penalties": SamplingOptions(repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.1),
    "typical": SamplingOptions(typical_p=0.95),
    "XTC": SamplingOptions(xtc_probability=0.5, xtc_threshold=0.05),
    "DRY": SamplingOptions(dry_multiplier=0.8),
    "bias": SamplingOptions(logit_bias=dict.fromkeys(range(100, 200), 2.0), banned_tokens=tuple(range(200, 300))),
    "stages": SamplingOptions(temperature=0.8, top_p=0.95, min_p=0.05),  # the preset, with a report of each stage
}
USUAL = ("chat", "open", "preset", "top-p", "penalties")
FEW_ROWS = 8  # most rows for which all settings are measured, not only the usual ones
OURS, TORCH, PASSES = "elsewise", "log_softmax, topk, entropy", "numpy's passes alone"
CALLS, FEW_PASSES = "elsewise, 1,024 entries", "numpy's passes, 1,024 entries"
FEW_ENTRIES = 1024
STRIPES = 64  # one max over the columns of a row reshaped to (64, width) narrows down its largest entries
FRESH, FRESH_ENTRIES, FEWEST = 16, 2_000_000, 3  # different steps: at most 16, of 2,000,000 entries in all, but at least 3
LIMIT = "the same calls with 1,024 entries, and what numpy's bare passes over whole rows take more than over those"


def sampler(nowhere: Case, sizes: Sizes, tell: Told) -> Findings:
    """Draws and records of whole steps, for the usual settings of a chat, those of the app, single stages, and no stage.

    Rows are normally distributed logits whose spread gives distributions from nearly certain to a few hundred likely tokens.
    Successive steps have different rows, as in a stream: a CPU adapts to the positions of the large entries of one row.
    """
    measured: list[Timing] = []
    verdicts: list[BarVerdict] = []
    for vocabulary in VOCABULARIES:
        for rows in sizes.sampler_rows:
            logits = step_logits(rows, vocabulary, steps=min(max(FRESH_ENTRIES // (rows * vocabulary), FEWEST), FRESH))
            steps = max(sizes.sampler_tokens // rows, 1)
            case = Case("numpy", f"{vocabulary:,} x {rows}", nowhere.folder, vocabulary)
            for name in SETTINGS if rows <= FEW_ROWS else USUAL:
                settings = SETTINGS[name]
                few, stages = np.ascontiguousarray(logits[..., :FEW_ENTRIES]), name == "stages"
                contenders = {
                    OURS: partial(_ours, logits, settings, steps, stages=stages),
                    TORCH: partial(_torch, logits, steps),
                    PASSES: partial(_passes, logits, settings, steps, stages=stages),
                    CALLS: partial(_ours, few, settings, steps, stages=stages),
                    FEW_PASSES: partial(_passes, few, settings, steps, stages=stages),
                }
                title = f"{ROW}, {name}"
                laps = take_turns(contenders, sizes.rounds, tell, row=title)
                measured += timings(title, case, laps)
                share, calls, passes, few_passes = (
                    1 / speed(laps[who], laps[TORCH], cpu) for who in (OURS, CALLS, PASSES, FEW_PASSES)
                )
                limit = Limit(calls + passes - few_passes, LIMIT)
                verdicts.append(case.verdict(title, f"cpu / {TORCH}", share, BAR, limit=limit))
    return Findings(timings=tuple(measured), verdicts=tuple(verdicts))


def step_logits(rows: int, vocabulary: int, *, steps: int) -> npt.NDArray[np.float32]:
    """Random logits, ``(steps, rows, vocabulary) float32``, with entropies from about 6 nats down to a fraction of one."""
    spread = np.linspace(3.0, 6.0, rows) if rows > 1 else np.array([4.0])
    rng = np.random.default_rng(rows)
    return np.stack([(rng.normal(size=(rows, vocabulary)) * spread[:, None]).astype(np.float32) for _ in range(steps)])


def _ours(logits: npt.NDArray[np.float32], settings: SamplingOptions, steps: int, *, stages: bool) -> Lap:
    fresh, rows, vocabulary = logits.shape
    samplers = [make_sampler(settings, seed) for seed in range(rows)]
    phrase = np.random.default_rng(1).integers(0, vocabulary, SAID - PHRASE, np.int32)
    said = np.concatenate([phrase, phrase[:PHRASE]])  # the repeated end is what DRY looks for
    histories = [History(said) if each.remembers else None for each in samplers]  # with counts, as in a stream

    def step(i: int) -> object:
        told: list[Any] | None = [] if stages else None
        return draw_step(logits[i % fresh], samplers, [i] * rows, ALTERNATIVES, histories=histories, stages=told)

    return timed(step, steps, each=rows)


def _torch(logits: npt.NDArray[np.float32], steps: int) -> Lap:
    import torch

    fresh = torch.from_numpy(logits)

    def three_calls(i: int) -> None:
        logprobs = torch.log_softmax(fresh[i % len(fresh)], dim=-1)
        torch.topk(logprobs, ALTERNATIVES, dim=-1)
        -(logprobs.exp() * logprobs).sum(dim=-1)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # like Elsewise
    try:
        return timed(three_calls, steps, each=logits.shape[1])
    finally:
        torch.set_num_threads(threads)


def _passes(logits: npt.NDArray[np.float32], settings: SamplingOptions, steps: int, *, stages: bool) -> Lap:
    """The passes over all entries that the sampler and its records need, in as few numpy calls as possible."""
    fresh, rows, vocabulary = logits.shape
    width = vocabulary // STRIPES
    deep = (settings.typical_p or settings.top_p) is not None and settings.top_k is None
    deep = deep and (stages or settings.min_p is None)  # no earlier cut
    cut = np.partition(logits, -width // 2, axis=-1)[..., -width // 2] if deep else None  # (steps, rows): a border per row
    temperature = np.float32(settings.temperature or 1.0)

    def passes(i: int) -> None:
        step = logits[i % fresh]
        for row in step:
            logprobs = row - row.max()
            weights = np.exp(logprobs)
            total = weights.sum()
            np.vecdot(weights, logprobs)
            logprobs -= np.log(total)
            logprobs[: width * STRIPES].reshape(STRIPES, width).max(axis=0)
            if stages and temperature != 1.0:
                np.exp(np.divide(logprobs, temperature, out=logprobs), out=logprobs).sum()
        if cut is not None:
            for row, border in zip(step, cut[i % fresh], strict=True):
                np.count_nonzero(row >= border)

    return timed(passes, steps, each=rows)


GRAMMAR_ROW = "grammar"
ROWS = 8
GRAMMAR_BAR_MS = 0.5  # of mask and step together, per row and token
GRAMMAR_LIMIT = "llguidance's own mask and step for the same tokens, nothing around them"
WAIT_LIMIT = "llguidance's own mask and step less a step without grammars, beside whose forward one thread works out all masks"
PLAIN, CONSTRAINED = "elsewise, no grammar", "elsewise, a grammar for each row"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "colour": {"enum": ["red", "green", "blue", "black"]},
        "scores": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 4},
    },
    "required": ["name", "age", "colour", "scores"],
    "additionalProperties": False,
}
ENDLESS = (  # answers are longer than any lap, so that no row ends early
    Grammar.json_schema({"type": "array", "items": PERSON, "minItems": 1000}),
    Grammar.regex(r"([A-Z][a-z]{1,8} ([a-z]{1,9}[ ,]){3,12}[.!?]\n?){1000,}"),
    Grammar.lark('start: item{1000,}\nitem: NAME "=" (NAME | NUMBER | "(" item+ ")") ";"\nNAME: /[a-z_]+/\nNUMBER: /[0-9]+/'),
)


def grammar(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Eight rows, each under one of three grammars, compared with the same rows without a grammar."""
    tell(f"{GRAMMAR_ROW}: loading")
    with closing(open_model(case.folder, case.backend)) as model, asyncio.Runner() as runner:
        prompts = [[1 + i % 7, *range(20, 20 + sizes.decode_prompt)] for i in range(ROWS)]
        free, bound = (_options(sizes.decode_tokens, constrained=constrained) for constrained in (False, True))

        answers: list[list[int]] = []  # of the last lap

        def turn(each: list[GenerationOptions]) -> Lap:
            nonlocal answers
            lap, answers = runner.run(_lap(model, prompts, each))
            return lap

        contenders = {PLAIN: partial(turn, free), CONSTRAINED: partial(turn, bound)}
        for run in contenders.values():
            run()  # warm-up: compiles the grammars
        before = model.metrics()
        laps = take_turns(contenders, sizes.rounds, tell, row=GRAMMAR_ROW, warm_up=False)
        after = model.metrics()
        limit = Limit(_library_alone(model, bound, answers), GRAMMAR_LIMIT)  # the constrained ones came last
    drawn = after.grammar_tokens - before.grammar_tokens
    spent = (after.grammar_seconds - before.grammar_seconds) / drawn * 1000
    rows = timings(GRAMMAR_ROW, case, laps)
    free_ms = next(row.wall_ms for row in rows if row.who == PLAIN)  # per row and token
    hidden = Limit(max(limit.figure - free_ms, 0.0), WAIT_LIMIT)
    waited = (after.grammar_wait_seconds - before.grammar_wait_seconds) / drawn * 1000
    verdicts = (
        case.verdict(GRAMMAR_ROW, "ms of mask and step per row and token", spent, GRAMMAR_BAR_MS, limit=limit),
        case.verdict(GRAMMAR_ROW, "ms a row's draw waits for its mask", waited, GRAMMAR_BAR_MS, limit=hidden),
    )
    return Findings(timings=rows, verdicts=verdicts)


def _options(tokens: int, *, constrained: bool) -> list[GenerationOptions]:
    return [
        GenerationOptions(
            max_tokens=tokens,
            sampling=SamplingOptions(temperature=1.0),
            seed=i,
            resolve=False,
            ignore_eos=not constrained,
            grammar=ENDLESS[i % len(ENDLESS)] if constrained else None,
        )
        for i in range(ROWS)
    ]


def _library_alone(model: LanguageModel, options: Sequence[GenerationOptions], answers: Sequence[list[int]]) -> float:
    """Milliseconds per token of llguidance alone for the same answers: the bits of the mask, and the step."""
    transport: Any = model.transport  # in this process
    grammars = transport.operations.grammars
    seconds = 0.0
    for each, answer in zip(options, answers, strict=True):
        constraint = grammars.constraint(each.grammar)
        matcher, bits = constraint._matcher, constraint._bits  # noqa: SLF001  # no public access
        for token in answer:
            began = time.thread_time()
            matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            matcher.try_consume_tokens([token])
            seconds += time.thread_time() - began
    return seconds / sum(map(len, answers)) * 1000


async def _lap(
    model: LanguageModel, prompts: Sequence[list[int]], each: Sequence[GenerationOptions]
) -> tuple[Lap, list[list[int]]]:
    async def stream(prompt: list[int], options: GenerationOptions) -> list[int]:
        async with aclosing(model.generate(prompt, options)) as records:
            return [record.token_id async for record in records]

    watch = Stopwatch().start()
    answers = await asyncio.gather(*map(stream, prompts, each))
    return watch.lap(sum(map(len, answers))), answers
