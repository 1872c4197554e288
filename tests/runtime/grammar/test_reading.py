"""How a parser reads a JSON text, and where the end of an answer is sound."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from runtime.grammar.constraint import as_read
from runtime.grammar.grammars import Grammars
from runtime.grammar.source import Grammar
from tests.runtime.grammar.judge import accepts
from tests.runtime.grammar.samples import JSON
from tests.runtime.grammar.test_constraint import vocabulary
from tests.runtime.grammar.validator import holds

TWO_NUMBERS = {"type": "object", "minProperties": 2, "additionalProperties": {"type": "integer"}}
LETTER = {"type": "object", "properties": {"a": {"type": "string"}}}
SHARE = {"type": "number", "minimum": 0, "exclusiveMaximum": 1}
NINES = "0." + 30 * "9"


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    made = Grammars(vocabulary)
    yield made
    made.close()


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "b": [0.5, -0, 1e5, 1.50, null, true, "x", {"a": 2}]}',
        '"a \\"name\\": 0.1000000000000000000001, \\u0061"',
        "7" * 400,
        '{"\\n": "\\u0007", "\\u007f": "süß 李 😀"}',
        "[1E+22, 0.1, -2.5e-7]",
    ],
)
def test_text_that_a_parser_reads_as_spelled_is_unchanged(text: str) -> None:
    assert as_read(text) == text


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('{"\\u0061": "\\u0061"}', '{"a": "\\u0061"}'),
        ('{"b": {"\\u00e9\\n" : 1}}', '{"b": {"é\\n" : 1}}'),
        (NINES, "1.0"),
        ("[-1e-999]", "[0.0]"),
        ("1e-" + 30 * "9", "0.0"),
        ("12345678901234567890.5", "12345678901234567000"),
    ],
)
def test_names_and_numbers_are_rewritten_as_a_parser_reads_them(text: str, read: str) -> None:
    again = as_read(text)
    assert again is not None
    assert again == read
    assert json.loads(again, parse_int=float) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}',
        '[{"a": 1, "\\u0061": 2}]',
        "1e999",
        '{"a": [-1E400]}',
        "NaN",
        "[-Infinity]",
        '{"\\ud800": 1}',
        '{"a": 1',
        "{a: 1}",
        "",
        "9" * 5000,  # more digits than Python turns into a number
        "[" * 100_000 + "]" * 100_000,
    ],
)
def test_text_that_cannot_be_parsed_without_loss_gives_none(text: str) -> None:
    assert as_read(text) is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("schema", "text", "sound"),
    [
        (TWO_NUMBERS, '{"a":1,"b":2}', True),
        (TWO_NUMBERS, '{"a":1,"a":2}', False),
        ({"type": "number"}, "1e300", True),
        ({"type": "number"}, "1e999", False),
        ({}, '{"a":[1e999]}', False),
        ({}, '{"a":{"b":1,"b":2}}', False),
        ({}, '{"a":{"b":1},"b":2}', True),
        # a name with escapes differs for the grammar, and is the same name for a parser
        (LETTER, '{"a":"x","b":1}', True),
        (LETTER, '{"\\u0062":1}', True),
        (LETTER, '{"\\u0061":1}', False),
        (LETTER, '{"\\u0061":"x"}', True),
        (LETTER, '{"a":"x","\\u0061":"y"}', False),
        # a number below one may be rounded to one by a parser
        (SHARE, "0.999", True),
        (SHARE, NINES, False),
        ({"type": "number", "minimum": 0, "maximum": 1}, NINES, True),
        ({"type": "number", "minimum": -1}, "-0." + 400 * "0" + "1", True),
        ({"enum": [0.12345678901234566]}, "0.12345678901234566", True),
    ],
)
def test_an_end_is_sound_where_the_parsed_value_still_validates(
    grammars: Grammars, schema: dict[str, Any], text: str, sound: bool
) -> None:
    # given a text that the grammar accepts as a complete answer
    grammar = Grammar.json_schema(schema)
    assert accepts(grammar, text)
    constraint = grammars.constraint(grammar)
    tokens = vocabulary().encode(text)
    constraint.advance(tokens)
    # then it is sound, with and without a following eos, exactly where it validates
    assert constraint.sound() == constraint.could_end() == sound
    assert sound == holds(text, schema)
    # and forks and rollbacks keep the text
    fork = constraint.fork()
    fork.rollback(len(tokens))
    assert not fork.could_end()
    assert fork.could_end(0, text.encode()) == sound
    fork.advance(tokens)
    assert fork.sound() == sound
    if not constraint.finished:
        constraint.advance([2])  # eos
        assert constraint.sound(1) == sound


def test_regex_and_lark_answers_are_not_parsed_as_json(grammars: Grammars) -> None:
    for grammar in (Grammar.regex("1e999|x"), Grammar.lark('start: "1e999" | "x"')):
        constraint = grammars.constraint(grammar)
        constraint.advance(vocabulary().encode("1e999"))
        assert constraint.finished
        assert constraint.sound()


def test_the_soundness_check_counts_as_grammar_work(grammars: Grammars) -> None:
    constraint = grammars.constraint(JSON)
    constraint.allowed()
    before = constraint.work_seconds
    constraint.sound()
    assert constraint.work_seconds > before
