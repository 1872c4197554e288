"""Answers that come to their end and are no sound JSON: marked incomplete, however they are asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from runtime import (
    BeamOptions,
    Finish,
    GenerationOptions,
    Grammar,
    LanguageModel,
    SamplingOptions,
    SessionConfig,
    SpeculativeOptions,
    TokenRecord,
)
from tests.fakes import fake_model, some_ids
from tests.runtime.grammar.judge import accepts
from tests.runtime.grammar.samples import TIGHT, TWICE
from tests.runtime.grammar.validator import holds

PROMPT = some_ids(1, 12)
EITHER = {**TWICE, "patternProperties": {"^[ab]$": {"const": 1}}}  # one in two
FORCED = Grammar.json_schema(TWICE)
SAID = b'{"a":1,"a":1}'


@pytest.fixture(scope="module")
def model() -> Iterator[LanguageModel]:
    with fake_model() as made:
        yield made


def said(records: Sequence[TokenRecord]) -> bytes:
    return b"".join(r.token_bytes for r in records if r.finish_reason != "eos")


def only(model: LanguageModel, token: int) -> SamplingOptions:
    """A model that can say nothing else."""
    return SamplingOptions(banned_tokens=tuple(set(range(len(model.byte_vocab))) - {token}))


def ends(records: Sequence[TokenRecord]) -> tuple[str | None, bool]:
    """How the last says that the answer ended; no other one says anything."""
    assert not any(r.incomplete or r.finish_reason for r in records[:-1])
    return records[-1].finish_reason, records[-1].incomplete


@pytest.mark.parametrize(
    ("schema", "text", "last"),
    [
        ({"type": "object", "minProperties": 2, "additionalProperties": {"type": "integer"}}, '{"a":1,"a":2}', None),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, '{"\\u0061":1}', None),
        ({"type": "object"}, '{"a":[1e999]}', None),
        ({"type": "number"}, "1e999", 257),
        ({"type": "number", "exclusiveMaximum": 1, "minimum": 0}, "0." + 30 * "9", 257),
    ],
)
def test_what_the_grammar_lets_pass_is_marked_at_its_end(
    model: LanguageModel, schema: dict[str, Any], text: str, last: int | None
) -> None:
    # given an answer that is there but for its last token, and a model that says that one
    grammar, ids = Grammar.json_schema(schema), [*text.encode(), *([] if last is None else [last])]
    assert accepts(grammar, text)
    assert not holds(text, schema)
    options = GenerationOptions(grammar=grammar, grammar_prefix=len(ids) - 1, sampling=only(model, ids[-1]))
    # when it is said, then it has ended by itself and is not passed off as done
    [record] = model.generate_sync([*PROMPT, *ids[:-1]], options)
    assert record.token_id == ids[-1]
    assert (record.finish_reason, record.incomplete) == ("grammar" if last is None else "eos", True)
    # and its neighbour, which holds, is whole
    sound = text.replace('"a":2', '"b":2').replace("1}", '"x"}').replace("999", "9").replace("9" * 30, "5")
    assert holds(sound, schema)
    ids = [*sound.encode(), *([] if last is None else [last])]
    options = GenerationOptions(grammar=grammar, grammar_prefix=len(ids) - 1, sampling=only(model, ids[-1]))
    assert [r.incomplete for r in model.generate_sync([*PROMPT, *ids[:-1]], options)] == [False]


def test_whole_answers_are_marked_exactly_where_they_do_not_hold(model: LanguageModel) -> None:
    hot = SamplingOptions(temperature=6.0)
    options = [GenerationOptions(grammar=Grammar.json_schema(EITHER), seed=seed, sampling=hot) for seed in range(12)]

    async def batch() -> list[list[TokenRecord]]:
        rows: list[list[TokenRecord]] = [[] for _ in options]
        async for i, record in model.generate_many([PROMPT] * len(options), options):
            rows[i].append(record)
        return rows

    together = asyncio.run(batch())
    alone = [list(model.generate_sync(PROMPT, own)) for own in options]
    assert [[r.token_id for r in row] for row in together] == [[r.token_id for r in row] for row in alone]
    for rows in (together, alone):
        for row in rows:
            assert ends(row) == ("grammar", not holds(said(row).decode(), EITHER))
        assert len({row[-1].incomplete for row in rows}) == 2


@pytest.mark.parametrize("speculative", [None, SpeculativeOptions()])
def test_streams_and_texts(model: LanguageModel, speculative: SpeculativeOptions | None) -> None:
    options = GenerationOptions(grammar=FORCED, speculative=speculative)
    prompt = [*b'{"a":1,"a":1}{"a":1,"a":1}']
    records = list(model.generate_sync(prompt, options))
    assert (said(records), ends(records)) == (SAID, ("grammar", True))
    text = asyncio.run(model.complete("x", options))
    assert (text.encode(), text.finish_reason, text.incomplete) == (SAID, "grammar", True)
    assert text.finish is Finish.GRAMMAR_UNSOUND


def test_an_eos_that_ends_one_is_no_text_of_it(model: LanguageModel) -> None:
    # given "1e999", and nothing that the model may say but an end; 258 is the other one
    options = GenerationOptions(grammar=Grammar.json_schema({"type": "number"}), grammar_prefix=5, sampling=only(model, 257))
    text = asyncio.run(model.complete("x1e999", options))
    assert (text, text.finish_reason, text.incomplete, text.finish) == ("", "eos", True, Finish.EOS_UNSOUND)


def test_continuations_and_hypotheses(model: LanguageModel) -> None:
    async def fan() -> list[list[TokenRecord]]:
        rows: list[list[TokenRecord]] = [[], [], []]
        async for i, record in model.continue_many(PROMPT, 3, GenerationOptions(grammar=FORCED)):
            rows[i].append(record)
        return rows

    for row in asyncio.run(fan()):
        assert (said(row), ends(row)) == (SAID, ("grammar", True))
    found = asyncio.run(model.beam_generate(PROMPT, BeamOptions(width=4, grammar=Grammar.json_schema(EITHER), max_tokens=40)))
    assert {one.incomplete for one in found} == {False, True}
    for one in found:
        assert one.incomplete != holds(one.text, EITHER)
        assert one.finish_reason == "grammar"


def test_a_hypothesis_that_an_eos_ends(model: LanguageModel) -> None:
    grammar = Grammar.json_schema({"enum": [1, 12], **TIGHT})
    for one in asyncio.run(model.beam_generate(PROMPT, BeamOptions(width=3, grammar=grammar, max_tokens=8))):
        assert (json.loads(one.text) in (1, 12), one.incomplete) == (True, False)
    # and a number that no float holds: it ends there, or is cut behind each digit that may follow
    grammar = Grammar.json_schema({"type": "number"})
    options = BeamOptions(width=12, grammar=grammar, grammar_prefix=5, max_tokens=1)
    found = asyncio.run(model.beam_generate([*PROMPT, *b"1e999"], options))
    assert sorted((one.finish_reason, one.text) for one in found) == [
        ("eos", ""),
        ("eos", ""),
        *(("length", digit) for digit in "0123456789"),
    ]
    assert all(one.incomplete for one in found)


def test_sessions_and_what_goes_on_in_them(model: LanguageModel) -> None:
    for cut in (0, 4, 9, 12):
        with model.open_session() as session:
            session.ensure_prefix_sync(PROMPT)
            stream = session.decode_sync(GenerationOptions(grammar=FORCED))
            first = [next(stream) for _ in range(cut)]
            if cut:
                stream.close()
            records = first + list(session.go_on_sync() if cut else stream)
        assert (said(records), ends(records)) == (SAID, ("grammar", True))


def test_a_session_that_is_full_cuts_an_answer(model: LanguageModel) -> None:
    with model.open_session(SessionConfig(limit=len(PROMPT) + 5)) as session:
        session.ensure_prefix_sync(PROMPT)
        records = list(session.decode_sync(GenerationOptions(grammar=FORCED)))
    assert (said(records), ends(records)) == (SAID[:5], ("context", True))


def test_a_stop_text_after_what_does_not_hold(model: LanguageModel) -> None:
    # given numbers that a stop text ends, where the grammar might
    grammar = Grammar.json_schema({"type": "number"})
    for before, incomplete in ((b"1e99", False), (b"1e999", True)):
        options = GenerationOptions(
            grammar=grammar, grammar_prefix=len(before), sampling=only(model, ord("7")), stop=("7",), max_tokens=3
        )
        [record] = model.generate_sync([*PROMPT, *before], options)
        assert (record.text, record.finish_reason, record.incomplete) == ("", "stop", incomplete)
