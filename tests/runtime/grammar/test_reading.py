"""What a reader makes of a JSON text, and which ends of answers are sound."""

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
def test_what_is_spelled_as_it_is_read_stays_as_it_is(text: str) -> None:
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
def test_a_name_and_a_number_are_spelled_as_they_are_read(text: str, read: str) -> None:
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
def test_what_cannot_be_read_or_not_without_loss(text: str) -> None:
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
        # a name that is spelled otherwise is another one for the grammar, and the same for who reads it
        (LETTER, '{"a":"x","b":1}', True),
        (LETTER, '{"\\u0062":1}', True),
        (LETTER, '{"\\u0061":1}', False),
        (LETTER, '{"\\u0061":"x"}', True),
        (LETTER, '{"a":"x","\\u0061":"y"}', False),
        # as a number below one that is read as one
        (SHARE, "0.999", True),
        (SHARE, NINES, False),
        ({"type": "number", "minimum": 0, "maximum": 1}, NINES, True),
        ({"type": "number", "minimum": -1}, "-0." + 400 * "0" + "1", True),
        ({"enum": [0.12345678901234566]}, "0.12345678901234566", True),
    ],
)
def test_an_end_is_sound_where_what_is_read_is_still_an_answer(
    grammars: Grammars, schema: dict[str, Any], text: str, sound: bool
) -> None:
    # given a text that the grammar takes for a whole answer
    grammar = Grammar.json_schema(schema)
    assert accepts(grammar, text)
    constraint = grammars.constraint(grammar)
    tokens = vocabulary().encode(text)
    constraint.advance(tokens)
    # then it is sound, alone and with an eos behind it, where it validates
    assert constraint.sound() == constraint.could_end() == sound
    assert sound == holds(text, schema)
    # and forks and ways back know what was said
    fork = constraint.fork()
    fork.rollback(len(tokens))
    assert not fork.could_end()
    assert fork.could_end(0, text.encode()) == sound
    fork.advance(tokens)
    assert fork.sound() == sound
    if not constraint.finished:
        constraint.advance([2])  # eos
        assert constraint.sound(1) == sound


def test_answers_of_another_kind_are_read_as_they_are_written(grammars: Grammars) -> None:
    for grammar in (Grammar.regex("1e999|x"), Grammar.lark('start: "1e999" | "x"')):
        constraint = grammars.constraint(grammar)
        constraint.advance(vocabulary().encode("1e999"))
        assert constraint.finished
        assert constraint.sound()


def test_reading_is_counted_as_the_grammars_work(grammars: Grammars) -> None:
    constraint = grammars.constraint(JSON)
    constraint.allowed()
    before = constraint.work_seconds
    constraint.sound()
    assert constraint.work_seconds > before
