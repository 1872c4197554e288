"""Answers under a grammar through the whole engine: streams, batches, finish reasons, resumption, faults."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from runtime import (
    Finish,
    GenerationOptions,
    Grammar,
    GrammarError,
    InvalidRequestError,
    LanguageModel,
    Origin,
    SamplingOptions,
    SessionClosedError,
    SpeculativeOptions,
    TokenRecord,
    load,
)
from runtime.backends.fake import Behaviour
from tests.fakes import Gate, fake_model, reference, some_ids, wait_for_close
from tests.runtime.grammar.judge import accepts, begins
from tests.runtime.grammar.samples import ALL, JSON, LARK, REGEX, SCHEMA, Parcel
from tests.tiny_models import tiny_folder

GREEDY = SamplingOptions(temperature=0.0)
PROMPT = some_ids(1, 12)


@pytest.fixture(scope="module")
def model() -> Iterator[LanguageModel]:
    with fake_model(Behaviour(overlaps=True)) as made:
        yield made


def said(records: Sequence[TokenRecord]) -> bytes:
    return b"".join(r.token_bytes for r in records if r.finish_reason != "eos")


def stream(model: LanguageModel, ids: Sequence[int], **options: Any) -> list[TokenRecord]:
    async def main() -> list[TokenRecord]:
        return [record async for record in model.generate(ids, GenerationOptions(**options))]

    return asyncio.run(main())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ALL)
def test_every_finished_answer_is_accepted_by_the_grammar(model: LanguageModel, name: str, seed: int) -> None:
    records = stream(model, PROMPT, grammar=ALL[name], seed=seed, max_tokens=600)
    assert records[-1].finish_reason in ("eos", "grammar")
    assert not records[-1].incomplete
    assert accepts(ALL[name], said(records))
    if name == "json":
        answer = json.loads(said(records))
        assert set(answer) == set(SCHEMA["properties"])
        assert 0 <= answer["age"] <= 120


def test_records_hold_the_unmasked_numbers_and_mark_forced_tokens(model: LanguageModel) -> None:
    records = stream(model, PROMPT, grammar=Grammar.regex("ab[cd]e"), sampling=GREEDY, top_k=5)
    path = list(PROMPT)
    for record in records:
        row = reference(path)
        assert record.logprob == pytest.approx(float(row[record.token_id]), abs=1e-5)
        assert record.rank == 1 + int((row > row[record.token_id]).sum())
        assert record.entropy == pytest.approx(float(-(np.exp(row) * row).sum()), abs=1e-4)
        assert record.top_ids == tuple(np.argsort(-row, kind="stable")[:5].tolist())
        path.append(record.token_id)
    assert [r.origin for r in records] == [Origin.GRAMMAR, Origin.GRAMMAR, Origin.SAMPLED, Origin.GRAMMAR]
    assert [r.finish_reason for r in records] == [None, None, None, "grammar"]
    row = reference([*PROMPT, ord("a"), ord("b")])
    assert records[2].token_id == max(ord("c"), ord("d"), key=lambda token: float(row[token]))


@pytest.mark.slow
def test_tokens_are_drawn_from_the_renormalised_allowed_distribution(model: LanguageModel) -> None:
    # given two allowed tokens, at temperature 1
    drawn = [stream(model, PROMPT, grammar=Grammar.regex("[cd]"), seed=seed)[0].token_id for seed in range(300)]
    row = np.exp(reference(PROMPT).astype(np.float64))
    expected = row[ord("c")] / (row[ord("c")] + row[ord("d")])
    assert abs(drawn.count(ord("c")) / 300 - expected) < 4 * np.sqrt(expected * (1 - expected) / 300)


def test_an_answer_cut_by_max_tokens_is_marked_incomplete(model: LanguageModel) -> None:
    records = stream(model, PROMPT, grammar=JSON, seed=1, max_tokens=9)
    assert [r.finish_reason for r in records] == [None] * 8 + ["length"]
    assert [r.incomplete for r in records] == [False] * 8 + [True]
    assert begins(JSON, said(records))
    assert not accepts(JSON, said(records))
    text = asyncio.run(model.complete("x", GenerationOptions(grammar=JSON, seed=1, max_tokens=9)))
    assert (text.finish_reason, text.incomplete) == ("length", True)
    assert len(text) == 9


def test_an_answer_of_exactly_max_tokens_is_complete(model: LanguageModel) -> None:
    records = stream(model, PROMPT, grammar=Grammar.regex("abcd"), max_tokens=4)
    assert records[-1].finish_reason == "grammar"
    text = asyncio.run(model.complete("x", GenerationOptions(grammar=Grammar.regex("abcd"), max_tokens=4)))
    assert (text, text.finish_reason, text.incomplete) == ("abcd", "grammar", False)


def test_an_empty_answer_is_an_eos(model: LanguageModel) -> None:
    records = stream(model, PROMPT, grammar=Grammar.regex(""))
    assert [(r.finish_reason, model.is_eos(r.token_id)) for r in records] == [("eos", True)]


def test_an_answer_cut_by_the_context_length_is_marked_incomplete() -> None:
    with fake_model(context_length=20) as model:
        records = stream(model, PROMPT, grammar=JSON, seed=1, max_tokens=600)
        assert (records[-1].finish_reason, records[-1].incomplete) == ("context", True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["attention", "recurrent"])
def test_batched_answers_with_different_grammars_equal_those_alone(kind: str) -> None:
    # given rows with different grammars, one without
    wanted = [*ALL.values(), None, JSON, Grammar.regex("[a-f]{20}")]
    with fake_model(Behaviour(recurrent=kind == "recurrent"), max_batch_rows=4) as model:
        options = [
            GenerationOptions(grammar=grammar, seed=i, max_tokens=80, ignore_eos=grammar is None)
            for i, grammar in enumerate(wanted)
        ]

        async def one(own: GenerationOptions) -> list[TokenRecord]:
            return [record async for record in model.generate(PROMPT, own)]

        async def batch() -> list[list[TokenRecord]]:
            return list(await asyncio.gather(*(one(own) for own in options)))

        together = asyncio.run(batch())
        model.clear_cache()
        for own, records in zip(options, together, strict=True):
            alone = asyncio.run(one(own))
            assert [(r.token_id, r.origin, r.finish_reason) for r in alone] == [
                (r.token_id, r.origin, r.finish_reason) for r in records
            ]
            assert own.grammar is None or begins(own.grammar, said(records))


SHORT = {**ALL, "json": Grammar.json_schema({**SCHEMA, "x-guidance": {"whitespace_flexible": False}})}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_an_answer_resumed_after_any_token_equals_the_uninterrupted_one(model: LanguageModel, name: str) -> None:
    whole = stream(model, PROMPT, grammar=SHORT[name], seed=11, max_tokens=600)
    assert accepts(SHORT[name], said(whole))
    ids = [r.token_id for r in whole]
    for at in range(1, len(ids)):
        rest = stream(model, [*PROMPT, *ids[:at]], grammar=SHORT[name], grammar_prefix=at, seed=11, max_tokens=600)
        assert [r.token_id for r in rest] == ids[at:]
        assert [r.origin for r in rest] == [r.origin for r in whole[at:]]
        assert rest[-1].finish_reason == whole[-1].finish_reason


def test_speculation_under_a_grammar_does_not_change_the_answer(model: LanguageModel) -> None:
    # given an answer that repeats the prompt, so that drafted tokens are accepted
    prompt, grammar = [*b"(12-(12-(12-(12-"], Grammar.regex(r"(\(12-){4,12}x?")
    plain = stream(model, prompt, grammar=grammar, sampling=GREEDY, top_k=3)
    guessed = stream(model, prompt, grammar=grammar, sampling=GREEDY, top_k=3, speculative=SpeculativeOptions())
    assert [(r.token_id, r.origin, r.finish_reason) for r in guessed] == [
        (r.token_id, r.origin, r.finish_reason) for r in plain
    ]


def test_an_invalid_grammar_prefix_is_refused(model: LanguageModel) -> None:
    with pytest.raises(InvalidRequestError, match="grammar_prefix=13 of 12 tokens"):
        stream(model, PROMPT, grammar=REGEX, grammar_prefix=13)
    with pytest.raises(GrammarError, match="token id 120 cannot be token 2"):
        stream(model, [*PROMPT, ord("1"), ord("x")], grammar=REGEX, grammar_prefix=2)
    with pytest.raises(GrammarError, match="complete after 1 tokens"):
        stream(model, [*PROMPT, ord("a")], grammar=Grammar.regex("a"), grammar_prefix=1)


def test_an_unusable_grammar_is_refused_before_any_compute(model: LanguageModel) -> None:
    before = model.metrics().tokens_computed
    for grammar in (Grammar.regex("("), Grammar("json_schema", '{"type": "nope"}'), Grammar.regex(r"[^\s\S]")):
        with pytest.raises(GrammarError):
            stream(model, some_ids(77, 5), grammar=grammar)
        with pytest.raises(GrammarError):
            list(model.generate_sync(some_ids(77, 5), GenerationOptions(grammar=grammar)))
        with pytest.raises(GrammarError):
            asyncio.run(model.complete("never computed", GenerationOptions(grammar=grammar)))
    assert model.metrics().tokens_computed == before
    assert model.prefix_match(some_ids(77, 5)).tokens == 0


def test_a_grammar_that_fails_during_decoding_ends_only_its_own_stream(model: LanguageModel) -> None:
    dead_end = Grammar.lark('start: "abc" X\nX: /[^\\s\\S]/')

    async def main() -> tuple[list[TokenRecord], list[TokenRecord]]:
        got: list[TokenRecord] = []

        async def failing() -> None:
            async for record in model.generate(PROMPT, GenerationOptions(grammar=dead_end)):
                got.append(record)  # noqa: PERF401  # the records before the error are asserted below

        async def sound() -> list[TokenRecord]:
            return [r async for r in model.generate(PROMPT, GenerationOptions(grammar=JSON, seed=1, max_tokens=600))]

        task = asyncio.create_task(sound())
        with pytest.raises(GrammarError, match="failed after 3 tokens"):
            await failing()
        return got, await task

    got, other = asyncio.run(main())
    assert said(got) == b"abc"  # no token generated before the error is lost
    assert accepts(JSON, said(other))


@pytest.mark.slow
def test_a_stop_string_leaves_an_answer_incomplete_unless_the_grammar_may_end_there(model: LanguageModel) -> None:
    # given a stop string in the middle of a structure
    cut = stream(model, PROMPT, grammar=JSON, stop=('"age"',), max_tokens=600, seed=4)
    assert (cut[-1].finish_reason, cut[-1].incomplete) == ("stop", True)
    assert '"age"' not in "".join(r.text for r in cut)
    # and other stop strings, in an answer of eight different characters that would be complete after two as well
    grammar = Grammar.regex("[ -~]{2}([ -~]{6})?")
    told = ((seed, said(stream(model, PROMPT, grammar=grammar, seed=seed)).decode()) for seed in range(200))
    seed, text = next((seed, text) for seed, text in told if len(text) == len(set(text)) == 8)
    for stop, shown, incomplete in (
        (text[2], text[:2], False),
        (text[1:3], text[:1], True),
        (text[:5], "", True),
        (text[3:5], text[:3], True),
    ):
        records = stream(model, PROMPT, grammar=grammar, stop=(stop,), seed=seed)
        assert "".join(r.text for r in records) == shown
        assert (records[-1].finish_reason, records[-1].incomplete) == ("stop", incomplete)


def test_completeness_after_a_stop_string_is_judged_by_the_shown_text(model: LanguageModel) -> None:
    text = asyncio.run(model.complete("x", GenerationOptions(grammar=Grammar.regex("ab+(END)"), stop=("END",), seed=1)))
    assert text.incomplete
    assert text.finish is Finish.STOP_INSIDE
    text = asyncio.run(model.complete("x", GenerationOptions(grammar=Grammar.regex("ab+(END)?"), stop=("E",), seed=1)))
    assert not text.incomplete


def test_after_a_cancelled_answer_the_next_request_is_served(model: LanguageModel) -> None:
    async def main() -> list[TokenRecord]:
        records = model.generate(PROMPT, GenerationOptions(grammar=Grammar.regex("[a-z]+"), seed=2, max_tokens=400))
        assert (await anext(records)).origin is Origin.SAMPLED
        await records.aclose()
        return [r async for r in model.generate(PROMPT, GenerationOptions(grammar=LARK, seed=2))]

    assert accepts(LARK, said(asyncio.run(main())))


def test_closing_the_model_during_an_answer_raises_session_closed() -> None:
    gate = Gate()
    with load((Behaviour(before_forward=gate), None), backend="fake") as model:
        model.cache_kv(PROMPT)
        gate.shut()
        task = model.generate_sync(PROMPT, GenerationOptions(grammar=JSON, seed=2))
        next(task)
        assert gate.reached.wait(30)
        closing = threading.Thread(target=model.close)
        closing.start()
        wait_for_close(model)
        gate.open()
        closing.join(30)
        with pytest.raises(SessionClosedError, match="closed"):
            list(task)


def test_no_grammar_worker_starts_without_a_grammar() -> None:
    before = {thread.ident for thread in threading.enumerate()}
    with fake_model() as model:
        stream(model, PROMPT, max_tokens=3)
        started = [thread.name for thread in threading.enumerate() if thread.ident not in before]
        assert not any(name.startswith("elsewise-grammar") for name in started)
        assert model.metrics().grammar_tokens == 0
        stream(model, PROMPT, grammar=LARK, seed=1)
        metrics = model.metrics()
        assert metrics.grammar_tokens > 1
        assert metrics.grammar_seconds > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["llama_wide", "mamba", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("gemma3", "lfm2", "gpt2"))]
)
def test_both_backends_give_the_same_answer_and_pydantic_validates_it(kind: str) -> None:
    grammar = Grammar.json_schema(Parcel)
    texts: dict[str, list[int]] = {}
    for backend in ("hf", "mlx"):
        with load(tiny_folder(kind).path, backend=backend) as model:
            ids = model.tokenize("A parcel:")
            records = list(model.generate_sync(ids, GenerationOptions(grammar=grammar, sampling=GREEDY, max_tokens=300)))
            texts[backend] = [r.token_id for r in records]
            if not records[-1].incomplete:
                Parcel.model_validate_json(said(records))
                assert accepts(grammar, said(records))
            drawn = list(model.generate_sync(ids, GenerationOptions(grammar=REGEX, seed=5)))
            assert accepts(REGEX, said(drawn))
    assert texts["hf"] == texts["mlx"]


def test_a_grammar_whose_first_tokens_are_all_banned_is_refused_before_compute() -> None:
    with fake_model() as model:
        first = tuple(i for i, piece in enumerate(model.byte_vocab) if piece[:1] == b"a")
        options = {"grammar": Grammar.regex("abc"), "sampling": SamplingOptions(banned_tokens=first)}
        with pytest.raises(GrammarError, match=f"all {len(first)} tokens that the grammar allows as the first are banned"):
            stream(model, PROMPT, **options)
        assert model.metrics().tokens_computed == 0
        # and where one first token is left, it is generated
        records = stream(model, PROMPT, grammar=Grammar.regex("(a|b)c"), sampling=SamplingOptions(banned_tokens=first), seed=1)
        assert said(records) == b"bc"
