"""Answers that end and are not sound JSON are marked incomplete in every kind of request."""

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
    """Sampling options that allow this token only."""
    return SamplingOptions(banned_tokens=tuple(set(range(len(model.byte_vocab))) - {token}))


def ends(records: Sequence[TokenRecord]) -> tuple[str | None, bool]:
    """The finish reason and the incomplete mark of the last record; all other records have neither."""
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
def test_an_unsound_answer_that_the_grammar_accepts_is_marked_incomplete(
    model: LanguageModel, schema: dict[str, Any], text: str, last: int | None
) -> None:
    # given an answer that lacks only its last token, and a model that generates that token
    grammar, ids = Grammar.json_schema(schema), [*text.encode(), *([] if last is None else [last])]
    assert accepts(grammar, text)
    assert not holds(text, schema)
    options = GenerationOptions(grammar=grammar, grammar_prefix=len(ids) - 1, sampling=only(model, ids[-1]))
    # when it is generated, then the answer ends by itself and is marked incomplete
    [record] = model.generate_sync([*PROMPT, *ids[:-1]], options)
    assert record.token_id == ids[-1]
    assert (record.finish_reason, record.incomplete) == ("grammar" if last is None else "eos", True)
    # and a similar answer that validates is complete
    sound = text.replace('"a":2', '"b":2').replace("1}", '"x"}').replace("999", "9").replace("9" * 30, "5")
    assert holds(sound, schema)
    ids = [*sound.encode(), *([] if last is None else [last])]
    options = GenerationOptions(grammar=grammar, grammar_prefix=len(ids) - 1, sampling=only(model, ids[-1]))
    assert [r.incomplete for r in model.generate_sync([*PROMPT, *ids[:-1]], options)] == [False]


def test_finished_answers_are_incomplete_exactly_where_they_do_not_validate(model: LanguageModel) -> None:
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
def test_streams_and_completions_mark_an_unsound_answer(model: LanguageModel, speculative: SpeculativeOptions | None) -> None:
    options = GenerationOptions(grammar=FORCED, speculative=speculative)
    prompt = [*b'{"a":1,"a":1}{"a":1,"a":1}']
    records = list(model.generate_sync(prompt, options))
    assert (said(records), ends(records)) == (SAID, ("grammar", True))
    text = asyncio.run(model.complete("x", options))
    assert (text.encode(), text.finish_reason, text.incomplete) == (SAID, "grammar", True)
    assert text.finish is Finish.GRAMMAR_UNSOUND


def test_an_eos_after_an_unsound_answer_has_no_text(model: LanguageModel) -> None:
    # given "1e999" and an eos as the only allowed token (258 is the other eos)
    options = GenerationOptions(grammar=Grammar.json_schema({"type": "number"}), grammar_prefix=5, sampling=only(model, 257))
    text = asyncio.run(model.complete("x1e999", options))
    assert (text, text.finish_reason, text.incomplete, text.finish) == ("", "eos", True, Finish.EOS_UNSOUND)


def test_continuations_and_beams_mark_unsound_answers(model: LanguageModel) -> None:
    async def branches() -> list[list[TokenRecord]]:
        rows: list[list[TokenRecord]] = [[], [], []]
        async for i, record in model.continue_many(PROMPT, 3, GenerationOptions(grammar=FORCED)):
            rows[i].append(record)
        return rows

    for row in asyncio.run(branches()):
        assert (said(row), ends(row)) == (SAID, ("grammar", True))
    found = asyncio.run(model.beam_generate(PROMPT, BeamOptions(width=4, grammar=Grammar.json_schema(EITHER), max_tokens=40)))
    assert {one.incomplete for one in found} == {False, True}
    for one in found:
        assert one.incomplete != holds(one.text, EITHER)
        assert one.finish_reason == "grammar"


def test_beams_that_end_with_an_eos_are_marked_where_unsound(model: LanguageModel) -> None:
    grammar = Grammar.json_schema({"enum": [1, 12], **TIGHT})
    for one in asyncio.run(model.beam_generate(PROMPT, BeamOptions(width=3, grammar=grammar, max_tokens=8))):
        assert (json.loads(one.text) in (1, 12), one.incomplete) == (True, False)
    # and a number beyond the range of floats: it ends there, or is cut after each digit that may follow
    grammar = Grammar.json_schema({"type": "number"})
    options = BeamOptions(width=12, grammar=grammar, grammar_prefix=5, max_tokens=1)
    found = asyncio.run(model.beam_generate([*PROMPT, *b"1e999"], options))
    assert sorted((one.finish_reason, one.text) for one in found) == [
        ("eos", ""),
        ("eos", ""),
        *(("length", digit) for digit in "0123456789"),
    ]
    assert all(one.incomplete for one in found)


def test_sessions_mark_an_unsound_answer_also_when_it_is_resumed(model: LanguageModel) -> None:
    for cut in (0, 4, 9, 12):
        with model.open_session() as session:
            session.ensure_prefix_sync(PROMPT)
            stream = session.decode_sync(GenerationOptions(grammar=FORCED))
            first = [next(stream) for _ in range(cut)]
            if cut:
                stream.close()
            records = first + list(session.go_on_sync() if cut else stream)
        assert (said(records), ends(records)) == (SAID, ("grammar", True))


def test_a_full_session_cuts_an_answer(model: LanguageModel) -> None:
    with model.open_session(SessionConfig(limit=len(PROMPT) + 5)) as session:
        session.ensure_prefix_sync(PROMPT)
        records = list(session.decode_sync(GenerationOptions(grammar=FORCED)))
    assert (said(records), ends(records)) == (SAID[:5], ("context", True))


def test_a_stop_string_after_an_unsound_number_leaves_it_incomplete(model: LanguageModel) -> None:
    # given numbers that a stop string ends at a place where the grammar may end
    grammar = Grammar.json_schema({"type": "number"})
    for before, incomplete in ((b"1e99", False), (b"1e999", True)):
        options = GenerationOptions(
            grammar=grammar, grammar_prefix=len(before), sampling=only(model, ord("7")), stop=("7",), max_tokens=3
        )
        [record] = model.generate_sync([*PROMPT, *before], options)
        assert (record.text, record.finish_reason, record.incomplete) == ("", "stop", incomplete)
