"""Answers under a grammar: what a row's mask and step cost, and how long its draw waits for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing, closing
from functools import partial
from typing import Any

from benchmarks.clock import Lap, Stopwatch, Told, take_turns
from benchmarks.findings import Case, Findings, Limit, timings
from benchmarks.ours import open_model
from benchmarks.sizes import Sizes
from runtime import GenerationOptions, Grammar, LanguageModel, SamplingOptions

ROW = "grammar"
ROWS = 8
BAR_MS = 0.5  # of mask and step together, per row and token
LIMIT = "llguidance's own mask and step for the same tokens, nothing around them"
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
ENDLESS = (  # longer than any lap, so that every row counts to its end
    Grammar.json_schema({"type": "array", "items": PERSON, "minItems": 1000}),
    Grammar.regex(r"([A-Z][a-z]{1,8} ([a-z]{1,9}[ ,]){3,12}[.!?]\n?){1000,}"),
    Grammar.lark('start: item{1000,}\nitem: NAME "=" (NAME | NUMBER | "(" item+ ")") ";"\nNAME: /[a-z_]+/\nNUMBER: /[0-9]+/'),
)


def grammar(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Eight rows, each under one of three grammars, beside the same rows without."""
    tell(f"{ROW}: loading")
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
            run()  # compiles
        before = model.metrics()
        laps = take_turns(contenders, sizes.rounds, tell, row=ROW, warm_up=False)
        after = model.metrics()
        limit = Limit(_library_alone(model, bound, answers), LIMIT)  # the constrained ones came last
    drawn = after.grammar_tokens - before.grammar_tokens
    spent = (after.grammar_seconds - before.grammar_seconds) / drawn * 1000
    rows = timings(ROW, case, laps)
    free_ms = next(row.wall_ms for row in rows if row.who == PLAIN)  # per row and token
    hidden = Limit(max(limit.figure - free_ms, 0.0), WAIT_LIMIT)
    waited = (after.grammar_wait_seconds - before.grammar_wait_seconds) / drawn * 1000
    verdicts = (
        case.verdict(ROW, "ms of mask and step per row and token", spent, BAR_MS, limit=limit),
        case.verdict(ROW, "ms a row's draw waits for its mask", waited, BAR_MS, limit=hidden),
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
    """Milliseconds a token that llguidance itself takes for the same answers: its mask's bits, and its step."""
    transport: Any = model.transport  # of this process
    grammars = transport.operations.grammars
    seconds = 0.0
    for each, answer in zip(options, answers, strict=True):
        constraint = grammars.constraint(each.grammar)
        matcher, bits = constraint._matcher, constraint._bits  # noqa: SLF001  # the same
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
