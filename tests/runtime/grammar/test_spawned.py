"""Grammars over the pipe: an engine process answers as a model in this process does."""

from __future__ import annotations

import asyncio

import pytest

from runtime import GenerationOptions, Grammar, GrammarError, LanguageModel, TokenRecord, load, spawn
from tests.runtime.grammar.judge import accepts
from tests.runtime.grammar.samples import ALL, JSON, LARK, Parcel

IDS = [104, 101, 108, 108, 111]


async def everything(model: LanguageModel) -> list[object]:
    """Concurrent answers, a complete and a cut one, and the message of a refused grammar."""

    async def one(grammar: Grammar, seed: int) -> list[TokenRecord]:
        options = GenerationOptions(grammar=grammar, seed=seed, max_tokens=400)
        return [record async for record in model.generate(IDS, options)]

    answers: list[object] = list(await asyncio.gather(*(one(grammar, i) for i, grammar in enumerate(ALL.values()))))
    for limit in (5, 400):
        text = await model.complete("hello", GenerationOptions(grammar=JSON, seed=1, max_tokens=limit))
        answers.append((text, text.finish_reason, text.incomplete))
    with pytest.raises(GrammarError, match="unclosed group") as refused:
        await one(Grammar.regex("("), 1)
    return [*answers, str(refused.value)]


@pytest.mark.slow
def test_a_spawned_model_answers_like_one_in_this_process() -> None:
    async def main() -> None:
        with load("anything", "mock") as here:
            mine = await everything(here)
        async with await spawn("anything", "mock") as there:
            assert await everything(there) == mine
            text = await there.complete("x", GenerationOptions(grammar=LARK, seed=3))
            assert accepts(LARK, text)
            assert not text.incomplete
            answer = there.generate(IDS, GenerationOptions(grammar=Grammar.json_schema(Parcel), seed=1))
            await anext(answer)
            await answer.aclose()  # the engine continues with the next request
            assert [r.text async for r in there.generate(IDS, GenerationOptions(grammar=Grammar.regex("ab")))] == ["a", "b"]
            assert there.metrics().grammar_tokens > 0

    asyncio.run(main())
