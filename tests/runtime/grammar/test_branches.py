"""Continuations of one answer under a grammar: the grammar state is forked for each of them."""

from __future__ import annotations

import asyncio

import pytest

from runtime import (
    GenerationOptions,
    Grammar,
    GrammarError,
    LanguageModel,
    SamplingOptions,
    SpeculativeOptions,
    TokenRecord,
    UnsupportedFeatureError,
    load,
    spawn,
)
from runtime.grammar.grammars import Grammars
from tests.fakes import fake_model, settled
from tests.runtime.grammar.judge import accepts

GRAMMAR = Grammar.regex("[a-h]{3}(-[a-h]{3}){2}")
PROMPT = [*b"codes: ab"]
OPTIONS = GenerationOptions(grammar=GRAMMAR, grammar_prefix=2, seed=8, branch=4, top_k=3)


async def branches(model: LanguageModel, n: int, options: GenerationOptions) -> dict[int, list[TokenRecord]]:
    said: dict[int, list[TokenRecord]] = {}
    async for branch, record in model.continue_many(PROMPT, n, options):
        said.setdefault(branch, []).append(record)
    return said


def told(records: list[TokenRecord]) -> list[object]:
    return [(r.token_id, r.origin, r.finish_reason, r.logprob) for r in records]


def test_every_branch_equals_its_answer_alone_and_the_grammar_state_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    make = Grammars.constraint

    def counted(self: Grammars, *args: object, **kwargs: object) -> object:
        nonlocal made
        made += 1
        return make(self, *args, **kwargs)  # type: ignore[arg-type]  # as they came

    with fake_model() as model:
        alone = {
            4 + i: list(
                model.generate_sync(PROMPT, GenerationOptions(grammar=GRAMMAR, grammar_prefix=2, seed=8, branch=4 + i, top_k=3))
            )
            for i in range(6)
        }
        monkeypatch.setattr(Grammars, "constraint", counted)
        together = asyncio.run(branches(model, 6, OPTIONS))
    assert made == 1
    assert {branch: told(records) for branch, records in together.items()} == {b: told(each) for b, each in alone.items()}
    texts = {b"ab" + b"".join(r.token_bytes for r in records) for records in together.values()}
    assert len(texts) > 3
    assert all(accepts(GRAMMAR, text) for text in texts)


def test_without_a_seed_all_branches_share_one_fresh_seed() -> None:
    seeds: list[int | None] = []
    with fake_model() as model:
        for _ in range(2):
            together = asyncio.run(branches(model, 4, GenerationOptions(max_tokens=2)))
            seeds += {timings.seed for timings in model.metrics().recent[-4:]}
            for branch in range(4):
                alone = GenerationOptions(max_tokens=2, seed=seeds[-1], branch=branch)
                assert told(list(model.generate_sync(PROMPT, alone))) == told(together[branch])
    assert len(seeds) == len(set(seeds)) == 2


def test_a_grammar_whose_first_tokens_are_all_banned_is_refused_for_all_branches() -> None:
    with fake_model() as model:
        banned = SamplingOptions(banned_tokens=tuple(b"abcdefgh"))
        with pytest.raises(GrammarError, match="all 8 tokens that the grammar allows as the first are banned"):
            asyncio.run(branches(model, 3, GenerationOptions(grammar=GRAMMAR, sampling=banned)))
        assert settled(model)[0].tokens_computed == 0


@pytest.mark.slow
def test_speculation_with_several_branches_is_refused_in_process_and_over_the_pipe() -> None:
    options = GenerationOptions(max_tokens=3, seed=1, speculative=SpeculativeOptions())

    async def scenario(model: LanguageModel) -> None:
        with pytest.raises(UnsupportedFeatureError, match=r"3 branches decode together.*or ask for n=1"):
            await branches(model, 3, options)
        assert model.metrics().tokens_computed == 0
        assert len((await branches(model, 1, options))[0]) == 3  # a single branch may speculate

    async def both() -> None:
        with load("x", "mock") as here:
            await scenario(here)
        async with await spawn("x", "mock") as there:
            await scenario(there)

    asyncio.run(both())
